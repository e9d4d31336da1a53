"""Whether the adaptive limit finds the capacity of a service that nobody told it.

    python -m combee_dspy.bench.capacity --json capacity.json

A simulated service serves a number of calls at once that the client is not
told. ``reject`` answers 429 with ``Retry-After`` beyond it, ``queue`` lets calls
wait, ``changing`` rejects and halves its slots in the middle. Rollouts go
through the scheduler with an :class:`~combee_dspy.rollouts.AdaptiveLimit` of default
settings. No language model is involved.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import wait
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from combee_dspy.bench.capacity_rows import CapacityOptions, CapacityRow, Phase, table
from combee_dspy.lms.simulated import LatencyLaw, ServiceStats, SimulatedConfig, SimulatedService
from combee_dspy.rollouts import (
    AdaptiveLimit,
    InfrastructureFaultError,
    Threads,
    patient,
    rarely_collected,
    run_rollout,
)
from combee_dspy.rollouts.scheduling import Scheduler

if TYPE_CHECKING:
    import dspy

__all__ = ["CapacityOptions", "CapacityRow", "Phase", "capacity_code", "main", "run_capacity", "table"]

# Of each phase, how much is left to the search before anything is counted.
_WARM_UP = 0.3


class _InFlight:
    """Counts rollouts in flight and integrates them over time. Thread-safe.

    Args:
        at_start: Called, under the lock, with the number of the rollout that starts, from 0.
    """

    def __init__(self, at_start: Callable[[int], None]) -> None:
        self._lock = threading.Lock()
        self._at_start = at_start
        self._area = 0.0
        self._last = time.monotonic()
        self.now = self.peak = self.begun = self.ended = 0

    def __enter__(self) -> None:
        with self._lock:
            self._at_start(self.begun)
            self.begun += 1
            self._add(1)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self.ended += 1
            self._add(-1)

    def area(self) -> float:
        """Return rollouts × wall seconds so far; under the lock."""
        self._add(0)
        return self._area

    def _add(self, change: int) -> None:
        moment = time.monotonic()
        self._area += self.now * (moment - self._last)
        self._last = moment
        self.now += change
        self.peak = max(self.peak, self.now)


@dataclass(frozen=True, slots=True)
class _Mark:
    stats: ServiceStats
    area: float
    ended: int
    when: float


def run_capacity(options: CapacityOptions) -> Iterable[CapacityRow]:
    """Measure, one run after the other.

    Args:
        options: What to measure.

    Yields:
        One row per mode and client.

    Raises:
        ArgumentValueError: An option is out of range.
    """
    options.validate()
    return (_Run(options, mode, client).measured() for mode in options.modes for client in options.clients)


class _Run:
    def __init__(self, options: CapacityOptions, mode: str, client: str) -> None:
        self._options = options
        self._mode = mode
        self._client = client
        self._in_flight = _InFlight(self._at_start)
        self._marks: dict[int, _Mark] = {}
        self._limits: list[tuple[float, int, str]] = []
        self._service = SimulatedService(_config(options, rejects=mode != "queue"))
        n, half = options.rollouts, options.rollouts // 2
        # (slots, first rollout, last rollout)
        self._plan = [(options.slots, 0, n - 1)]
        if mode == "changing":
            self._plan = [(options.slots, 0, half), (options.slots // 2, half, n - 1)]
        self._points = {n for _, first, last in self._plan for n in (_warm(first, last), last)}

    def measured(self) -> CapacityRow:
        began = time.monotonic()
        scale = self._options.time_scale

        def changed(old: int, new: int, reason: str) -> None:
            self._limits.append(((time.monotonic() - began) / scale, new, reason))

        limit = AdaptiveLimit(ceiling=self._options.ceiling, on_change=changed)
        with self._service:
            failed = self._drive(limit)
            stats = self._service.stats()
        return CapacityRow(
            self._mode,
            self._client,
            tuple(self._phase(*part) for part in self._plan),
            failed,
            stats.by_status["rate_limited"].calls,
            self._in_flight.peak,
            (time.monotonic() - began) / scale,
            tuple(self._limits),
        )

    def _drive(self, limit: AdaptiveLimit) -> int:
        import dspy

        program = dspy.Predict("question -> answer")
        numbers = range(self._options.rollouts)
        examples = [dspy.Example(question=f"Number {number}?").with_inputs("question") for number in numbers]

        def task(number: int) -> bool:
            with self._in_flight:
                try:
                    rollout = run_rollout(program, examples[number], str(number), _any_answer, 0.0)
                except InfrastructureFaultError:
                    return False
            return rollout.failed_in is None

        with rarely_collected(), closing(Scheduler(Threads().start(self._options.ceiling), limit=limit)) as session:
            with dspy.context(lm=self._lm(), disable_history=True):
                futures = [session.submit(task, number) for number in numbers]
            wait(futures)
        return sum(not future.result() for future in futures)

    def _lm(self) -> dspy.LM:
        if self._client == "plain":
            lm: dspy.LM = patient(self._service.lm())
            return lm
        from combee_dspy.lms import pooled

        base, connections = self._service.api_base, self._options.ceiling
        return patient(
            pooled("simulated", api_base=base, api_key="simulated", cache=False, max_connections=connections)
        )

    def _at_start(self, number: int) -> None:
        if number in self._points:
            mark = _Mark(self._service.stats(), self._in_flight.area(), self._in_flight.ended, time.monotonic())
            self._marks[number] = mark
        if self._mode == "changing" and number == self._plan[1][1]:
            self._service.resize(self._plan[1][0])

    def _phase(self, slots: int, first: int, last: int) -> Phase:
        start, end = self._marks[_warm(first, last)], self._marks[last]
        wall = max(end.when - start.when, 1e-9)
        seconds = wall / self._options.time_scale
        busy = end.stats.slot_busy_seconds - start.stats.slot_busy_seconds
        rejected = end.stats.by_status["rate_limited"].calls - start.stats.by_status["rate_limited"].calls
        answered = end.stats.calls - start.stats.calls - rejected
        return Phase(
            slots,
            (end.area - start.area) / wall,
            busy / seconds,
            rejected,
            (end.ended - start.ended) / seconds,
            slots * answered / busy if busy else 0.0,
        )


def _warm(first: int, last: int) -> int:
    return first + round(_WARM_UP * (last - first))


def _config(options: CapacityOptions, *, rejects: bool) -> SimulatedConfig:
    from combee_dspy.lms.simulated import FailureRates

    return SimulatedConfig(
        seed=options.seed,
        # The few tokens of the answer add a fifth of a second at the default speed; here they shall not count.
        latency=LatencyLaw(ttft=options.seconds, tokens_per_second=1e6),
        failures=FailureRates(retry_after=options.retry_after),
        slots=options.slots,
        reject_when_full=rejects,
        time_scale=options.time_scale,
    )


def _any_answer(*_: Any) -> float:
    return 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the command line asks for and print the table.

    Returns:
        The exit code (:func:`capacity_code`).
    """
    parser = argparse.ArgumentParser(prog="combee bench capacity", description=__doc__.partition("\n")[0])
    defaults = CapacityOptions()
    parser.add_argument("--modes", default=",".join(defaults.modes), help="reject, queue, changing; by comma")
    parser.add_argument("--clients", default=",".join(defaults.clients), help="plain, pooled; by comma")
    parser.add_argument("--slots", type=int, default=defaults.slots, help="calls served at once")
    parser.add_argument("--rollouts", type=int, default=defaults.rollouts, help="rollouts of each run")
    parser.add_argument("--seconds", type=float, default=defaults.seconds, help="median simulated seconds of a call")
    parser.add_argument("--retry-after", type=float, default=defaults.retry_after, help="simulated seconds of a 429")
    parser.add_argument("--time-scale", type=float, default=defaults.time_scale, help="wall seconds of a simulated one")
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--json", type=Path, help="write figures, machine and versions here")
    given = parser.parse_args(arguments)
    options = CapacityOptions(
        modes=tuple(given.modes.split(",")),
        clients=tuple(given.clients.split(",")),
        slots=given.slots,
        rollouts=given.rollouts,
        seconds=given.seconds,
        retry_after=given.retry_after,
        time_scale=given.time_scale,
        seed=given.seed,
    )
    rows: list[CapacityRow] = []
    for row in run_capacity(options):
        rows.append(row)
        sys.stderr.write(f"{row.mode}, {row.client}: {row.seconds:.0f} simulated s, {row.failed} failed\n")
    sys.stdout.write(f"simulated service, no language model; {options.rollouts} rollouts a run\n\n{table(rows)}\n")
    if given.json is not None:
        given.json.write_text(json.dumps(_record(options, rows), indent=2) + "\n", encoding="utf-8")
    return capacity_code(rows)


def capacity_code(rows: Iterable[CapacityRow]) -> int:
    """Return 1 where a rollout failed, or a service that rejects was not met within 10 %; else 0."""
    return int(any(row.failed or (row.mode != "queue" and not all(p.within for p in row.phases)) for row in rows))


def _record(options: CapacityOptions, rows: Sequence[CapacityRow]) -> dict[str, Any]:
    from combee_dspy.bench.record import environment

    machine, versions = environment()
    return {
        "simulated": True,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "versions": versions,
        "options": asdict(options),
        "rows": [row.to_dict() for row in rows],
    }


if __name__ == "__main__":
    sys.exit(main())
