"""Children of a candidate: operators edit, guards refuse."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from combee_dspy.aggregators import together
from combee_dspy.diversity import Archive
from combee_dspy.evaluation import perfect_score_of
from combee_dspy.events import ChildRefused, CopiesRemoved
from combee_dspy.guards import check, check_program
from combee_dspy.operators import (
    Operator,
    OperatorInput,
    decode_fields,
    edit_components,
    guard_input,
    operator_input,
    predictor_runs,
    without_copies,
)
from combee_dspy.records import Edit, Lessons, Refusal, fields_key
from combee_dspy.search._books import Share, Shares
from combee_dspy.search._candidates import Candidate
from combee_dspy.search._contexts import Contexts
from combee_dspy.search._keeper import Child, Learned
from combee_dspy.streams import derive

logger = logging.getLogger("combee_dspy")


@dataclass(eq=False)
class Proposer:
    """Makes children of a candidate from what an update learned. Takes one update at a time, in
    order.
    """

    contexts: Contexts

    def __post_init__(self) -> None:
        self._task, self.books = self.contexts.task, self.contexts.books
        self._settings, self._emit = self._task.settings, self.contexts.effects.emit
        self._operators = self._settings.operators
        self.labels = _labels(self._operators)
        self._archive = Archive(self._settings.diversity)
        self.shares = Shares(self._settings.staleness)
        texts = self._task.seed.texts
        described = {
            name: decode_fields(texts.get(fields_key(name), "")) for name in self._task.components
        }
        own = {name: texts[name] for name in described}
        check_program(self._settings.guards, own, described)

    async def children(self, learned: Learned, base: Candidate, count: int) -> list[Child]:
        """Return up to ``count`` children of a candidate, by different operators where it can.

        Operators take turns in a drawn order, as many at once as children are missing: where one is
        refused, the next has its turn. Where all are refused, the first that was only too similar
        is returned: spelling cannot tell a paraphrase from the next lesson of the same form ("a
        parcel goes to shipping", "a courier goes to shipping"), and validation can.
        """
        step = learned.plan.step
        shares = {
            component: self.shares.offer(step, component, base, lessons, self.books.now[component])
            for component, lessons in learned.lessons.items()
        }
        inputs = self._inputs(learned, base, shares)
        self._archive.add(base.texts)
        children: list[Child] = []
        alike: list[Child] = []
        turns = list(enumerate(self._order(count, step)))
        while turns and len(children) < count:
            missing = count - len(children)
            batch, turns = turns[:missing], turns[missing:]
            edits = await together(
                self._edited(operator, inputs, base, step, turn) for turn, operator in batch
            )
            for (_, operator), texts in zip(batch, edits, strict=True):
                if not texts:
                    continue
                components = tuple(dict.fromkeys(name.split("::")[0] for name in texts))
                child = Child(base.edited(texts), self.labels[operator], components)
                more = shares if self._operators[operator].needs_lessons else {}
                held = {name: share for name, share in more.items() if name in components}
                self.shares.note(child.candidate, base, held)
                near = self._operators[operator].near_parent
                refusal = await asyncio.to_thread(
                    self._archive.refuses, child.candidate.texts, base.texts, near
                )
                if refusal is None:
                    self._archive.add(child.candidate.texts)
                    children.append(child)
                    continue
                self._refused(operator, refusal, base, step)
                if not self._archive.repeats(child.candidate.texts):
                    alike.append(child)
        if not children and alike:
            self._archive.add(alike[0].candidate.texts)
            return alike[:1]
        return children

    def _order(self, count: int, step: int) -> list[int]:
        """Draw the order of operators; where there are fewer than children, again and again."""
        stream, places = derive(self._settings.seed, "operators", step), range(len(self._operators))
        rounds = -(-count // len(places))
        return [place for _ in range(rounds) for place in stream.sample(places, len(places))]

    async def edited(self, learned: Learned, base: Candidate) -> Candidate:
        """Return a candidate with the edits of all operators, one after the other."""
        shares = {
            component: Share(self.books.now[component], lessons)
            for component, lessons in learned.lessons.items()
        }
        for operator in range(len(self._operators)):
            inputs = self._inputs(learned, base, shares)
            base = base.edited(await self._edited(operator, inputs, base, learned.plan.step, 0))
        return base

    def allows(self, base: Candidate, text: Candidate) -> bool:
        """Return whether guards and operators' budgets let a text take the place of another."""
        guards, copies = self._settings.guards, self.contexts.copies
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
                guards=guards,
            )
            judged = guard_input(material, component)
            if check(Edit(instruction=new), guards, judged, copies) is not None:
                return False
            if not all(operator.fits(new, material.instruction) for operator in self._operators):
                return False
        return True

    def _inputs(
        self, learned: Learned, base: Candidate, shares: Mapping[str, Share]
    ) -> dict[str, OperatorInput]:
        rows = self.contexts.examples(learned.plan.rows)
        scores = [rollout.score for rollout in learned.rollouts]
        perfect_score = perfect_score_of(
            self._settings.perfect_score, [learned.plan.perfect_score, *scores]
        )
        inputs = {}
        for component, share in shares.items():
            runs = predictor_runs(component, zip(rows, learned.rollouts, strict=True))
            inputs[component] = operator_input(
                self._task.student,
                component,
                base.texts,
                share.lessons,
                seed=self._task.seed.texts,
                runs=runs,
                guards=self._settings.guards,
                perfect_score=perfect_score,
                book=share.book,
            )
        return inputs

    async def _edited(
        self,
        operator: int,
        inputs: Mapping[str, OperatorInput],
        base: Candidate,
        step: int,
        turn: int,
    ) -> dict[str, str]:
        """Return the components that an operator changes; note what is refused.

        ``turn`` is the place of its calls in the update.
        """
        outcomes = await together(
            self._operators[operator].apply(
                material, self.contexts.make(component, base, step).at("operator", operator, turn)
            )
            for component, material in inputs.items()
        )
        texts: dict[str, str] = {}
        for (component, material), outcome in zip(inputs.items(), outcomes, strict=True):
            changed = self._changed(component, material, outcome, base, step)
            if isinstance(changed, Refusal):
                self._refused(operator, changed, base, step, component)
            else:
                texts |= changed
        return texts

    def _changed(
        self,
        component: str,
        material: OperatorInput,
        outcome: Edit | Refusal,
        base: Candidate,
        step: int,
    ) -> dict[str, str] | Refusal:
        """Return the components that an edit changes, without what it copied; or its refusal."""
        if isinstance(outcome, Refusal):
            return outcome
        judged, copies = guard_input(material, component), self.contexts.copies
        if copies is not None:
            outcome, lines = without_copies(outcome, judged, copies)
            if lines:
                self._emit(CopiesRemoved(tuple(lines), len(lines)), step=step, component=component)
        allowed = check(outcome, self._settings.guards, judged, copies) or outcome
        if isinstance(allowed, Refusal):
            return allowed
        changed = edit_components(allowed, component, base.texts)
        return changed or Refusal("the text would not change")

    def _refused(
        self, operator: int, refusal: Refusal, parent: Candidate, step: int, component: str = ""
    ) -> None:
        event = ChildRefused(self.labels[operator], refusal.reason, parent.id)
        self._emit(event, step=step, component=component)


def _labels(operators: Sequence[Operator]) -> tuple[str, ...]:
    """Return one label per operator: its name, numbered from the second of that name."""
    names = [operator.name for operator in operators]
    earlier = (names[:place].count(name) for place, name in enumerate(names))
    return tuple(
        f"{name} {count + 1}" if count else name for name, count in zip(names, earlier, strict=True)
    )
