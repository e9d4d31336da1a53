"""Seconds for one epoch: Combee beside ``dspy.GEPA``, on one service, in one run.

Every method gets the same program, data, service and seed, with the arguments
that its constructor has by default; only the end is set, after the minibatch
that completes one pass over the training examples. On the simulated service
seconds are its own simulated seconds at full scale: wall-clock divided by the
time scale, so what the client computes counts too, and counts for more the
smaller the scale.

Held-out is compared on further seeds without latencies, on which it does not
depend. Where sizes were planned from delays, these runs repeat the sizes of the
first timed one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import dspy

from combee_dspy.bench.bound import Bound
from combee_dspy.bench.quiet import quietly
from combee_dspy.bench.speed_endpoint import Counted, Endpoint, open_endpoint
from combee_dspy.bench.speed_methods import METHODS, OneEpoch, Terms, picked_size
from combee_dspy.bench.speed_options import SpeedOptions, check_options, load_rows
from combee_dspy.benchmarks import Benchmark
from combee_dspy.records import BatchDecision
from combee_dspy.rollouts import read_score

__all__ = ["METHODS", "SpeedOptions", "SpeedRun", "quietly", "run_speed"]


@dataclass(frozen=True, slots=True)
class SpeedRun:
    """One epoch of one method.

    Attributes:
        method: Its name.
        seed: Seed of service and method.
        repeat: Which timed run it is, from 0; ``None`` where only held-out was of interest.
        seconds: Seconds at full scale; ``None`` where latencies were not waited for.
        wall_seconds: Wall-clock seconds.
        updates: Iterations.
        sizes: Batch sizes that a controller planned, in order.
        picked: The size that it settled on, at most a third of the epoch; ``None`` without a controller.
        calls: Calls by what was asked: ``task``, ``reflect`` or ``other``.
        tokens: Prompt and completion tokens by what was asked.
        written: Completion tokens by what was asked.
        speculative: Rollouts begun on a guess, and reads of them, that were not needed; ``None`` where not counted.
        slot_use: Share of the slots' time that was in use; ``None`` where not known.
        bound: The run's own bounds, in seconds at full scale; ``None`` where not known.
        validation: Mean validation score of the result.
        before: Held-out score of the student per example.
        after: Held-out score of the result per example, in the same order.
    """

    method: str
    seed: int
    repeat: int | None
    seconds: float | None
    wall_seconds: float
    updates: int
    sizes: tuple[int, ...]
    picked: int | None
    calls: dict[str, int]
    tokens: dict[str, int]
    written: dict[str, int]
    speculative: int | None
    slot_use: float | None
    bound: Bound | None
    validation: float
    before: tuple[float, ...] = field(repr=False)
    after: tuple[float, ...] = field(repr=False)

    @property
    def efficiency(self) -> float | None:
        """The run's own schedule on the service's slots over its seconds; what is left is the client's own work.

        It may pass 1 by little: a service that takes calls in another order may finish earlier.
        """
        return self.bound.schedule / self.seconds if self.bound is not None and self.seconds else None

    @property
    def staged_efficiency(self) -> float | None:
        """The same against the bound that knows beforehand which calls will last long, its own barriers kept."""
        return self.bound.staged / self.seconds if self.bound is not None and self.seconds else None

    @property
    def free_efficiency(self) -> float | None:
        """The same against the bound that grants it no barrier."""
        return self.bound.free / self.seconds if self.bound is not None and self.seconds else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data; scores that are all 0 or 1 as one text of digits."""
        scores = {name: _compact(getattr(self, name)) for name in ("before", "after")}
        shares = {name: getattr(self, name) for name in ("efficiency", "staged_efficiency", "free_efficiency")}
        return {**asdict(self), **scores, **shares}


def run_speed(options: SpeedOptions) -> Iterator[SpeedRun]:
    """Run each method for one epoch, as often as asked; the figures come one run at a time.

    Timed runs come first: every method once, then every method once more in an
    order rotated by a part of the list, so that a drift of the machine hits all.
    Then the seeds on which held-out is compared, seed by seed. Options and data
    are checked at once, before the first run.

    Args:
        options: What to measure.

    Raises:
        ArgumentValueError: An option cannot be used, or the benchmark has fewer rows than asked for.
        DataSourceError: The benchmark cannot be read.
    """
    check_options(options)
    return _runs(load_rows(options), options)


def _runs(benchmark: Benchmark, options: SpeedOptions) -> Iterator[SpeedRun]:
    planned: dict[str, SpeedRun] = {}
    with open_endpoint(options, benchmark, options.seed, timed=True) as endpoint:
        for repeat in range(options.repeats):
            for name in _rotated(_due(options, repeat), repeat, options.repeats):
                run = _run(name, benchmark, options, endpoint, planned, seed=options.seed, repeat=repeat)
                planned.setdefault(name, run)
                yield run
    for seed in options.seeds:
        with open_endpoint(options, benchmark, seed, timed=False) as endpoint:
            for name in options.methods:
                yield _run(name, benchmark, options, endpoint, planned, seed=seed, repeat=None)


def _compact(scores: tuple[float, ...]) -> str | list[float]:
    return "".join(f"{score:.0f}" for score in scores) if set(scores) <= {0.0, 1.0} else list(scores)


def _due(options: SpeedOptions, repeat: int) -> tuple[str, ...]:
    most = options.repeats if options.peer_repeats is None else options.peer_repeats
    return tuple(name for name in options.methods if repeat < most or not METHODS[name].peer)


def _rotated(methods: tuple[str, ...], repeat: int, repeats: int) -> tuple[str, ...]:
    first = repeat * len(methods) // repeats
    return methods[first:] + methods[:first]


def _run(
    name: str,
    benchmark: Benchmark,
    options: SpeedOptions,
    endpoint: Endpoint,
    planned: dict[str, SpeedRun],
    *,
    seed: int,
    repeat: int | None,
) -> SpeedRun:
    method, stop = METHODS[name], OneEpoch(options.examples)
    untimed = repeat is None and options.simulated
    terms = Terms(
        metric=benchmark.metric,
        examples=options.examples,
        threads=options.slots,
        seed=seed,
        stop=stop,
        lm=endpoint.reflection_lm,
        picked=planned[method.follows].picked if method.follows else None,
        sizes=planned[name].sizes if method.plans and repeat is None else (),
    )
    with dspy.context(lm=endpoint.task_lm), quietly():
        student = benchmark.program()
        optimizer = method.make(terms)
        endpoint.begin()
        started = time.monotonic()
        program = optimizer.compile(
            student, trainset=list(benchmark.train.examples), valset=list(benchmark.validation.examples)
        )
        wall = time.monotonic() - started
        counted = endpoint.counted()
    with dspy.context(lm=endpoint.reading_lm), quietly():
        before, after = (_scores(which, benchmark, options) for which in (student, program))
    seconds = None if untimed else wall / (options.time_scale if options.simulated else 1.0)
    report = getattr(program, "combee_report", None)
    decisions: tuple[BatchDecision, ...] = getattr(report, "decisions", ())
    return SpeedRun(
        method=name,
        seed=seed,
        repeat=repeat,
        seconds=seconds,
        wall_seconds=wall,
        # The optimizer's own rule may have ended it before this one was asked once more.
        updates=max(stop.iterations, getattr(report, "iterations", 0)),
        sizes=tuple(decision.size for decision in decisions),
        picked=picked_size(decisions, options.examples) if decisions else None,
        calls=dict(counted.calls),
        tokens=dict(counted.tokens),
        written=dict(counted.written),
        speculative=_speculative(report),
        slot_use=_slot_use(counted, seconds, options.slots),
        bound=None if untimed else counted.bound,
        validation=max(program.detailed_results.val_aggregate_scores),
        before=before,
        after=after,
    )


def _speculative(report: object) -> int | None:
    if not hasattr(report, "speculative"):
        return None
    return int(report.speculative) + int(getattr(report, "speculative_reads", 0))


def _slot_use(counted: Counted, seconds: float | None, slots: int) -> float | None:
    return None if counted.busy is None or not seconds else counted.busy / (seconds * slots)


def _scores(program: Any, benchmark: Benchmark, options: SpeedOptions) -> tuple[float, ...]:
    evaluate = dspy.Evaluate(
        devset=list(benchmark.heldout.examples),
        metric=lambda gold, pred: read_score(benchmark.metric(gold, pred))[0],
        num_threads=options.slots,
    )
    return tuple(float(score) for _, _, score in evaluate(program).results)
