"""What keeping the books costs: CPU a rollout, read per part, and wall-clock beside the same run without them."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dspy

from combee_dspy.bench.tracking_meter import Collections, CpuMeter
from combee_dspy.bench.tracking_world import Books, BusTime, Shape, TimedJournal, judged, run_shape
from combee_dspy.costs import is_recorder
from combee_dspy.events import Event
from combee_dspy.exceptions import ServiceError
from combee_dspy.lms.simulated import SimulatedConfig, SimulatedService
from combee_dspy.tracking import EventBus, MLflowTracker

__all__ = ["Cost", "measure"]

_WARM = 128
_WARM_LABEL = "warm"
# Calls served at once, and rollouts in flight.
_SLOTS = 64
# What tracking may cost: CPU milliseconds a rollout, all parts together, and wall-clock relative to the run without it.
_CPU_MS = 0.15
_OVERHEAD = 0.02


@dataclass(frozen=True, slots=True)
class Cost:
    """What the books cost.

    Attributes:
        rollouts: Rollouts of each of the paired runs.
        cpu_ms: CPU milliseconds a rollout, by part: ``ledger``, ``journal``, ``events``, ``shipper``.
        total_cpu_ms: Their sum.
        collected_ms: What full garbage collections took that struck in a part, in the same unit. It is no part of
            the figures above (see :class:`~combee_dspy.bench.tracking_meter.Collections`).
        paired_cpu_ms: The same sum in each of the paired runs with everything on; what a run costs
            once, such as its traces, weighs more in a short one.
        wall_on: Seconds of each run with everything on.
        wall_off: Seconds of the run with everything off right before or after it.
        overhead: Median over the pairs of on / off − 1.
        close_seconds: Seconds after the last rollout until all was in MLflow, by paired run.
        holds: Whether both are within the aim.
    """

    rollouts: int
    cpu_ms: dict[str, float]
    total_cpu_ms: float
    collected_ms: dict[str, float]
    paired_cpu_ms: tuple[float, ...]
    wall_on: tuple[float, ...]
    wall_off: tuple[float, ...]
    overhead: float
    close_seconds: tuple[float, ...]
    holds: bool


@contextmanager
def _timed_ledger(meter: CpuMeter) -> Iterator[None]:
    """Time what the ledger's callback does at the beginning and the end of each LM call."""
    kind = next(type(one) for one in dspy.settings.callbacks if is_recorder(one))
    before = {name: kind.__dict__[name] for name in ("on_lm_start", "on_lm_end")}
    for name, method in before.items():
        setattr(kind, name, meter.timed(method))
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(kind, name, method)


def _timed_bus(meter: CpuMeter) -> type[EventBus]:
    """Return a bus that adds up what emitters spend in it, the journal included."""

    class TimedBus(EventBus):
        def emit(self, event: Event) -> None:
            meter.timed(super().emit)(event)

    return TimedBus


def measure(
    rollouts: int,
    pairs: int,
    *,
    time_scale: float = 1.0,
    say: Callable[[str], None] = lambda line: None,
) -> Cost:
    """Measure what the books cost.

    CPU is read from each part's own thread or calls, in the same runs whose wall-clock is compared.

    Args:
        rollouts: Rollouts of each paired run, about.
        pairs: Runs with everything on, each beside one with everything off; the order alternates.
        time_scale: Wall seconds for one simulated second. At 0 the service answers at once: what a part computes
            is the same, and costs more, because all cores are full.
        say: Hears how far it is, on one line.

    Raises:
        ServiceError: The store did not take everything in time.
    """
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=True)
    with tempfile.TemporaryDirectory() as temporary:
        bench = _Bench(Path(temporary), say)
        on, off, parts, strikes, close = [], [], [], [], []
        shape = Shape.of(rollouts, _SLOTS)
        with SimulatedService(SimulatedConfig(slots=_SLOTS, time_scale=time_scale)) as service:
            bench.warm(service)
            for pair in range(pairs):
                for books in (True, False) if pair % 2 else (False, True):
                    label = f"pair {pair + 1} of {pairs}"
                    if not books:
                        off.append(bench.off(service, shape, label))
                        continue
                    done, each, struck, seconds = bench.on(service, shape, label)
                    on.append(done.wall)
                    parts.append(each)
                    strikes.append(struck)
                    close.append(seconds)
    cpu = {name: statistics.median(part[name] for part in parts) for name in parts[0]}
    collected = {name: statistics.fmean(part[name] for part in strikes) for name in parts[0]}
    total = sum(cpu.values())
    overhead = statistics.median(one / other - 1 for one, other in zip(on, off, strict=True))
    return Cost(
        rollouts=shape.rollouts,
        cpu_ms=cpu,
        total_cpu_ms=total,
        collected_ms=collected,
        paired_cpu_ms=tuple(sum(part.values()) for part in parts),
        wall_on=tuple(on),
        wall_off=tuple(off),
        overhead=overhead,
        close_seconds=tuple(close),
        holds=total <= _CPU_MS and overhead < _OVERHEAD,
    )


class _Bench:
    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._store = f"sqlite:///{folder}/mlflow.db"
        self._runs = 0

    def warm(self, service: SimulatedService) -> None:
        """Set up the store and the client: neither is what is measured."""
        self.on(service, Shape.of(_WARM, _SLOTS), _WARM_LABEL)

    def off(self, service: SimulatedService, shape: Shape, label: str) -> float:
        """Return the seconds of a run with everything off."""
        lm = _lm(service)
        wall = run_shape(shape, lm, judged(lm), books=False, label=label).wall
        self._say(f"{label}, books off: {shape.rollouts:,} rollouts in {wall:.2f} s")
        return wall

    def on(
        self, service: SimulatedService, shape: Shape, label: str
    ) -> tuple[Books, dict[str, float], dict[str, float], float]:
        """Return a run with everything on, CPU and full collections by part in ms a rollout, and seconds to its end."""
        self._runs += 1
        folder = self._folder / f"run-{self._runs}"
        collections = Collections()
        writing, ledger, emitters = (CpuMeter(collections) for _ in range(3))
        delivery = BusTime()
        lm = _lm(service)
        begun = time.monotonic()
        tracker = MLflowTracker("books", self._store, spool=str(folder / "spool"))
        with collections.watched():
            done = run_shape(
                shape,
                lm,
                judged(lm),
                journal=TimedJournal(folder, writing),
                tracker=tracker,
                hooks=(delivery,),
                label=label,
                bus=_timed_bus(emitters),
                during=lambda: _timed_ledger(ledger),
            )
        close = time.monotonic() - begun - done.wall
        if done.hook is None or not done.hook.shipper.complete:
            raise ServiceError(f"the store did not take everything of {label!r} in time")
        struck = {
            "ledger": ledger.collected,
            "journal": writing.collected,
            "events": emitters.collected - writing.collected + collections.of("combee-events"),
            "shipper": collections.of("combee-shipper"),
        }
        seconds = {
            "ledger": ledger.seconds,
            "journal": writing.seconds,
            "events": max(0.0, emitters.seconds - writing.seconds)
            + max(0.0, delivery.cpu_seconds - collections.of("combee-events")),
            "shipper": done.hook.shipper.cpu_seconds - struck["shipper"],
        }
        each, collected = (
            {name: value / shape.rollouts * 1000 for name, value in found.items()} for found in (seconds, struck)
        )
        if label != _WARM_LABEL:
            parts = ", ".join(f"{name} {value:.4f}" for name, value in each.items())
            self._say(
                f"{label}, books on: {shape.rollouts:,} rollouts in {done.wall:.2f} s; {sum(each.values()):.4f} ms of "
                f"CPU a rollout ({parts}), and {sum(collected.values()):.4f} ms of full collections that struck there"
            )
        return done, each, collected, close


def _lm(service: SimulatedService) -> dspy.LM:
    # Every run asks the same prompts and gets the same answers after the same time, from the service and no cache.
    dspy.cache.reset_memory_cache()
    service.forget_attempts()
    return service.lm(cache=True)
