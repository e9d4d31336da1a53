"""One update up to its lessons: rollouts, reflections, and what an aggregator makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from combee_dspy.aggregators import measure_retention, together
from combee_dspy.artifacts import Trajectory
from combee_dspy.evaluation import perfect_score_of
from combee_dspy.events import ScanEnded, ScanLesson, ScanReflection
from combee_dspy.lessons import Book, BookEdit
from combee_dspy.records import Lessons, Reflection, Rollout
from combee_dspy.search._candidates import Compilation, EffectPlace, Row
from combee_dspy.search._contexts import Contexts
from combee_dspy.search._effects import Effects, cancel, silence
from combee_dspy.search._judging import Failures
from combee_dspy.search._keeper import Learned, UpdatePlan
from combee_dspy.search._recorded import Recorded
from combee_dspy.search._records import Records
from combee_dspy.strategies import StrategyContext

# Reflections that an aggregator is shown where it relates the lessons of several updates.
_REMEMBERED = 2_000


@dataclass(frozen=True, slots=True)
class _Running:
    """A minibatch under way.

    Attributes:
        rollouts: In the order of the rows. Several wait for each: shield it.
        teaches: Whether any rollout made a mistake, as soon as that is known. Shield it, too.
    """

    plan: UpdatePlan
    rollouts: Sequence[Awaitable[Rollout]]
    teaches: asyncio.Future[bool]

    async def all_rollouts(self) -> list[Rollout]:
        return await asyncio.gather(*map(asyncio.shield, self.rollouts))


@dataclass(eq=False)
class UpdateLearner:
    """Runs a minibatch and learns from it. Lives on the search's loop.

    Each trajectory is reflected on as soon as its rollout is there, and an aggregator reads a shard
    as soon as its reflections are. Nothing waits for the whole minibatch without need.

    Attributes:
        select: Chooses components from the rollouts, where the parent names none and there is
            something to learn.
    """

    task: Compilation
    effects: Effects
    failures: Failures
    contexts: Contexts
    select: Callable[[UpdatePlan, Sequence[Rollout]], Sequence[str]]

    def __post_init__(self) -> None:
        task, settings = self.task, self.task.settings
        self._settings = settings
        self._recorded = Recorded(task, self.effects)
        self._records = Records(task, self.effects, self._recorded)
        # A proposer of the user's takes the records themselves, and some operators take nothing.
        needs_lessons = not task.proposes_itself and (
            not task.edits_instructions
            or any(operator.needs_lessons for operator in settings.operators)
        )
        self._aggregator = settings.aggregator if needs_lessons else None
        self._read: dict[str, tuple[Reflection, ...]] = {}  # by component, the latest last

    async def learn(self, plan: UpdatePlan) -> Learned:
        """Run the minibatch and return what it teaches."""
        rollouts = [self._rollout(plan, row) for row in plan.rows]
        teaches = asyncio.ensure_future(self._teaches(plan, rollouts))
        teaches.add_done_callback(silence)
        running = _Running(plan, rollouts, teaches)
        first = [self.failures.check_first("train", rollouts)] if plan.step == 0 else []
        try:
            results: Any = await together([self._learn(running), *first])
            learned: Learned = results[0]
            return learned
        finally:
            teaches.cancel()

    async def _learn(self, running: _Running) -> Learned:
        plan, components = running.plan, running.plan.parent.components
        if components is None:
            seen, teaches = await running.all_rollouts(), await asyncio.shield(running.teaches)
            components = tuple(self.select(plan, seen)) if teaches else ()
        learned = await together(self._component(running, name) for name in components)
        rollouts = tuple(await running.all_rollouts())
        if not await asyncio.shield(running.teaches):
            return Learned(plan, rollouts, skipped="no rollout made a mistake")
        return Learned(
            plan,
            rollouts,
            {name: lessons for name, (lessons, _) in zip(components, learned, strict=True)},
            {name: read for name, (_, read) in zip(components, learned, strict=True)},
        )

    def _rollout(self, plan: UpdatePlan, row: Row) -> Awaitable[Rollout]:
        if row.recorded is not None:
            return self._recorded.rollout(row, row.recorded, plan.step)
        return self.effects.rollout(plan.parent.candidate, row, EffectPlace("train", plan.step))

    async def _teaches(self, plan: UpdatePlan, rollouts: Sequence[Awaitable[Rollout]]) -> bool:
        """Return, as soon as it is known, whether any rollout of a minibatch made a mistake."""
        ended: list[Rollout] = []
        for rollout in asyncio.as_completed(rollouts):
            ended.append(await rollout)
            if not self._is_flawless(plan, ended[-1:]):
                return True
        return not self._is_flawless(plan, ended)

    def _is_flawless(self, plan: UpdatePlan, rollouts: Sequence[Rollout]) -> bool:
        scores = (rollout.score for rollout in rollouts)
        perfect_score = perfect_score_of(
            self._settings.perfect_score, [plan.perfect_score, *scores]
        )
        # A row that could not be scored says nothing about the answer.
        return self._settings.skip_perfect_score and all(
            rollout.score >= perfect_score or rollout.failed_in == "metric" for rollout in rollouts
        )

    async def _component(
        self, running: _Running, component: str
    ) -> tuple[Lessons, tuple[Reflection, ...]]:
        plan = running.plan
        context = self.contexts.make(component, plan.parent.candidate, plan.step)
        reflections = [
            asyncio.ensure_future(self._reflect(running, position, component, context))
            for position in range(len(plan.rows))
        ]
        try:
            lessons = Lessons(component)
            if self._aggregator is not None:
                artifact = self._settings.artifact
                lessons = await artifact.learn(reflections, self._aggregator, context)
                lessons = await asyncio.to_thread(
                    self.contexts.without_copies, lessons, context.emit
                )
            read = tuple(each for each in await asyncio.gather(*reflections) if each is not None)
        finally:
            await cancel(*reflections)
        if self._aggregator is not None and lessons.nodes:
            name, copies = self._aggregator.name, self._aggregator.copies
            context.emit(await asyncio.to_thread(_describe_scan, name, copies, lessons, read))
        return lessons, read

    async def _reflect(
        self, running: _Running, position: int, component: str, context: StrategyContext
    ) -> Reflection | None:
        row = running.plan.rows[position]
        rollout = await asyncio.shield(running.rollouts[position])
        if running.plan.step == 0:
            # Readings begin, and leave of a limit on cost what the text has yet to pay.
            due = self.contexts.pool.kept_back(len(running.plan.rows), is_first=True)
            self.effects.purse.keep_validation(due)
        # A success alone teaches nothing, and to reflect on it may cost: a mistake must be among
        # the rollouts.
        if not await asyncio.shield(running.teaches):
            return None
        record = await self._records.make(running.plan, row, rollout, component)
        example = self.effects.texts.example(row.example)
        is_recorded = row.recorded is not None
        trajectory = Trajectory(position, example, rollout, record, is_recorded=is_recorded)
        reflection = await self._settings.artifact.reflect(trajectory, component, context)
        # The rest of its minibatch may be under way.
        is_perfect = self._is_flawless(running.plan, [rollout])
        return None if reflection is None else replace(reflection, perfect=is_perfect)

    async def relate(
        self, learned: Learned, books: Mapping[str, Book]
    ) -> dict[str, tuple[BookEdit, ...]]:
        """Return, by component, edits that relate an update's lessons to the rest of a book that
        holds them; none where the lessons have their edits already.
        """
        if not self.task.is_trunk:
            return {}
        edits = await together(
            self._related(learned, name, books[name]) for name in learned.lessons
        )
        return dict(zip(learned.lessons, edits, strict=True))

    async def _related(self, learned: Learned, component: str, book: Book) -> tuple[BookEdit, ...]:
        read = (*self._read.get(component, ()), *learned.reflections[component])[-_REMEMBERED:]
        self._read[component] = read
        wordings = _wordings(learned.lessons[component])
        if self._aggregator is None or not wordings:
            return ()
        plan, artifact = learned.plan, self._settings.artifact
        context = self.contexts.make(component, plan.parent.candidate, plan.step)
        context = replace(
            context,
            text=await asyncio.to_thread(artifact.excerpt, context.text, ()),
            book=book,
            reflections=read,
        )
        return await self._aggregator.relate(wordings, context)


def _wordings(lessons: Lessons) -> list[str]:
    """Return the texts of lessons that enter a book: none where they are a whole text."""
    if lessons.rewrite is not None:
        return []
    return [" ".join(lesson.text.split()) for lesson in lessons.lessons if lesson.text.strip()]


def _describe_scan(
    aggregator: str, copies: int, lessons: Lessons, read: Sequence[Reflection]
) -> ScanEnded:
    """Return the event of a scan: what it made of its reflections, and which of them it lost."""
    examples = {reflection.index: reflection.example_id for reflection in read}
    return ScanEnded(
        aggregator=aggregator,
        n=len(read),
        copies=copies,
        nodes=lessons.nodes,
        lessons=tuple(ScanLesson(lesson.text, lesson.sources) for lesson in lessons.lessons),
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
            for reflection in measure_retention(lessons, read)
        ),
    )
