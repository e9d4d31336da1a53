"""Children of a candidate: operators edit, guards refuse, another operator tries again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import dspy

from combee_dspy.aggregators import together
from combee_dspy.diversity import Archive, Diversity
from combee_dspy.guards import CopyIndex, Guards, check, without_copies
from combee_dspy.operators import (
    Operator,
    OperatorInput,
    draw_operators,
    edit_components,
    guard_input,
    operator_input,
    operator_labels,
    predictor_runs,
)
from combee_dspy.records import Edit, Refusal
from combee_dspy.search._candidates import Candidate
from combee_dspy.search._ledger import LessonLedger
from combee_dspy.search._update import Learned, Learner
from combee_dspy.streams import derive

__all__ = ["Child", "Proposer"]


@dataclass(frozen=True, slots=True)
class Child:
    """A candidate that an operator made.

    Attributes:
        candidate: It.
        operator: The operator's label.
        components: What the operator edited.
    """

    candidate: Candidate
    operator: str
    components: tuple[str, ...]


@dataclass(slots=True)
class _Draft:
    """A child in the making: the operator it has drawn, and those it has tried."""

    operator: int
    tried: list[int] = field(default_factory=list)
    made: Child | None = None


class Proposer:
    """Makes children of a candidate from what an update learned. Called for one update at a time, in order.

    Args:
        student: The program.
        seed: The candidate that is the student itself.
        operators: Those that children may draw from.
        guards: What no edit may break.
        copies: The training examples' runs of words; ``None`` where copies are allowed.
        diversity: What is done against collapse.
        learner: Makes contexts.
        emit: Says what happened: kind, data, update, component.
        run_seed: The run's seed.
        perfect_score: The score of a success.
        ledger: Lessons to offer again; ``None`` for none.
    """

    def __init__(  # noqa: PLR0913 - one wiring point
        self,
        student: dspy.Module,
        seed: Candidate,
        operators: Sequence[Operator],
        guards: Guards,
        copies: CopyIndex | None,
        diversity: Diversity,
        learner: Learner,
        emit: Callable[..., None],
        *,
        run_seed: int,
        perfect_score: float,
        ledger: LessonLedger | None,
    ) -> None:
        self._student = student
        self._seed = seed
        self.operators = tuple(operators)
        self.labels = operator_labels(operators)
        self._guards = guards
        self._copies = copies
        self._diversity = diversity
        self._archive = Archive(diversity)
        self._learner = learner
        self._emit = emit
        self._run_seed = run_seed
        self._perfect_score = perfect_score
        self._ledger = ledger

    async def children(
        self, learned: Learned, base: Candidate, count: int, weights: Mapping[str, float]
    ) -> list[Child]:
        """Return up to ``count`` children of a candidate, each by another operator as far as there are others.

        All operators of a round work at once; what they made is judged in the order
        of the children. A child that is refused draws another operator and tries again.

        Args:
            learned: What the update learned.
            base: The candidate to edit.
            count: How many.
            weights: Probability of each operator, by label.
        """
        step = learned.plan.step
        inputs = self._inputs(learned, base)
        chosen = draw_operators(weights, count, derive(self._run_seed, "operators", step))
        drafts = [_Draft(self.labels.index(label)) for label in chosen]
        self._archive.add(base.texts)
        for attempt in range(self._diversity.max_draws):
            pending = [(number, draft) for number, draft in enumerate(drafts) if draft.made is None]
            edits = await together(
                self._edited(self.operators[draft.operator], draft.operator, inputs, base, step, number, attempt)
                for number, draft in pending
            )
            for (_, draft), texts in zip(pending, edits, strict=True):
                draft.tried.append(draft.operator)
                draft.made = await self._judged(draft, texts, base, step)
            if not [d for number, d in pending if d.made is None and self._redraw(d, drafts, learned, weights, number)]:
                break
        return [draft.made for draft in drafts if draft.made is not None]

    async def edited(self, learned: Learned, base: Candidate, chosen: Sequence[int]) -> Candidate:
        """Return a candidate with the edits of several operators, one after the other; for a trunk.

        Args:
            learned: What an update learned.
            base: The text so far.
            chosen: Positions of the operators.
        """
        for position in chosen:
            inputs = self._inputs(learned, base)
            operator = self.operators[position]
            texts = await self._edited(operator, position, inputs, base, learned.plan.step, 0, 0)
            base = base.edited(texts)
        return base

    def _inputs(self, learned: Learned, base: Candidate) -> dict[str, OperatorInput]:
        rows = [row.example for row in learned.plan.rows]
        found = {}
        for component, lessons in learned.lessons.items():
            if self._ledger is not None and lessons.rewrite is None:
                older = self._ledger.offer(component, base.texts[component], lessons.lessons)
                self._ledger.add(component, lessons.lessons)
                lessons = replace(lessons, lessons=(*lessons.lessons, *older))
            runs = predictor_runs(component, zip(rows, learned.rollouts, strict=True))
            found[component] = operator_input(
                self._student, component, base.texts, lessons, seed=self._seed.texts, runs=runs, guards=self._guards,
                perfect_score=self._perfect_score,
            )  # fmt: skip
        return found

    async def _edited(
        self,
        operator: Operator,
        position: int,
        inputs: Mapping[str, OperatorInput],
        base: Candidate,
        step: int,
        number: int,
        attempt: int,
    ) -> dict[str, str]:
        """Return the components that an operator changes; what is refused is said."""
        contexts = {
            component: self._learner.context(component, base, step).at("operator", position, number, attempt)
            for component in inputs
        }
        outcomes = await together(operator.apply(given, contexts[component]) for component, given in inputs.items())
        texts: dict[str, str] = {}
        for (component, given), outcome in zip(inputs.items(), outcomes, strict=True):
            edit, refusal = self._allowed(component, given, outcome, step)
            if refusal is None and edit is not None:
                changed = edit_components(edit, component, base.texts)
                texts.update(changed)
                refusal = None if changed else Refusal("the text would not change")
            if refusal is not None:
                self._refused(self.labels[position], refusal, base, step, component)
        return texts

    def _allowed(
        self, component: str, given: OperatorInput, outcome: Edit | Refusal, step: int
    ) -> tuple[Edit | None, Refusal | None]:
        if isinstance(outcome, Refusal):
            return None, outcome
        judged = guard_input(given, component)
        if self._copies is not None:
            outcome, dropped = without_copies(outcome, judged, self._copies)
            if dropped:
                self._emit("refused", {"operator": "guards", "reason": "copies a training example", "lines": dropped},
                           step=step, component=component)  # fmt: skip
                if self._ledger is not None:
                    self._ledger.refuse(component, dropped)
        return outcome, check(outcome, self._guards, judged, self._copies)

    async def _judged(self, draft: _Draft, texts: Mapping[str, str], base: Candidate, step: int) -> Child | None:
        if not texts:
            return None
        candidate, operator = base.edited(texts), self.operators[draft.operator]
        refusal = await asyncio.to_thread(self._archive.refuses, candidate.texts, base.texts, operator.near_parent)
        if refusal is not None:
            self._refused(self.labels[draft.operator], refusal, base, step)
            return None
        self._archive.add(candidate.texts)
        components = tuple(dict.fromkeys(name.split("::")[0] for name in texts))
        return Child(candidate, self.labels[draft.operator], components)

    def _redraw(
        self, draft: _Draft, drafts: Sequence[_Draft], learned: Learned, weights: Mapping[str, float], number: int
    ) -> bool:
        """Give a refused child another operator; return whether there is one."""
        # What applies the scan's lessons would make the text again that it made for a sibling.
        taken = {place for other in drafts for place in (*other.tried, other.operator)}
        left = {
            self.labels[place]: weights.get(self.labels[place], 1.0)
            for place, operator in enumerate(self.operators)
            if place not in (taken if operator.needs_lessons else draft.tried)
        }
        if not left or len(draft.tried) >= self._diversity.max_draws:
            return False
        stream = derive(self._run_seed, "redraw", learned.plan.step, number, len(draft.tried))
        draft.operator = self.labels.index(draw_operators(left, 1, stream)[0])
        return True

    def _refused(self, operator: str, refusal: Refusal, parent: Candidate, step: int, component: str = "") -> None:
        data = {"operator": operator, "reason": refusal.reason, "parent": parent.id}
        self._emit("refused", data, step=step, component=component)

    async def similarity(self, candidates: Sequence[Candidate]) -> float | None:
        """Return how alike candidates are, 0 to 1; see :meth:`combee_dspy.diversity.Archive.similarity`."""
        return await asyncio.to_thread(self._archive.similarity, [one.texts for one in candidates])
