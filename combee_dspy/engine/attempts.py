"""Carries out one rollout in a worker, and keeps what came of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

import dspy

from combee_dspy.costs import RolloutMeter
from combee_dspy.records import Rollout
from combee_dspy.rollouts import (
    EvaluationCache,
    ExecutorSession,
    Metric,
    RolloutKey,
    arun_rollout,
    atry_rollout,
    awaits,
    current_release,
    patient,
    run_rollout,
    try_rollout,
)

__all__ = ["Attempts"]


class Attempts:
    """Starts rollouts: each is tried again where the service failed in passing, and waits where it is full.

    Thread-safe.

    Args:
        session: Where rollouts run. Not owned.
        metric: GEPA's metric.
        failure_score: Score of a rollout that failed.
        cache: Keeps them; ``None`` for nobody.
        keeps: Whether memory keeps the trace of an example's rollouts, by row hash.

    Attributes:
        metric: As given; what runs from now on is scored by it.
    """

    def __init__(
        self,
        session: ExecutorSession,
        metric: Metric,
        failure_score: float,
        cache: EvaluationCache | None,
        keeps: Callable[[str], bool],
    ) -> None:
        self.metric = metric
        self._session = session
        self._failure_score = failure_score
        self._cache = cache
        self._keeps = keeps
        # A session of other processes carries the rollout itself there.
        self._run = getattr(session, "run_rollout", run_rollout)
        self._task = self._await if awaits(session) else self._work

    def start(
        self, program: dspy.Module, example: dspy.Example, example_id: str, key: RolloutKey | None
    ) -> Future[Rollout]:
        """Queue a rollout, at the caller's place and with the caller's settings.

        Args:
            program: The program.
            example: The example.
            example_id: Its row hash.
            key: What the cache is to know it by, if anything.
        """
        return self._session.submit(self._task, program, example, example_id, key, time.monotonic())  # type: ignore[arg-type]  # a coroutine function's future has what it returns

    def _work(
        self, program: dspy.Module, example: dspy.Example, example_id: str, key: RolloutKey | None, submitted: float
    ) -> Rollout:
        meter = RolloutMeter(submitted, time.monotonic())
        with dspy.context(lm=patient(dspy.settings.lm)):
            scored = try_rollout(self._run, program, example, example_id, self.metric, self._failure_score, meter)
        return self._ended(meter.stamp(scored, schedule_id=current_release()), program, key)

    async def _await(
        self, program: dspy.Module, example: dspy.Example, example_id: str, key: RolloutKey | None, submitted: float
    ) -> Rollout:
        meter = RolloutMeter(submitted, time.monotonic())
        with dspy.context(lm=patient(dspy.settings.lm)):
            scored = await atry_rollout(
                arun_rollout, program, example, example_id, self.metric, self._failure_score, meter
            )
        rollout = meter.stamp(scored, schedule_id=current_release())
        if self._cache is None or self._cache.path is None:
            return self._ended(rollout, program, key)
        # Writing a file must not hold up the loop.
        return await asyncio.to_thread(self._ended, rollout, program, key)

    def _ended(self, rollout: Rollout, program: dspy.Module, key: RolloutKey | None) -> Rollout:
        """Keep a rollout, and return what memory is to hold of it."""
        if self._cache is not None and key is not None:
            self._cache.keep(key, rollout, program)
        return rollout if self._keeps(rollout.example_id) else replace(rollout, trace=(), callers=())
