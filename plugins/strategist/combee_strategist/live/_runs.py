"""Runs texts on rows for the gate: nothing is bought twice, and nothing that the day cannot pay."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import dspy

from combee_dspy.artifacts import Instruction
from combee_dspy.costs import Tariff
from combee_dspy.exceptions import InfrastructureError
from combee_dspy.journal import Effect, RunLog
from combee_dspy.lms.redact import scrub
from combee_dspy.rollouts import Fixed, RolloutJob, Slots, Threads
from combee_dspy.search import Candidate, in_own_loop
from combee_strategist.live._budget import DayBudget
from combee_strategist.live._options import Setup
from combee_strategist.live._verdict import GateRow

__all__ = ["GateRuns"]

_FIRST = 4_000
"""Tokens that are set aside for a rollout before any was seen."""


class GateRuns:
    """Scores of texts on rows, each bought once in the life of a journal."""

    def __init__(self, setup: Setup, log: RunLog, session: int, budget: DayBudget) -> None:
        self._setup, self._log, self._session = setup, log, session
        self._budget, self._largest = budget, 0

    def score(self, texts: Mapping[str, str], rows: Sequence[GateRow]) -> list[float]:
        """Return the score of each row.

        Raises:
            DaySpentError: The day cannot pay for it; what was bought is kept.
            InfrastructureError: The service kept failing.
        """
        candidate = Candidate(texts)
        keys = [f"gate/{candidate.id}/{row.id}" for row in rows]
        missing = {
            key: row for key, row in zip(keys, rows, strict=True) if self._log.find(key) is None
        }
        if missing:
            program = Instruction().build(self._setup.program, candidate.texts)
            lm = self._setup.lm or dspy.settings.lm
            with dspy.context(lm=lm):
                in_own_loop(lambda: self._buy(program, candidate.id, missing))
        return [self._read(key) for key in keys]

    def _read(self, key: str) -> float:
        value = self._log.find(key) or {}
        return float(str(value["score"]))

    async def _buy(
        self, program: dspy.Module, candidate: str, missing: Mapping[str, GateRow]
    ) -> None:
        threads = self._setup.learning.num_threads
        slots = Slots(Threads().start(threads), Fixed(threads))
        tariff, failures = Tariff(), list[Exception]()
        metric = self._setup.metric

        async def rollout(key: str, row: GateRow) -> None:
            job = RolloutJob(program, row.example, row.id, metric, tariff=tariff)
            try:
                await self._rollout(slots, job, key, candidate, failures)
            except Exception as error:  # noqa: BLE001 - raised below, once all has ended
                failures.append(error)

        try:
            # What is under way ends, since it is paid; nothing else begins behind a failure.
            await asyncio.gather(*(rollout(key, row) for key, row in missing.items()))
        finally:
            await slots.close()
        if failures:
            raise failures[0]

    async def _rollout(
        self,
        slots: Slots,
        job: RolloutJob,
        key: str,
        candidate: str,
        failures: Sequence[Exception],
    ) -> None:
        reserved: list[int] = []

        async def reserve() -> None:
            if failures:
                raise failures[0]
            size = self._largest or _FIRST
            self._budget.reserve(size)
            reserved.append(size)

        try:
            rollout = await slots.rollout(job, (0,), reserve)
        except InfrastructureError as error:
            self._budget.settle(sum(reserved), error.usage, "failed")
            raise
        except BaseException:
            self._budget.give_back(sum(reserved), ())
            raise
        usage = rollout.usage
        self._budget.give_back(sum(reserved), usage)
        tokens = sum(call.prompt_tokens + call.completion_tokens for call in usage)
        self._largest = max(self._largest, tokens)
        now, failure = self._setup.clock(), rollout.error
        await self._log.keep(
            Effect(
                key,
                "rollout",
                {"score": rollout.score, "feedback": scrub(rollout.feedback)},
                "task",
                "gate",
                self._session,
                candidate=candidate,
                example=job.example_id,
                split="gate",
                score=rollout.score,
                error=None if failure is None else scrub(failure),
                failed_in=rollout.failed_in,
                started=now,
                ended=now + rollout.seconds,
                usage=usage,
            )
        )
