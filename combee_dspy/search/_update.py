"""One update up to its lessons: rollouts, reflections, and what an aggregator makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import dspy

from combee_dspy.aggregators import measure_retention, together
from combee_dspy.artifacts import Trajectory
from combee_dspy.evaluation import DEFAULT_PERFECT_SCORE, perfect_score_of
from combee_dspy.events import CopiesRemoved, ScanEnded, ScanLesson, ScanReflection
from combee_dspy.lessons import Book, BookEdit
from combee_dspy.records import FailedCall, Lesson, Lessons, Reflection, Role, Rollout
from combee_dspy.search._budget import BudgetReached
from combee_dspy.search._candidates import Compilation, EffectPlace, Row
from combee_dspy.search._contexts import Contexts
from combee_dspy.search._effects import Effects
from combee_dspy.search._failures import Failures
from combee_dspy.search._feedback import Records
from combee_dspy.search._plans import Learned, UpdatePlan
from combee_dspy.search._recorded import Recorded
from combee_dspy.strategies import AskFn, StrategyContext

__all__ = ["UpdateLearner"]


@dataclass(eq=False)
class UpdateLearner:
    """Runs a minibatch and learns from it. Lives on the search's loop.

    Each trajectory is reflected on as soon as its rollout is there, and an
    aggregator reads a shard as soon as its reflections are; nothing waits for
    the whole minibatch that need not.
    """

    task: Compilation
    effects: Effects
    failures: Failures
    contexts: Contexts

    def __post_init__(self) -> None:
        task, settings = self.task, self.task.settings
        self._settings = settings
        self._recorded = Recorded(task, self.effects)
        self._records = Records(task, self.effects, self._recorded)
        # A proposer of the user's takes the records themselves, and some operators take nothing.
        needs = not task.proposes_itself and (
            not task.edits_instructions
            or any(operator.needs_lessons for operator in settings.operators)
        )
        self._aggregator = settings.aggregator if needs else None

    async def learn(
        self, plan: UpdatePlan, select: Callable[[Sequence[Rollout]], Sequence[str]]
    ) -> Learned:
        """Run the minibatch and return what it teaches.

        Args:
            plan: What the update runs.
            select: Chooses components from the rollouts, where the parent names none and there is
                something to learn.
        """
        futures = [self._rollout(plan, row) for row in plan.rows]
        components = plan.parent.components
        first = [self.failures.first("train", futures)] if plan.step == 0 else []
        worth: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        run: Any  # the rollouts, then what was learned of each component
        if components is None:
            run = await together([self._all_run(futures, worth), *first])
            first = []
            components = tuple(select(run[0])) if worth.result() else ()
        learning = (self._component(plan, name, futures, worth) for name in components)
        run = await together([self._all_run(futures, worth), together(learning), *first])
        rollouts, learned = tuple(run[0]), dict(zip(components, run[1], strict=True))
        if not worth.result():
            return Learned(plan, rollouts, skipped="no rollout made a mistake")
        return Learned(
            plan,
            rollouts,
            {name: lessons for name, (lessons, _) in learned.items()},
            {name: reflections for name, (_, reflections) in learned.items()},
        )

    def _rollout(self, plan: UpdatePlan, row: Row) -> Awaitable[Rollout]:
        if row.recorded is not None:
            return self._recorded.rollout(row, row.recorded, plan.step)
        return self.effects.rollout(plan.parent.candidate, row, EffectPlace("train", plan.step))

    async def relate(
        self, learned: Learned, books: Mapping[str, Book]
    ) -> dict[str, tuple[BookEdit, ...]]:
        """Return, by component, edits that relate what an update learned to the rest of a book,
        which holds it.

        None where the update's own lessons have them.
        """
        if self._aggregator is None or not self.task.is_trunk:
            return {}
        step, parent = learned.plan.step, learned.plan.parent.candidate
        artifact = self._settings.artifact
        edits: dict[str, tuple[BookEdit, ...]] = {}
        for component, lessons in learned.lessons.items():
            fresh = wordings(lessons)
            if fresh:
                context = self.contexts.make(component, parent, step)
                context = replace(
                    context,
                    text=await asyncio.to_thread(artifact.excerpt, context.text, ()),
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
        reason = self.effects.past_decision(decision)
        if reason is None:
            try:
                return await call(signature, inputs, place, role)
            except BudgetReached as reached:
                cut = f"BudgetReached: {reached}"
            reason = await self.effects.decide(decision, lambda: cut, step=step)
        return FailedCall(reason)

    async def _all_run(
        self, futures: Sequence[Awaitable[Rollout]], worth: asyncio.Future[bool]
    ) -> list[Rollout]:
        """Wait for all rollouts; ``worth`` tells as soon as it is known whether there is anything
        to learn.
        """

        async def look(future: Awaitable[Rollout]) -> Rollout:
            rollout = await asyncio.shield(future)
            if not worth.done() and not self._nothing([rollout]):
                worth.set_result(True)
            return rollout

        rollouts = await together(look(future) for future in futures)
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
        plan: UpdatePlan,
        component: str,
        futures: Sequence[Awaitable[Rollout]],
        worth: asyncio.Future[bool],
    ) -> tuple[Lessons, tuple[Reflection, ...]]:
        context = self.contexts.make(component, plan.parent.candidate, plan.step)
        reflections = [
            asyncio.ensure_future(self._reflect(plan, position, future, component, context, worth))
            for position, future in enumerate(futures)
        ]
        try:
            if self._aggregator is None:
                lessons = Lessons(component)
            else:
                lessons = await self._settings.artifact.learn(
                    reflections, self._aggregator, context
                )
                lessons = await asyncio.to_thread(self._in_own_words, lessons, context)
            read = tuple(each for each in await asyncio.gather(*reflections) if each is not None)
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
        if self.contexts.copies is None:
            return lessons
        own = [self.task.seed.texts[component] for component in self.task.components]
        own_lessons: list[Lesson] = []
        refused: list[str] = []
        for lesson in lessons.lessons:
            text, copied = self.contexts.copies.cut(lesson.text, own)
            refused.extend(copied)
            own_lessons += [replace(lesson, text=text)] if text else []
        if refused:
            context.emit(CopiesRemoved(tuple(refused), len(refused)))
        return replace(lessons, lessons=tuple(own_lessons))

    async def _tell_scan(
        self, lessons: Lessons, read: Sequence[Reflection], context: StrategyContext
    ) -> None:
        """Keep the scan as an event."""
        retained = await asyncio.to_thread(measure_retention, lessons, read)
        examples = {reflection.index: reflection.example_id for reflection in read}
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
        plan: UpdatePlan,
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
        record = await self._records.make(plan, row, rollout, component)
        example = self.effects.texts.example(row.example)
        is_recorded = row.recorded is not None
        trajectory = Trajectory(position, example, rollout, record, is_recorded=is_recorded)
        reflection = await self._settings.artifact.reflect(trajectory, component, context)
        if reflection is None or not self._settings.skip_perfect_score:
            return reflection
        return replace(reflection, perfect=self._is_perfect(rollout))


def wordings(lessons: Lessons) -> list[str]:
    """Return the texts of lessons that enter a book; none where they are a whole text, which stands
    outside.
    """
    if lessons.rewrite is not None:
        return []
    return [" ".join(lesson.text.split()) for lesson in lessons.lessons if lesson.text.strip()]
