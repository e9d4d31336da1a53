"""Whether the adaptive limit finds the capacity of a service that nobody told it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import dspy
from rich.table import Table

from combee_bench.options import CapacityOptions
from combee_bench.surroundings import LABEL, quietly
from combee_bench.tables import by_rows
from combee_dspy.exceptions import InfrastructureError
from combee_dspy.records import Rollout
from combee_dspy.rollouts import Adaptive, RolloutJob, Slots, ThreadSession, patient
from combee_simulator import (
    FailureRates,
    LatencyLaw,
    ServiceStats,
    SimulatedConfig,
    SimulatedService,
)

__all__ = ["CapacityRow", "Phase", "line", "passed", "run", "summary", "table"]

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
class CapacityRow:
    """One run.

    Attributes:
        mode: What the service did beyond its slots.
        client: How it was called.
        phases: One, or two where the capacity changed.
        failed: Rollouts that failed.
        rejected: Requests answered 429 in all, warm-up included.
        peak: Most rollouts in flight.
        seconds: Simulated seconds of the whole run.
        limits: (simulated seconds, limit, reason) of every change.
    """

    mode: str
    client: str
    phases: tuple[Phase, ...]
    failed: int
    rejected: int
    peak: int
    seconds: float
    limits: tuple[tuple[float, int, str], ...]


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
        self.flying = self.peak = self.begun = self.ended = 0

    async def rollout(self, job: RolloutJob) -> Rollout:
        self._count(0)
        self._at_start(self.begun, self)
        self.begun += 1
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


def run(options: CapacityOptions) -> Iterator[CapacityRow]:
    """Measure, one run after the other."""
    return (
        _Run(options, mode, client).measured()
        for mode in options.modes
        for client in options.clients
    )


class _Run:
    def __init__(self, options: CapacityOptions, mode: str, client: str) -> None:
        self._options = options
        self._mode = mode
        self._client = client
        self._service = SimulatedService(
            SimulatedConfig(
                seed=options.seed,
                # The few tokens of the answer add a fifth of a second at the default speed; here
                # they shall not count.
                latency=LatencyLaw(ttft=options.seconds, tokens_per_second=1e6),
                failures=FailureRates(retry_after=options.retry_after),
                slots=options.slots,
                reject_when_full=mode != "queue",
                time_scale=options.time_scale,
            )
        )
        n, half = options.rollouts, options.rollouts // 2
        # (slots, first rollout, last rollout)
        self._plan = [(options.slots, 0, n - 1)]
        if mode == "changing":
            self._plan = [(options.slots, 0, half), (options.slots // 2, half, n - 1)]
        self._points = {n for _, first, last in self._plan for n in (_warm(first, last), last)}
        self._marks: dict[int, _Mark] = {}

    def measured(self) -> CapacityRow:
        limits: list[tuple[float, int, str]] = []
        began, scale = time.monotonic(), self._options.time_scale

        def changed(limit: int, reason: str) -> None:
            limits.append(((time.monotonic() - began) / scale, limit, reason))

        with self._service, quietly(), dspy.context(lm=self._lm(), disable_history=True):
            failed, peak = asyncio.run(self._driven(changed))
            rejected = self._service.stats().by_status["rate_limited"].calls
        phases = tuple(self._phase(*part) for part in self._plan)
        seconds = (time.monotonic() - began) / scale
        return CapacityRow(
            self._mode, self._client, phases, failed, rejected, peak, seconds, tuple(limits)
        )

    async def _driven(self, changed: Any) -> tuple[int, int]:
        program = dspy.Predict("question -> answer")
        session = _Watched(self._options.ceiling, self._at_start)
        slots = Slots(session, Adaptive(ceiling=self._options.ceiling), on_change=changed)

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
                sum(await asyncio.gather(*map(failed, range(self._options.rollouts)))),
                session.peak,
            )
        finally:
            await slots.close()

    def _lm(self) -> dspy.LM:
        if self._client == "plain":
            plain: dspy.LM = patient(self._service.lm())
            return plain
        from combee_dspy.lms import pooled

        where: dict[str, Any] = {
            "api_base": self._service.api_base,
            "api_key": "simulated",
            "cache": False,
        }
        lm: dspy.LM = patient(pooled("simulated", max_connections=self._options.ceiling, **where))
        return lm

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
        seconds = wall / self._options.time_scale
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


def passed(options: CapacityOptions, rows: Sequence[CapacityRow]) -> bool:
    """Whether no rollout failed, and every service that rejects was met within 10 %."""
    return not any(
        row.failed or (row.mode != "queue" and not all(p.within for p in row.phases))
        for row in rows
    )


def summary(options: CapacityOptions, rows: Sequence[CapacityRow]) -> list[dict[str, Any]]:
    """Return which phases were met within 10 %, as plain JSON data."""
    return [
        {"mode": row.mode, "client": row.client, "within": [p.within for p in row.phases]}
        for row in rows
    ]


def line(options: CapacityOptions, row: CapacityRow) -> str:
    """Return what is said of one run when it ends."""
    return f"{row.mode}, {row.client}: {row.seconds:.0f} simulated s, {row.failed} failed"


def table(options: CapacityOptions, rows: Sequence[CapacityRow]) -> Table:
    """Return one line per phase."""
    heads = "<service,<client,slots,in flight,busy,within 10 %,429s,rollouts/s,of ideal,failed"
    shown = []
    for row in rows:
        for phase in row.phases:
            share = (
                phase.rollouts_per_second / phase.ideal_per_second
                if phase.ideal_per_second
                else 0.0
            )
            figures = (
                f"{phase.in_flight:.1f}",
                f"{phase.busy:.1f}",
                "yes" if phase.within else "no",
            )
            rates = (
                str(phase.rejected),
                f"{phase.rollouts_per_second:.2f}",
                f"{share:.0%}",
                str(row.failed),
            )
            shown.append((row.mode, row.client, str(phase.slots), *figures, *rates))
    return by_rows(f"{LABEL}; {options.rollouts} rollouts a run", heads.split(","), shown)
