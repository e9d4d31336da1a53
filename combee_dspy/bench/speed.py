"""Seconds for one epoch: Combee beside ``dspy.GEPA``, on the simulated service.

Every method gets the same program, data, service and seed, with the arguments
that its constructor has by default; only the end is set, after the minibatch
that completes one pass over the training examples. Seconds are the service's
own simulated seconds at full scale: wall-clock divided by the time scale, so
what the client computes counts too, and counts for more the smaller the scale.
"""

from __future__ import annotations

import contextlib
import io
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import dspy

from combee_dspy.bench.compare import Comparison, compare
from combee_dspy.benchmarks import Benchmark, Split, load_benchmark
from combee_dspy.combee import Combee
from combee_dspy.evaluation import paired_difference
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms import SimulatedConfig, SimulatedService, SimulatedTask
from combee_dspy.rollouts import read_score
from combee_dspy.streams import derive_seed

__all__ = ["METHODS", "MethodResult", "SpeedOptions", "quietly", "run_speed"]

# Benchmarks that make as many rows as they are asked for. Others are cut.
_MADE_TO_SIZE = ("formula-mini",)

# Far beyond what an epoch needs: the epoch ends the run, never this.
_NO_LIMIT = 1_000_000


@dataclass(frozen=True, slots=True)
class SpeedOptions:
    """What is measured.

    Attributes:
        methods: Names out of :data:`METHODS`, in the order in which they run.
        examples: Training examples, which make one epoch.
        validation: Validation examples.
        heldout: Held-out examples, read once before and once after.
        slots: Calls that the service serves at once; also the threads of every method.
        time_scale: Wall seconds per simulated second, above 0.
        seed: Seed of the service and of every method.
        benchmark: A benchmark's name.
        params: Its parameters, without the sizes.
    """

    methods: tuple[str, ...] = ("gepa", "combee")
    examples: int = 240
    validation: int = 60
    heldout: int = 100
    slots: int = 64
    time_scale: float = 0.1
    seed: int = 0
    benchmark: str = "formula-mini"
    params: Mapping[str, Any] = field(default_factory=lambda: {"task": "compute"})


@dataclass(frozen=True, slots=True)
class MethodResult:
    """What one method needed for one epoch.

    Attributes:
        method: Its name.
        seconds: Simulated seconds at full scale.
        wall_seconds: Wall-clock seconds.
        iterations: Updates.
        calls: Calls by what was asked: ``task`` or ``reflect``.
        tokens: Prompt and completion tokens by what was asked.
        slot_use: Share of the slots' time that was in use.
        validation: Mean validation score of the result.
        before: Mean held-out score of the student.
        after: Mean held-out score of the result.
        low: Lower end of the 95 % interval of ``after - before``.
        high: Upper end.
        heldout_scores: Held-out score of the result per example, in the order of the split.
        versus: This method beside the first; ``None`` for the first itself.
        simulated: Always true.
    """

    method: str
    seconds: float
    wall_seconds: float
    iterations: int
    calls: Mapping[str, int]
    tokens: Mapping[str, int]
    slot_use: float
    validation: float
    before: float
    after: float
    low: float
    high: float
    heldout_scores: tuple[float, ...] = ()
    versus: Comparison | None = None
    simulated: bool = True

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return asdict(self)


class _OneEpoch:
    """gepa's stop callback: ends with the iteration that completes one epoch."""

    def __init__(self, examples: int) -> None:
        self.examples = examples
        self.iterations = 0

    def __call__(self, state: Any) -> bool:
        """Return whether one epoch has been drawn."""
        self.iterations = state.i + 1
        drawn = sum(len(set(_drawn(record))) for record in state.full_program_trace)
        return drawn >= self.examples


def _drawn(record: Mapping[str, Any]) -> list[Any]:
    return [index for task in record.get("tasks", ()) for index in task["subsample_ids"]]


Compile = Callable[[Any, "SpeedOptions", "_OneEpoch", dspy.LM], Any]


def _common(options: SpeedOptions, stop: _OneEpoch, lm: dspy.LM) -> dict[str, Any]:
    """Return what every method is given: where to end, with what, and nothing that is a choice."""
    return {
        "max_metric_calls": _NO_LIMIT,
        "reflection_lm": lm,
        "num_threads": options.slots,
        "seed": options.seed,
        "track_stats": True,
        "gepa_kwargs": {"stop_callbacks": [stop]},
    }


def _gepa(metric: Any, options: SpeedOptions, stop: _OneEpoch, lm: dspy.LM) -> Any:
    return dspy.GEPA(metric, **_common(options, stop, lm))


def _combee(metric: Any, options: SpeedOptions, stop: _OneEpoch, lm: dspy.LM) -> Any:
    return Combee(metric, progress=False, **_common(options, stop, lm))


METHODS: Mapping[str, Compile] = {"gepa": _gepa, "combee": _combee}
"""Method name to what makes the optimizer."""


def run_speed(options: SpeedOptions) -> Iterator[MethodResult]:
    """Run each method for one epoch; the figures come one method at a time.

    Options and data are checked at once, before the first method runs. From the
    second method on a result is compared with the first one's on the same
    held-out examples (see :func:`combee_dspy.bench.compare`).

    Args:
        options: What to measure.

    Raises:
        ArgumentValueError: A method is unknown or named twice, the time scale is not
            above 0, or the benchmark has fewer rows than asked for.
        DataSourceError: The benchmark cannot be read.
    """
    _check(options)
    benchmark = _benchmark(options)
    with quietly():
        task = SimulatedTask.from_benchmark(benchmark, options.seed, params=options.params)
    return _results(benchmark, task, options)


def _results(benchmark: Benchmark, task: SimulatedTask, options: SpeedOptions) -> Iterator[MethodResult]:
    config = SimulatedConfig(seed=options.seed, slots=options.slots, time_scale=options.time_scale)
    reference: MethodResult | None = None
    with SimulatedService(config, task) as service:
        for name in options.methods:
            result = _measure(name, benchmark, options, service)
            if reference is None:
                reference = result
            else:
                result = replace(result, versus=_versus(reference, result, options.seed))
            yield result


def _check(options: SpeedOptions) -> None:
    known = f"Methods: {', '.join(METHODS)}."
    if not options.methods:
        raise ArgumentValueError("methods", options.methods, "names no method", known)
    for name in options.methods:
        if name not in METHODS:
            raise ArgumentValueError("methods", name, "is no method", known)
        if options.methods.count(name) > 1:
            raise ArgumentValueError("methods", name, "is named twice", "Name each method once.")
    if options.time_scale <= 0:
        raise ArgumentValueError("time_scale", options.time_scale, "is not above 0", "Nothing would be measured.")


def _benchmark(options: SpeedOptions) -> Benchmark:
    sizes = {"train": options.examples, "validation": options.validation, "heldout": options.heldout}
    made = sizes if options.benchmark in _MADE_TO_SIZE else {}
    loaded = load_benchmark(options.benchmark, **{**options.params, **made})
    train, validation, heldout = (_first(split, sizes[split.name]) for split in loaded.splits)
    return replace(loaded, train=train, validation=validation, heldout=heldout)


def _first(split: Split, size: int) -> Split:
    if not 1 <= size <= len(split):
        name = "examples" if split.name == "train" else split.name
        remedy = f"Give 1 to {len(split)}."
        raise ArgumentValueError(name, size, f"cannot be taken from {len(split)} rows of {split.name}", remedy)
    return Split(split.name, split.examples[:size], split.row_hashes[:size])


def _versus(reference: MethodResult, result: MethodResult, seed: int) -> Comparison:
    return compare(
        reference.method,
        reference.heldout_scores,
        result.heldout_scores,
        seconds=(reference.seconds, result.seconds),
        seed=derive_seed(seed, "bench", reference.method, result.method),
    )


def _measure(name: str, benchmark: Benchmark, options: SpeedOptions, service: SimulatedService) -> MethodResult:
    lm = service.lm()
    stop = _OneEpoch(options.examples)
    with dspy.context(lm=lm), quietly():
        student = benchmark.program()
        service.reset_stats()
        service.forget_attempts()
        started = time.monotonic()
        program = METHODS[name](benchmark.metric, options, stop, lm).compile(
            student, trainset=list(benchmark.train.examples), valset=list(benchmark.validation.examples)
        )
        wall = time.monotonic() - started
        stats = service.stats()
        before, after = (_scores(which, benchmark, options) for which in (student, program))
    found = paired_difference(before, after, seed=derive_seed(options.seed, "bench", name))
    seconds = wall / options.time_scale
    return MethodResult(
        method=name,
        seconds=seconds,
        wall_seconds=wall,
        iterations=stop.iterations,
        calls={kind: tally.calls for kind, tally in stats.by_kind.items() if tally.calls},
        tokens={
            kind: tally.prompt_tokens + tally.completion_tokens for kind, tally in stats.by_kind.items() if tally.calls
        },
        slot_use=stats.slot_busy_seconds / (seconds * options.slots),
        validation=max(program.detailed_results.val_aggregate_scores),
        before=found.before,
        after=found.after,
        low=found.low,
        high=found.high,
        heldout_scores=tuple(after),
    )


def _scores(program: Any, benchmark: Benchmark, options: SpeedOptions) -> list[float]:
    evaluate = dspy.Evaluate(
        devset=list(benchmark.heldout.examples),
        metric=lambda gold, pred: read_score(benchmark.metric(gold, pred))[0],
        num_threads=options.slots,
    )
    return [float(score) for _, _, score in evaluate(program).results]


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Keep DSPy's progress bars and log lines out of the table."""
    names = ("dspy", "gepa", "combee_dspy")
    levels = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
