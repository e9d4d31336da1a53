"""Children of a candidate: operators edit, guards refuse, another operator tries again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from combee_dspy.aggregators import together
from combee_dspy.diversity import Archive
from combee_dspy.evaluation import perfect_score_of
from combee_dspy.events import ChildRefused, CopiesRemoved
from combee_dspy.guards import check, check_program
from combee_dspy.lessons import read_section, write_section
from combee_dspy.operators import (
    Insert,
    Operator,
    OperatorInput,
    Rewrite,
    decode_fields,
    draw_operators,
    edit_components,
    guard_input,
    operator_input,
    operator_labels,
    predictor_runs,
    without_copies,
)
from combee_dspy.records import Edit, Lessons, Refusal, fields_key
from combee_dspy.reflections import estimate_tokens
from combee_dspy.search._candidates import Candidate
from combee_dspy.search._contexts import Contexts
from combee_dspy.search._plans import Learned
from combee_dspy.streams import derive

__all__ = ["Child", "Proposer"]

logger = logging.getLogger("combee_dspy")


@dataclass(frozen=True, slots=True)
class Child:
    """A candidate that an operator made, with the operator's label and the components that it
    edited.
    """

    candidate: Candidate
    operator: str
    components: tuple[str, ...]


@dataclass(slots=True)
class _Draft:
    """A child in the making: its number, its operator, those it has tried, and what was too like
    others.
    """

    number: int
    operator: int
    tried: list[int] = field(default_factory=list)
    child: Child | None = None
    alike: Child | None = None


@dataclass(eq=False)
class Proposer:
    """Makes children of a candidate from what an update learned. Called for one update at a time,
    in order.
    """

    contexts: Contexts

    def __post_init__(self) -> None:
        self._task, self.books = self.contexts.task, self.contexts.books
        self._settings, self._emit = self._task.settings, self.contexts.effects.log.emit
        self._operators, self._diversity = self._settings.operators, self._settings.diversity
        self.labels = operator_labels(self._operators)
        self._archive = Archive(self._diversity)
        texts = self._task.seed.texts
        described = {
            name: decode_fields(texts.get(fields_key(name), "")) for name in self._task.components
        }
        own = {name: texts[name] for name in described}
        check_program(self._settings.guards, own, described)

    async def children(
        self, learned: Learned, base: Candidate, count: int, weights: Mapping[str, float]
    ) -> list[Child]:
        """Return up to ``count`` children of a candidate, each by another operator as far as there
        are others.

        All operators of a round work at once; what they made is judged in the order
        of the children. A child that is refused draws another operator and tries again. Where all
        are refused, the first of those that were only too similar is returned: spelling cannot tell
        a paraphrase from the next lesson of the same form ("a parcel goes to shipping", "a courier
        goes to shipping"), and validation can. ``weights`` are operators' probabilities by label.
        """
        step, inputs = learned.plan.step, self._inputs(learned, base)
        chosen = draw_operators(weights, count, derive(self._settings.seed, "operators", step))
        drafts = [_Draft(number, self.labels.index(label)) for number, label in enumerate(chosen)]
        self._archive.add(base.texts)
        pending = drafts
        for attempt in range(self._diversity.max_draws):
            edits = await together(
                self._edited(draft.operator, inputs, base, step, (draft.number, attempt))
                for draft in pending
            )
            for draft, texts in zip(pending, edits, strict=True):
                draft.tried.append(draft.operator)
                await self._judge(draft, texts, base, step)
            pending = [
                draft
                for draft in pending
                if draft.child is None and self._redraw(draft, drafts, step, weights)
            ]
            if not pending:
                break
        children = [draft.child for draft in drafts if draft.child is not None]
        if not children:
            children = [draft.alike for draft in drafts if draft.alike is not None][:1]
            for child in children:
                self._archive.add(child.candidate.texts)
        return children

    async def edited(self, learned: Learned, base: Candidate) -> Candidate:
        """Return a candidate with the edits of all operators, one after the other; for a trunk."""
        for operator in range(len(self._operators)):
            inputs = self._inputs(learned, base)
            base = base.edited(
                await self._edited(operator, inputs, base, learned.plan.step, (0, 0))
            )
        return base

    def allows(self, base: Candidate, text: Candidate) -> bool:
        """Return whether the guards, and the operators' own budgets, let a text stand in the place
        of another.
        """
        for component in self.books.now:
            new = text.texts[component]
            if new == base.texts[component]:
                continue
            material = operator_input(
                self._task.student,
                component,
                base.texts,
                Lessons(component),
                seed=self._task.seed.texts,
                guards=self._settings.guards,
            )
            judged = guard_input(material, component)
            if (
                check(Edit(instruction=new), self._settings.guards, judged, self.contexts.copies)
                is not None
            ):
                return False
            if not all(_fits(operator, new, material.instruction) for operator in self._operators):
                return False
        return True

    def _inputs(self, learned: Learned, base: Candidate) -> dict[str, OperatorInput]:
        rows = self.contexts.examples(learned.plan.rows)
        scores = [rollout.score for rollout in learned.rollouts]
        perfect_score = perfect_score_of(self._settings.perfect_score, scores)
        inputs = {}
        for component, lessons in learned.lessons.items():
            runs = predictor_runs(component, zip(rows, learned.rollouts, strict=True))
            inputs[component] = operator_input(
                self._task.student,
                component,
                base.texts,
                lessons,
                seed=self._task.seed.texts,
                runs=runs,
                guards=self._settings.guards,
                perfect_score=perfect_score,
                book=self.books.now[component],
            )
        return inputs

    async def _edited(
        self,
        operator: int,
        inputs: Mapping[str, OperatorInput],
        base: Candidate,
        step: int,
        place: tuple[int, int],
    ) -> dict[str, str]:
        """Return the components that an operator changes, asked in a place of its own; what is
        refused is said.
        """
        outcomes = await together(
            self._operators[operator].apply(
                material,
                self.contexts.make(component, base, step).at("operator", operator, *place),
            )
            for component, material in inputs.items()
        )
        texts: dict[str, str] = {}
        for (component, material), outcome in zip(inputs.items(), outcomes, strict=True):
            allowed = self._allowed(component, material, outcome, step)
            changed = (
                {}
                if isinstance(allowed, Refusal)
                else edit_components(allowed, component, base.texts)
            )
            texts.update(changed)
            if not changed:
                refusal = (
                    allowed
                    if isinstance(allowed, Refusal)
                    else Refusal("the text would not change")
                )
                self._refused(operator, refusal, base, step, component)
        return texts

    def _allowed(
        self, component: str, material: OperatorInput, outcome: Edit | Refusal, step: int
    ) -> Edit | Refusal:
        if isinstance(outcome, Refusal):
            return outcome
        judged = guard_input(material, component)
        if (copies := self.contexts.copies) is not None:
            outcome, lines = without_copies(outcome, judged, copies)
            if lines:
                copies_removed = CopiesRemoved(tuple(lines), len(lines))
                self._emit(copies_removed, step=step, component=component)
        return check(outcome, self._settings.guards, judged, self.contexts.copies) or outcome

    async def _judge(
        self, draft: _Draft, texts: Mapping[str, str], base: Candidate, step: int
    ) -> None:
        if not texts:
            return
        candidate, near = base.edited(texts), self._operators[draft.operator].near_parent
        components = tuple(dict.fromkeys(name.split("::")[0] for name in texts))
        child = Child(candidate, self.labels[draft.operator], components)
        refusal = await asyncio.to_thread(self._archive.refuses, candidate.texts, base.texts, near)
        if refusal is None:
            self._archive.add(candidate.texts)
            draft.child = child
            return
        self._refused(draft.operator, refusal, base, step)
        if draft.alike is None and not self._archive.repeats(candidate.texts):
            draft.alike = child

    def _redraw(
        self, draft: _Draft, drafts: Sequence[_Draft], step: int, weights: Mapping[str, float]
    ) -> bool:
        """Give a refused child another operator; return whether there is one."""
        # What applies the scan's lessons would make the text again that it made for a sibling.
        used = {place for other in drafts for place in (*other.tried, other.operator)}
        left = {
            self.labels[place]: weights.get(self.labels[place], 1.0)
            for place, operator in enumerate(self._operators)
            if place not in (used if operator.needs_lessons else draft.tried)
        }
        if not left or len(draft.tried) >= self._diversity.max_draws:
            return False
        stream = derive(self._settings.seed, "redraw", step, draft.number, len(draft.tried))
        draft.operator = self.labels.index(draw_operators(left, 1, stream)[0])
        return True

    def _refused(
        self, operator: int, refusal: Refusal, parent: Candidate, step: int, component: str = ""
    ) -> None:
        event = ChildRefused(self.labels[operator], refusal.reason, parent.id)
        self._emit(event, step=step, component=component)

    async def similarity(self, candidates: Sequence[Candidate]) -> float | None:
        """Return how alike candidates are, 0 to 1; see
        :meth:`combee_dspy.diversity.Archive.similarity`.
        """
        return await asyncio.to_thread(
            self._archive.similarity, [candidate.texts for candidate in candidates]
        )


def _fits(operator: Operator, new: str, old: str) -> bool:
    """Return whether an operator's own budget has room for a text that takes the place of
    another.
    """
    if isinstance(operator, Insert):
        sections = (write_section("", read_section(text)[1]) for text in (new, old))
        tokens, before = map(estimate_tokens, sections)
    elif isinstance(operator, Rewrite):
        tokens, before = map(estimate_tokens, (new, old))
    else:
        return True
    return tokens <= max(operator.max_tokens, before)
