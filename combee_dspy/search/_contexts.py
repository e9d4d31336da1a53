"""The contexts of strategies: all that aggregators, artifacts and operators get of a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import dspy

from combee_dspy.events import CopiesRemoved
from combee_dspy.guards import CopyIndex, guard_notes
from combee_dspy.operators import decode_fields
from combee_dspy.records import FailedCall, Lessons, Role, fields_key
from combee_dspy.reflections import estimate_record_tokens
from combee_dspy.search._books import Books
from combee_dspy.search._candidates import Candidate, Compilation, Row
from combee_dspy.search._describe import budget_digest
from combee_dspy.search._effects import Effects
from combee_dspy.search._pool import CandidatePool
from combee_dspy.search._time_budget import BudgetReached
from combee_dspy.strategies import EmitFn, StrategyContext


@dataclass(eq=False)
class Contexts:
    """Makes the contexts of aggregators, artifacts and operators. Lives on the search's loop."""

    task: Compilation
    effects: Effects
    pool: CandidatePool
    books: Books

    def __post_init__(self) -> None:
        self._digest = budget_digest(self.task)
        self._too_long: dict[int, int] = {}  # estimated tokens of the shortest inputs, by update

    @cached_property
    def copies(self) -> CopyIndex | None:
        """The training examples' runs of words, where no text may hold them."""
        most = self.task.settings.guards.max_copied_words
        if not self.task.edits_instructions or most is None:
            return None
        return CopyIndex(self.examples(self.task.splits.learned), most)

    def examples(self, rows: Sequence[Row]) -> list[dspy.Example]:
        """Return examples as strategies may see them."""
        return [self.effects.texts.example(row.example) for row in rows]

    def without_copies(self, lessons: Lessons, emit: EmitFn) -> Lessons:
        """Return lessons without what they copy from training examples."""
        own = [self.task.seed.texts[component] for component in self.task.components]
        return lessons if self.copies is None else cut_copies(lessons, self.copies, own, emit)

    def make(self, component: str, candidate: Candidate, step: int) -> StrategyContext:
        """Return what a strategy gets for one component of one update."""
        settings = self.task.settings
        needing = (operator for operator in settings.operators if operator.needs_lessons)
        known = step - 1 - settings.staleness  # the last update whose calls have surely ended
        too_long = (tokens for update, tokens in self._too_long.items() if update <= known)
        return StrategyContext(
            component=component,
            text=candidate.texts.get(component, ""),
            call=partial(self._call, step, self._temperature(step)),
            emit=partial(self.effects.emit, step=step, component=component),
            update=step,
            seed=settings.seed,
            notes=self._notes(component, candidate),
            joined_later=not self.task.proposes_itself
            and all(operator.joins_lessons for operator in needing),
            # A text that grows is made once the book is related; a candidate of a front stays.
            related_later=self.task.is_trunk,
            longest_quote=None if self.copies is None else settings.guards.max_copied_words,
            too_long=min(too_long, default=None),
            book=self.books.after(component, known),
        )

    async def _call(
        self,
        step: int,
        temperature: float | None,
        signature: type[dspy.Signature],
        inputs: Mapping[str, object],
        place: tuple[str | int, ...],
        role: Role,
    ) -> dspy.Prediction | FailedCall:
        """Ask an LM, and note how long inputs were that the proposer's does not take."""
        ask = partial(
            self.effects.call, signature, inputs, place, role, step=step, temperature=temperature
        )
        answer = await self._ask_or_cut(ask, place, step)
        if role == "proposer" and isinstance(answer, FailedCall) and answer.too_long:
            tokens = estimate_record_tokens(inputs)
            self._too_long[step] = min(tokens, self._too_long.get(step, tokens))
        return answer

    async def _ask_or_cut(
        self,
        ask: Callable[[], Awaitable[dspy.Prediction | FailedCall]],
        place: tuple[str | int, ...],
        step: int,
    ) -> dspy.Prediction | FailedCall:
        """Ask an LM, unless a budget has no room for it.

        That ends the run after its update: what was learned before is paid for, and is validated.
        It stays so where the run is compiled again, unless with another budget.
        """
        effects = self.effects
        decision = f"cut-call/{self._digest}/{step}/{'/'.join(map(str, place))}"
        reason = effects.past_decision(decision)
        if reason is None:
            try:
                return await ask()
            except BudgetReached as reached:
                if not effects.purse.can_cut:
                    raise
                cut = str(reached)
            reason = await effects.decide(decision, lambda: cut, step=step)
        effects.purse.cut = reason
        return FailedCall(f"BudgetReached: {reason}")

    def _temperature(self, step: int) -> float | None:
        schedule = self.task.settings.diversity.temperature
        if schedule is None:
            return None
        # Only scores that are surely there when the update begins: speed must not matter.
        last = step - self.task.behind
        scores = [member.mean for member in self.pool.members if member.step <= last]
        best = max(range(len(scores)), key=scores.__getitem__, default=0)
        return float(schedule.at(step, max(0, len(scores) - 1 - best)))

    def _notes(self, component: str, candidate: Candidate) -> str:
        """Return what a proposer must know about a component's text."""
        settings = self.task.settings
        if not self.task.edits_instructions:
            return settings.artifact.task(self.task.student)
        described = decode_fields(candidate.texts.get(fields_key(component), ""))
        text, seed = candidate.texts[component], self.task.seed.texts[component]
        return guard_notes(settings.guards, component, text, described, seed)


def cut_copies(
    lessons: Lessons, copies: CopyIndex, own_texts: Sequence[str], emit: EmitFn
) -> Lessons:
    """Return lessons without what they copy from examples, but for what ``own_texts`` hold too."""
    texts, removed = copies.cut_lines((lesson.text for lesson in lessons.lessons), own_texts)
    if removed:
        emit(CopiesRemoved(tuple(removed), len(removed)))
    rest = zip(lessons.lessons, texts, strict=True)
    return replace(
        lessons, lessons=tuple(replace(lesson, text=text) for lesson, text in rest if text)
    )
