"""One update up to its lessons: rollouts, reflections, and what an aggregator makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from combee_dspy.aggregators import Aggregator, kept, together
from combee_dspy.artifacts import Artifact, Trajectory
from combee_dspy.records import Lessons, PredictorCall, Reflection, Rollout
from combee_dspy.search._candidates import Candidate, Row
from combee_dspy.search._effects import Effects, Place
from combee_dspy.search._records import call_to_show, predictor_feedback, shown_call
from combee_dspy.strategies import StrategyContext
from combee_dspy.streams import derive

__all__ = ["Learned", "Learner", "Plan"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What an update runs: decided before it begins.

    Attributes:
        step: The update.
        parent: The candidate that is run.
        parent_index: Its index in the pool; −1 where it has none.
        rows: The minibatch.
        components: What will be edited; ``None`` where that hangs on the rollouts.
        children: How many candidates it may make.
        extra: Reflections of earlier updates that are offered again, by component.
    """

    step: int
    parent: Candidate
    parent_index: int
    rows: tuple[Row, ...]
    components: tuple[str, ...] | None
    children: int = 1
    extra: Mapping[str, tuple[Reflection, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Learned:
    """What an update learned.

    Attributes:
        plan: What it ran.
        rollouts: The parent's, in minibatch order.
        lessons: By component; empty where nothing was learned.
        reflections: By component, those that teach something.
        lost: Reflections that the result of a scan does not cover, by component.
        skipped: Why nothing was learned, else empty.
    """

    plan: Plan
    rollouts: tuple[Rollout, ...]
    lessons: Mapping[str, Lessons] = field(default_factory=dict)
    reflections: Mapping[str, tuple[Reflection, ...]] = field(default_factory=dict)
    lost: Mapping[str, tuple[Reflection, ...]] = field(default_factory=dict)
    skipped: str = ""


@dataclass(frozen=True, slots=True)
class LearnerSettings:
    """How rollouts become reflections.

    Attributes:
        seed: The run's seed.
        perfect_score: The score of a success.
        skip_perfect: Whether minibatches and shards without a mistake are skipped.
        format_failures: Whether answers that did not parse are reflected on.
        as_objects: Whether records keep values as they are (see :func:`shown_call`).
        warn_on_mismatch: Whether a metric whose score depends on the predictor is warned of.
    """

    seed: int
    perfect_score: float
    skip_perfect: bool
    format_failures: bool
    as_objects: bool
    warn_on_mismatch: bool


class Learner:
    """Runs a minibatch and learns from it. Lives on the search's loop.

    Each trajectory is reflected on as soon as its rollout is there, and an
    aggregator reads a shard as soon as its reflections are; nothing waits for
    the whole minibatch that need not.

    Args:
        effects: The way to the world.
        artifact: What is learned.
        aggregator: Turns reflections into lessons; ``None`` where a proposer of the user's takes the records.
        settings: How rollouts become reflections.
        notes: Returns what a proposer must know about a component's text.
        temperature: Returns the temperature of an update's calls, or ``None`` for the LM's own.
        joined_later: Whether whoever gets the lessons reads all of them in one call.
        code: Components that are the source code of a ``dspy.Flex``.
    """

    def __init__(  # noqa: PLR0913 - one wiring point
        self,
        effects: Effects,
        artifact: Artifact,
        aggregator: Aggregator | None,
        settings: LearnerSettings,
        *,
        notes: Callable[[str, Candidate], str],
        temperature: Callable[[int], float | None],
        joined_later: bool,
        code: frozenset[str] = frozenset(),
    ) -> None:
        self._effects = effects
        self._artifact = artifact
        self._aggregator = aggregator
        self._settings = settings
        self._notes = notes
        self._temperature = temperature
        self._joined_later = joined_later
        self._code = code
        self._warned = not settings.warn_on_mismatch

    def context(self, component: str, candidate: Candidate, step: int) -> StrategyContext:
        """Return what a strategy gets for one component of one update."""
        return StrategyContext(
            component=component,
            text=candidate.texts.get(component, ""),
            call=partial(self._effects.call, step=step, temperature=self._temperature(step)),
            emit=lambda kind, **data: self._effects.log.emit(kind, data, step=step, component=component),
            update=step,
            seed=self._settings.seed,
            notes=self._notes(component, candidate),
            joined_later=self._joined_later,
        )

    async def learn(self, plan: Plan, select: Callable[[Sequence[Rollout]], Sequence[str]] | None = None) -> Learned:
        """Run the minibatch and return what it teaches.

        Args:
            plan: The update's plan.
            select: Chooses components from the rollouts, where the plan names none; asked only if there is something
                to learn.
        """
        place = Place("train", plan.step)
        futures = [self._effects.rollout(plan.parent, row, place) for row in plan.rows]
        components = plan.components
        if components is None:
            rollouts = await _all(futures)
            if self._nothing(rollouts):
                return Learned(plan, tuple(rollouts), skipped="no rollout made a mistake")
            components = tuple(select(rollouts)) if select is not None else ()
        worth: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        ran: Any  # the rollouts, then one entry a component
        ran = await together(
            [self._all_run(futures, worth), *(self._component(plan, name, futures, worth) for name in components)]
        )
        rollouts, found = ran[0], ran[1:]
        if self._nothing(rollouts):
            return Learned(plan, tuple(rollouts), skipped="no rollout made a mistake")
        return Learned(
            plan,
            tuple(rollouts),
            lessons={component: lessons for component, (lessons, _, _) in zip(components, found, strict=True)},
            reflections={component: read for component, (_, read, _) in zip(components, found, strict=True)},
            lost={component: lost for component, (_, _, lost) in zip(components, found, strict=True)},
        )

    async def _all_run(self, futures: Sequence[Awaitable[Rollout]], worth: asyncio.Future[bool]) -> list[Rollout]:
        """Wait for all rollouts; ``worth`` tells as soon as it is known whether there is anything to learn."""

        async def looked(future: Awaitable[Rollout]) -> Rollout:
            rollout = await future
            if not worth.done() and not self._nothing([rollout]):
                worth.set_result(True)
            return rollout

        rollouts = await together(looked(future) for future in futures)
        if not worth.done():
            worth.set_result(False)
        return rollouts

    def _nothing(self, rollouts: Sequence[Rollout]) -> bool:
        return self._settings.skip_perfect and all(one.score >= self._settings.perfect_score for one in rollouts)

    async def _component(
        self, plan: Plan, component: str, futures: Sequence[Awaitable[Rollout]], worth: asyncio.Future[bool]
    ) -> tuple[Lessons, tuple[Reflection, ...], tuple[Reflection, ...]]:
        context = self.context(component, plan.parent, plan.step)
        reflections = [
            asyncio.ensure_future(self._reflect(plan, position, future, component, context, worth))
            for position, future in enumerate(futures)
        ]
        extra = [
            asyncio.ensure_future(_known(replace(one, index=len(futures) + position)))
            for position, one in enumerate(plan.extra.get(component, ()))
        ]
        try:
            if self._aggregator is None:
                lessons = Lessons(component)
            else:
                lessons = await self._artifact.learn([*reflections, *extra], self._aggregator, context)
            read = tuple(one for one in await _all([*reflections, *extra]) if one is not None)
        finally:
            for task in (*reflections, *extra):
                task.cancel()
            await asyncio.gather(*reflections, *extra, return_exceptions=True)
        lost = await self._told(lessons, read, context, len(futures)) if lessons.nodes else ()
        return lessons, read, lost

    async def _told(
        self, lessons: Lessons, read: Sequence[Reflection], context: StrategyContext, size: int
    ) -> tuple[Reflection, ...]:
        """Keep the scan as an event; return the reflections of this minibatch that its result does not cover."""
        retained = await asyncio.to_thread(kept, lessons, read)
        context.emit(
            "scan",
            aggregator=self._aggregator.name if self._aggregator is not None else "",
            n=len(read),
            copies=getattr(self._aggregator, "copies", 1),
            nodes=[
                {"level": one.level, "node": one.node, "sources": one.sources, "lessons": one.lessons,
                 "failed": one.failed}
                for one in lessons.nodes
            ],
            lessons=[{"text": one.text, "sources": one.sources} for one in lessons.lessons],
            retained=[
                {"index": one.index, "coverage": round(one.coverage, 4), "covered": one.covered, "lost_at": one.lost_at,
                 "measurable": one.measurable}
                for one in retained
            ],
        )  # fmt: skip
        uncovered = {one.index for one in retained if one.measurable and not one.covered}
        return tuple(one for one in read if one.index in uncovered and one.index < size)

    async def _reflect(
        self,
        plan: Plan,
        position: int,
        future: Awaitable[Rollout],
        component: str,
        context: StrategyContext,
        worth: asyncio.Future[bool],
    ) -> Reflection | None:
        rollout, row = await future, plan.rows[position]
        # A success alone teaches nothing, and to reflect on it may cost: a mistake must be among the rollouts.
        if not await asyncio.shield(worth):
            return None
        record = await self._record(plan, row, rollout, component)
        trajectory = Trajectory(position, row.example, rollout, record)
        reflection = await self._artifact.reflect(trajectory, component, context)
        if reflection is None or not self._settings.skip_perfect:
            return reflection
        return replace(reflection, perfect=rollout.score >= self._settings.perfect_score)

    async def _record(self, plan: Plan, row: Row, rollout: Rollout, component: str) -> dict[str, Any] | None:
        """Return GEPA's reflective record, with the metric's feedback on this predictor."""
        if component in self._code:
            return _code_record(row, rollout)
        stream = derive(self._settings.seed, "shown call", plan.step, component, row.hash)
        call = call_to_show(rollout, component, stream, format_failures=self._settings.format_failures)
        if call is None:
            return None
        if getattr(self._effects.metric, "whole_rollout", False) and rollout.prediction is not None:
            # Such a metric says the same of every predictor: it is not paid for again.
            return {**shown_call(call, as_objects=self._settings.as_objects), "Feedback": rollout.feedback}
        said = await self._feedback(plan, row, rollout, component, call)
        if "error" in said:
            self._effects.log.emit("error", {"where": "metric", "error": said["error"]}, step=plan.step)
        if said["score"] is not None and said["score"] != rollout.score and not self._warned:
            self._warned = True
            text = (
                f"The metric scores {said['score']} for predictor {component!r} and {rollout.score} for the program: "
                "the program's score counts. warn_on_score_mismatch=False silences this."
            )
            self._effects.log.emit("warning", {"text": text}, step=plan.step)
        return {**shown_call(call, as_objects=self._settings.as_objects), "Feedback": said["feedback"]}

    async def _feedback(
        self, plan: Plan, row: Row, rollout: Rollout, component: str, call: PredictorCall
    ) -> Mapping[str, Any]:
        program = self._effects.programs.of(plan.parent)
        key = f"feedback/{plan.parent.id}/{row.hash[:16]}/{component}/{rollout.calls.index(call)}"
        make = partial(predictor_feedback, program, self._effects.metric, row.example, rollout, call)
        said: Mapping[str, Any] = await self._effects.work(
            key, Place("feedback", plan.step, component), "evaluator", "feedback", make
        )
        return said


def _code_record(row: Row, rollout: Rollout) -> dict[str, Any]:
    """Return what a rollout says about the code of the program as a whole."""
    outputs: Any = dict(rollout.prediction) if rollout.prediction is not None else f"(failed) {rollout.error}"
    feedback = rollout.feedback or f"The score was {rollout.score}."
    return {"Inputs": row.example.inputs().toDict(), "Generated Outputs": outputs, "Feedback": feedback}


async def _known(reflection: Reflection) -> Reflection | None:
    return reflection


async def _all(awaitables: Sequence[Awaitable[Any]]) -> list[Any]:
    return list(await asyncio.gather(*awaitables))
