"""One update up to its lessons: rollouts, reflections, and what an aggregator makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import dspy

from combee_dspy._private import InstructionProposer
from combee_dspy.aggregators import Aggregator, measure_retention, together
from combee_dspy.artifacts import Artifact, Trajectory
from combee_dspy.evaluation import DEFAULT_PERFECT_SCORE, Judge, perfect_score_of
from combee_dspy.events import (
    CopiesRemoved,
    ErrorRaised,
    ScanEnded,
    ScanLesson,
    ScanReflection,
    WarningRaised,
)
from combee_dspy.guards import CopyIndex, guard_notes
from combee_dspy.lessons import Book, BookEdit
from combee_dspy.operators import decode_fields
from combee_dspy.records import FailedCall, Lesson, Lessons, Reflection, Role, Rollout, fields_key
from combee_dspy.search._budget import BudgetReached
from combee_dspy.search._candidates import Candidate, Compilation, Place, Row
from combee_dspy.search._effects import Effects
from combee_dspy.search._failures import Failures
from combee_dspy.search._pool import Pool
from combee_dspy.search._recorded import Recorded
from combee_dspy.search._records import (
    call_to_show,
    code_record,
    failed_record,
    feedback_failed,
    predictor_feedback,
    shown_call,
    unscored,
)
from combee_dspy.strategies import AskFn, StrategyContext
from combee_dspy.streams import derive

__all__ = ["Learned", "Learner", "Parent", "Plan"]


@dataclass(frozen=True, slots=True)
class Parent:
    """What an update runs on, decided when it begins.

    Attributes:
        index: Its position in the pool; −1 where it has none yet.
        components: What will be edited; ``None`` where that hangs on the rollouts.
        weights: Probability of each operator, by label.
    """

    candidate: Candidate
    index: int
    components: tuple[str, ...] | None
    weights: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Plan:
    """What an update runs, decided before it begins: a parent on the rows of a minibatch.

    Attributes:
        children: How many candidates it may make.
    """

    step: int
    parent: Parent
    rows: tuple[Row, ...]
    children: int


@dataclass(frozen=True, slots=True)
class Learned:
    """What an update learned; lessons and reflections are by component.

    Attributes:
        rollouts: The parent's, in minibatch order.
        lessons: Empty where nothing was learned.
        reflections: Those that teach something.
        skipped: Why nothing was learned, else empty.
    """

    plan: Plan
    rollouts: tuple[Rollout, ...]
    lessons: Mapping[str, Lessons] = field(default_factory=dict)
    reflections: Mapping[str, tuple[Reflection, ...]] = field(default_factory=dict)
    skipped: str = ""


class Learner:
    """Runs a minibatch and learns from it. Lives on the search's loop.

    Each trajectory is reflected on as soon as its rollout is there, and an
    aggregator reads a shard as soon as its reflections are; nothing waits for
    the whole minibatch that need not. ``book`` returns a component's book as an update left it.
    """

    def __init__(
        self,
        task: Compilation,
        effects: Effects,
        pool: Pool,
        failures: Failures,
        book: Callable[[str, int], Book],
    ) -> None:
        settings = task.settings
        self._book = book
        self._task = task
        self._settings = settings
        self._effects = effects
        self._pool = pool
        self._failures = failures
        self._artifact: Artifact = settings.artifact
        reads = [one for one in settings.operators if one.needs_lessons]
        # A proposer of the user's takes the records themselves, and some operators take nothing.
        needs = not task.proposes_itself and (bool(reads) or not task.edits_instructions)
        self._aggregator: Aggregator | None = settings.aggregator if needs else None
        # Whether whoever gets the lessons reads all of them in one call.
        joined = bool(settings.operators) and all(one.joins_lessons for one in reads)
        self._joined_later = joined and not task.proposes_itself
        # A text that grows takes relations in later; a candidate of a front stays as it was made.
        self._related_later = task.is_trunk
        self._as_objects = isinstance(
            settings.instruction_proposer, (InstructionProposer, type(None))
        )
        # The training examples' runs of words, where no text may hold them.
        self.copies: CopyIndex | None = None
        if task.edits_instructions and settings.guards.max_copied_words is not None:
            rows = (*task.splits.learned, *task.anchors)
            self.copies = CopyIndex(self.examples(rows), settings.guards.max_copied_words)
        self._recorded = Recorded(task, effects)
        self._warned = not settings.warn_on_score_mismatch

    def examples(self, rows: Sequence[Row]) -> list[dspy.Example]:
        """Return examples as strategies may see them."""
        return [self._effects.texts.example(row.example) for row in rows]

    def context(self, component: str, candidate: Candidate, step: int) -> StrategyContext:
        """Return what a strategy gets for one component of one update."""
        return StrategyContext(
            component=component,
            text=candidate.texts.get(component, ""),
            call=partial(self._effects.call, step=step, temperature=self._temperature(step)),
            emit=partial(self._effects.log.emit, step=step, component=component),
            update=step,
            seed=self._settings.seed,
            notes=self._notes(component, candidate),
            joined_later=self._joined_later,
            related_later=self._related_later,
            longest_quote=None if self.copies is None else self._settings.guards.max_copied_words,
            book=self._book(component, step - 1 - self._settings.staleness),
        )

    def _temperature(self, step: int) -> float | None:
        schedule = self._settings.diversity.temperature
        if schedule is None:
            return None
        # What is known for sure when the update begins, so that it never hangs on arrival.
        known = [score for made, score in self._pool.history if made <= step - self._task.behind]
        best = max(range(len(known)), key=lambda place: known[place], default=0)
        return float(schedule.at(step, max(0, len(known) - 1 - best)))

    def _notes(self, component: str, candidate: Candidate) -> str:
        """Return what a proposer must know about a component's text."""
        if not self._task.edits_instructions:
            return self._artifact.task(self._task.student)
        described = decode_fields(candidate.texts.get(fields_key(component), ""))
        text, seed = candidate.texts[component], self._task.seed.texts[component]
        return guard_notes(self._settings.guards, component, text, described, seed)

    async def learn(
        self, plan: Plan, select: Callable[[Sequence[Rollout]], Sequence[str]]
    ) -> Learned:
        """Run the minibatch and return what it teaches.

        Args:
            plan: What the update runs.
            select: Chooses components from the rollouts, where the parent names none and there is
                something to learn.
        """
        futures = [self._rollout(plan, row) for row in plan.rows]
        components = plan.parent.components
        ran: Any  # the rollouts, then one entry a component
        first = [self._failures.first("train", futures)] if plan.step == 0 else []
        if components is None:
            ran = await asyncio.gather(asyncio.gather(*futures), *first)
            rollouts = ran[0]
            first = []
            if self._nothing(rollouts):
                return Learned(plan, tuple(rollouts), skipped="no rollout made a mistake")
            components = tuple(select(rollouts))
        worth: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        ran = await together(
            [
                self._all_run(futures, worth),
                *(self._component(plan, name, futures, worth) for name in components),
                *first,
            ]
        )
        rollouts, found = ran[0], ran[1 : 1 + len(components)]
        if self._nothing(rollouts):
            return Learned(plan, tuple(rollouts), skipped="no rollout made a mistake")
        taught = dict(zip(components, found, strict=True))
        lessons, reflections = (
            {name: one[part] for name, one in taught.items()} for part in range(2)
        )
        return Learned(plan, tuple(rollouts), lessons, reflections)

    def _rollout(self, plan: Plan, row: Row) -> Awaitable[Rollout]:
        if row.recorded is not None:
            return self._recorded.rollout(row, row.recorded, plan.step)
        return self._effects.rollout(plan.parent.candidate, row, Place("train", plan.step))

    async def relate(
        self, learned: Learned, books: Mapping[str, Book]
    ) -> dict[str, tuple[BookEdit, ...]]:
        """Return, by component, edits that relate what an update learned to the rest of a book,
        which holds it.

        None where the update's own lessons have them.
        """
        if self._aggregator is None or not self._related_later:
            return {}
        step, parent = learned.plan.step, learned.plan.parent.candidate
        edits: dict[str, tuple[BookEdit, ...]] = {}
        for component, lessons in learned.lessons.items():
            fresh = wordings(lessons)
            if fresh:
                context = self.context(component, parent, step)
                context = replace(
                    context,
                    book=books[component],
                    call=partial(self._call_or_cut, context.call, step),
                )
                edits[component] = await self._aggregator.relate(fresh, context)
        return edits

    async def _call_or_cut(
        self,
        call: AskFn,
        step: int,
        signature: type[dspy.Signature],
        inputs: Mapping[str, Any],
        place: tuple[str | int, ...],
        role: Role,
    ) -> dspy.Prediction | FailedCall:
        """Ask an LM; a call that a budget cuts has failed, and stays so in a run that goes on with
        a larger one.

        What was compared before it is paid for, and counts.
        """
        decision = f"relate/{step}/{'/'.join(map(str, place))}"
        reason = self._effects.known(decision)
        if reason is None:
            try:
                return await call(signature, inputs, place, role)
            except BudgetReached as reached:
                cut = f"BudgetReached: {reached}"
            reason = await self._effects.decide(decision, lambda: cut, step=step)
        return FailedCall(reason)

    async def _all_run(
        self, futures: Sequence[Awaitable[Rollout]], worth: asyncio.Future[bool]
    ) -> list[Rollout]:
        """Wait for all rollouts; ``worth`` tells as soon as it is known whether there is anything
        to learn.
        """

        async def looked(future: Awaitable[Rollout]) -> Rollout:
            rollout = await asyncio.shield(future)
            if not worth.done() and not self._nothing([rollout]):
                worth.set_result(True)
            return rollout

        rollouts = await together(looked(future) for future in futures)
        if not worth.done():
            worth.set_result(not self._nothing(rollouts))
        return rollouts

    def _nothing(self, rollouts: Sequence[Rollout]) -> bool:
        scores = [rollout.score for rollout in rollouts]
        perfect_score = perfect_score_of(self._settings.perfect_score, scores)
        # A row that could not be scored says nothing about the answer.
        return self._settings.skip_perfect_score and all(
            rollout.score >= perfect_score or rollout.failed_in == "metric" for rollout in rollouts
        )

    def _is_perfect(self, rollout: Rollout) -> bool:
        """Whether a rollout made no mistake, judged before the others of its minibatch are
        there.
        """
        if rollout.failed_in == "metric":
            return True
        limit, score = self._settings.perfect_score, rollout.score
        # A score above the default may be a low one of a larger scale, so it is read.
        return score == limit if limit == DEFAULT_PERFECT_SCORE else score >= limit

    async def _component(
        self,
        plan: Plan,
        component: str,
        futures: Sequence[Awaitable[Rollout]],
        worth: asyncio.Future[bool],
    ) -> tuple[Lessons, tuple[Reflection, ...]]:
        context = self.context(component, plan.parent.candidate, plan.step)
        reflections = [
            asyncio.ensure_future(self._reflect(plan, position, future, component, context, worth))
            for position, future in enumerate(futures)
        ]
        try:
            if self._aggregator is None:
                lessons = Lessons(component)
            else:
                lessons = await self._artifact.learn(reflections, self._aggregator, context)
                lessons = await asyncio.to_thread(self._in_own_words, lessons, context)
            read = tuple(one for one in await asyncio.gather(*reflections) if one is not None)
        finally:
            for task in reflections:
                task.cancel()
            await asyncio.gather(*reflections, return_exceptions=True)
        if lessons.nodes:
            await self._tell_scan(lessons, read, context)
        return lessons, read

    def _in_own_words(self, lessons: Lessons, context: StrategyContext) -> Lessons:
        """Return lessons without what they copy from training examples, before anything is made of
        them.
        """
        if self.copies is None:
            return lessons
        own = [self._task.seed.texts[component] for component in self._task.components]
        kept_lessons: list[Lesson] = []
        refused: list[str] = []
        for lesson in lessons.lessons:
            text, copied = self.copies.cut(lesson.text, own)
            refused.extend(copied)
            kept_lessons += [replace(lesson, text=text)] if text else []
        if refused:
            context.emit(CopiesRemoved(tuple(refused), len(refused)))
        return replace(lessons, lessons=tuple(kept_lessons))

    async def _tell_scan(
        self, lessons: Lessons, read: Sequence[Reflection], context: StrategyContext
    ) -> None:
        """Keep the scan as an event."""
        retained = await asyncio.to_thread(measure_retention, lessons, read)
        examples = {one.index: one.example_id for one in read}
        scan = self._aggregator
        context.emit(
            ScanEnded(
                aggregator="" if scan is None else scan.name,
                n=len(read),
                copies=1 if scan is None else scan.copies,
                nodes=lessons.nodes,
                lessons=tuple(
                    ScanLesson(lesson.text, lesson.sources) for lesson in lessons.lessons
                ),
                retained=tuple(
                    ScanReflection(
                        reflection.index,
                        round(reflection.coverage, 4),
                        reflection.covered,
                        reflection.lost_at,
                        reflection.measurable,
                        reflection.lesson,
                        examples[reflection.index],
                    )
                    for reflection in retained
                ),
            )
        )

    async def _reflect(
        self,
        plan: Plan,
        position: int,
        future: Awaitable[Rollout],
        component: str,
        context: StrategyContext,
        worth: asyncio.Future[bool],
    ) -> Reflection | None:
        # Others wait for it too: to be cancelled here must not cancel it for them.
        rollout, row = await asyncio.shield(future), plan.rows[position]
        # A success alone teaches nothing, and to reflect on it may cost: a mistake must be among
        # the rollouts.
        if not await asyncio.shield(worth):
            return None
        record = await self._record(plan, row, rollout, component)
        example = self._effects.texts.example(row.example)
        is_recorded = row.recorded is not None
        trajectory = Trajectory(position, example, rollout, record, is_recorded=is_recorded)
        reflection = await self._artifact.reflect(trajectory, component, context)
        if reflection is None or not self._settings.skip_perfect_score:
            return reflection
        return replace(reflection, perfect=self._is_perfect(rollout))

    async def _record(
        self, plan: Plan, row: Row, rollout: Rollout, component: str
    ) -> Mapping[str, Any] | None:
        """Return GEPA's reflective record, with the metric's feedback on this predictor."""
        if row.recorded is not None:
            return await self._recorded.record(row, row.recorded, component, plan.step)
        if component in self._task.code:
            return code_record(self._effects.texts.example(row.example), rollout)
        stream = derive(self._settings.seed, "shown call", plan.step, component, row.hash)
        call = call_to_show(
            rollout,
            component,
            stream,
            format_failures=self._settings.add_format_failure_as_feedback,
        )
        if call is None:
            return failed_record(self._effects.texts.example(row.example), rollout)
        shown = shown_call(call, as_objects=self._as_objects)
        if rollout.failed_in == "metric":
            return {**shown, "Feedback": unscored(rollout)}
        whole = isinstance(self._effects.metric, Judge) or self._effects.texts.redacts
        if whole and rollout.prediction is not None:
            # Such a metric says the same of every predictor, or would be shown marks where it looks
            # for answers.
            return {**shown, "Feedback": rollout.feedback}
        program, number = (
            self._effects.programs.of(plan.parent.candidate),
            rollout.calls.index(call),
        )
        make = partial(
            predictor_feedback, program, self._effects.metric, row.example, rollout, call, component
        )
        where = Place("feedback", plan.step, component)
        key = self._effects.key(
            f"feedback/{plan.parent.candidate.id}/{row.hash[:16]}/{component}/{number}", where
        )
        late = partial(feedback_failed, rollout)
        said: Mapping[str, Any] = await self._effects.work(
            key, where, "evaluator", "feedback", make, late
        )
        if "error" in said:
            self._effects.log.emit(ErrorRaised("metric", said["error"]), step=plan.step)
        if said["score"] is not None and said["score"] != rollout.score and not self._warned:
            self._warned = True
            text = (
                f"The metric scores {said['score']} for predictor {component!r} and {rollout.score}"
                " for the program: the program's score counts. warn_on_score_mismatch=False"
                " silences this."
            )
            self._effects.log.emit(WarningRaised(text), step=plan.step)
        return {**shown, "Feedback": said["feedback"]}


def wordings(lessons: Lessons) -> list[str]:
    """Return the texts of lessons that enter a book; none where they are a whole text, which stands
    outside.
    """
    if lessons.rewrite is not None:
        return []
    return [" ".join(lesson.text.split()) for lesson in lessons.lessons if lesson.text.strip()]
