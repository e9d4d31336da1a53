"""The adaptive limit finds the capacity of a service that nobody names to it."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import dspy
import pytest

from combee_bench.surroundings import quietly
from combee_dspy.exceptions import InfrastructureError
from combee_dspy.lms import pooled
from combee_dspy.records import Rollout
from combee_dspy.rollouts import Adaptive, RolloutJob, Slots, ThreadSession, patient
from combee_simulator import (
    FailureRates,
    LatencyLaw,
    ServiceStats,
    SimulatedConfig,
    SimulatedService,
)
from plugins.bench.tests.sizes import show, size

CEILING = 512
# Wall seconds of a simulated second.
SCALE = size("percent_of_time", 2) / 100
# Of each phase, how much is left to the search before anything is counted.
_WARM_UP = 0.3
_WITHIN = 0.1


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of a run with one capacity, without its warm-up.

    Attributes:
        slots: Calls that the service served at once.
        in_flight: Mean of rollouts in flight, those that wait for ``Retry-After`` included.
        busy: Mean of slots in use, by the service's own count.
        rejected: Requests answered 429.
        rollouts_per_second: Rollouts that ended, a simulated second.
        ideal_per_second: What the service could have answered: slots ÷ mean seconds of a call.
    """

    slots: int
    in_flight: float
    busy: float
    rejected: int
    rollouts_per_second: float
    ideal_per_second: float

    @property
    def within(self) -> bool:
        """Whether what was in flight is within 10 % of the slots."""
        return abs(self.in_flight / self.slots - 1) <= _WITHIN


@dataclass(frozen=True, slots=True)
class _Mark:
    """What had been counted at one moment; ``area`` is rollouts in flight × wall seconds."""

    stats: ServiceStats
    area: float
    ended: int
    when: float


class _Watched(ThreadSession):
    """Worker threads that count rollouts in flight. Its counters live on the event loop."""

    def __init__(self, workers: int, at_start: Any) -> None:
        super().__init__(workers)
        self._at_start = at_start
        self._last = time.monotonic()
        self.area = 0.0
        self.flying = self.peak = self.started = self.ended = 0

    async def rollout(self, job: RolloutJob) -> Rollout:
        self._count(0)
        self._at_start(self.started, self)
        self.started += 1
        self._count(1)
        try:
            return await super().rollout(job)
        finally:
            self.ended += 1
            self._count(-1)

    def _count(self, change: int) -> None:
        now = time.monotonic()
        self.area += self.flying * (now - self._last)
        self._last = now
        self.flying += change
        self.peak = max(self.peak, self.flying)


class _Run:
    def __init__(self, mode: str, client: str) -> None:
        self._mode = mode
        self._client = client
        slots, rollouts = size("slots", 6), size("rollouts", 200)
        config = SimulatedConfig(
            seed=size("seed", 0),
            # The few tokens of an answer take no time, so that its first token decides.
            latency=LatencyLaw(ttft=2.0, tokens_per_second=1e6),
            failures=FailureRates(retry_after=1.0),
            slots=slots,
            reject_when_full=mode != "queue",
            time_scale=SCALE,
        )
        self._service = SimulatedService(config)
        last, half = rollouts - 1, rollouts // 2
        # (slots, first rollout, last rollout)
        self._plan = [(slots, 0, last)]
        if mode == "changing":
            self._plan = [(slots, 0, half), (slots // 2, half, last)]
        self._points = {n for _, first, end in self._plan for n in (_warm(first, end), end)}
        self._marks: dict[int, _Mark] = {}

    def measure(self) -> tuple[list[Phase], int, int, list[tuple[int, str]]]:
        """Return the phases, rollouts that failed, most rollouts in flight, and all limits."""
        limits: list[tuple[int, str]] = []
        with self._service, quietly(), dspy.context(lm=self._lm(), disable_history=True):
            failed, peak = asyncio.run(self._drive(lambda *limit: limits.append(limit)))
        return [self._phase(*part) for part in self._plan], failed, peak, limits

    async def _drive(self, change: Any) -> tuple[int, int]:
        program = dspy.Predict("question -> answer")
        session = _Watched(CEILING, self._at_start)
        slots = Slots(session, Adaptive(ceiling=CEILING), on_change=change)

        async def failed(number: int) -> bool:
            example = dspy.Example(question=f"Number {number}?").with_inputs("question")
            try:
                rollout = await slots.rollout(
                    RolloutJob(program, example, str(number), _any_answer), (number,)
                )
            except InfrastructureError:
                return True
            return rollout.failed_in is not None

        try:
            return (
                sum(await asyncio.gather(*map(failed, range(size("rollouts", 200))))),
                session.peak,
            )
        finally:
            await slots.close()

    def _lm(self) -> dspy.LM:
        if self._client == "plain":
            return patient(self._service.lm())
        lm = pooled(
            "simulated",
            max_connections=CEILING,
            api_base=self._service.api_base,
            api_key="simulated",
            cache=False,
        )
        return patient(lm)

    def _at_start(self, number: int, session: _Watched) -> None:
        if number in self._points:
            self._marks[number] = _Mark(
                self._service.stats(), session.area, session.ended, time.monotonic()
            )
        if self._mode == "changing" and number == self._plan[1][1]:
            self._service.resize(self._plan[1][0])

    def _phase(self, slots: int, first: int, last: int) -> Phase:
        start, end = self._marks[_warm(first, last)], self._marks[last]
        wall = max(end.when - start.when, 1e-9)
        seconds = wall / SCALE
        busy = end.stats.slot_busy_seconds - start.stats.slot_busy_seconds
        rejected = (
            end.stats.by_status["rate_limited"].calls - start.stats.by_status["rate_limited"].calls
        )
        answered = end.stats.calls - start.stats.calls - rejected
        return Phase(
            slots=slots,
            in_flight=(end.area - start.area) / wall,
            busy=busy / seconds,
            rejected=rejected,
            rollouts_per_second=(end.ended - start.ended) / seconds,
            ideal_per_second=slots * answered / busy if busy else 0.0,
        )


def _warm(first: int, last: int) -> int:
    return first + round(_WARM_UP * (last - first))


def _any_answer(*_: Any) -> float:
    return 1.0


@pytest.mark.slow
@pytest.mark.parametrize("client", ["plain", "pooled"])
@pytest.mark.parametrize("mode", ["reject", "queue", "changing"])
def test_the_limit_finds_what_a_service_takes(mode: str, client: str) -> None:
    phases, failed, peak, limits = _Run(mode, client).measure()
    show((mode, client, phases, failed))
    assert failed == 0
    assert peak >= phases[0].slots
    assert limits
    assert all(0 < phase.busy <= phase.slots for phase in phases)
    # A small service has no tenth of a slot to be off by.
    if mode != "queue" and size("slots", 6) > 20:
        assert all(phase.within for phase in phases)
