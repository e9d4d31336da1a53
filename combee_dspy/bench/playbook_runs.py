"""Playbooks on the simulated service: the methods, and one epoch of each (see :mod:`combee_dspy.bench.playbook`)."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dspy

from combee_dspy.aggregators import Aggregator, ParallelScan, SingleCall
from combee_dspy.artifacts import PlaybookArtifact, write_text
from combee_dspy.bench.speed import quietly
from combee_dspy.benchmarks import Benchmark, Split, load_benchmark
from combee_dspy.combee import Combee
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms import CapacityModel, SimulatedConfig, SimulatedService, SimulatedTask
from combee_dspy.reflections import estimate_tokens
from combee_dspy.rollouts import Threads, run_rollout

__all__ = ["BATCHES", "FAN_IN", "METHODS", "EpochRow", "KeptRow", "Method", "PlaybookOptions", "run_epoch", "run_kept"]

BATCHES = (1, 10, 40, 100)
"""Batch sizes of the first figure; the paper's are 1, 40 and 100."""

FAN_IN = 4
"""Insights for one curator of every method with a batch. Code joins their deltas, so more and smaller calls
need no call that merges, and an answer takes as long as it has operations. ACE's pull request names no
default for ``curator_batch_size``: with the same figure for all, it decides nothing between them."""


@dataclass(frozen=True, slots=True)
class Method:
    """How one method learns a playbook.

    Attributes:
        batch: Examples in a minibatch.
        aggregator: How insights become curator calls.
        told: What it is, for a reader.
        staleness: Minibatches by which what a prediction sees may lag behind.
    """

    batch: int
    aggregator: Aggregator
    told: str
    staleness: int = 0


METHODS: Mapping[str, Method] = {
    "ace": Method(1, SingleCall(), "ACE, batch of one"),
    "ace-batched": Method(
        40, ParallelScan(copies=2, placement="plain", fan_in=FAN_IN), "ACE's own batched mode, re-created, batch of 40"
    ),
    "combee": Method(40, ParallelScan(fan_in=FAN_IN), "Combee on ACE, batch of 40"),
    "combee-stale": Method(40, ParallelScan(fan_in=FAN_IN), "… predicting one batch ahead", staleness=1),
}
"""Method name to how it learns, for the second figure. The first one is what the others are compared with."""


@dataclass(frozen=True, slots=True)
class PlaybookOptions:
    """What is measured.

    Attributes:
        path: Directory with Formula's rows; ``None`` for formula-mini.
        examples: Training examples, one epoch; ``None`` for all.
        heldout: Held-out examples; ``None`` for all.
        slots: Calls that the service serves at once, and threads of every method.
        time_scale: Wall seconds per simulated second in runs whose seconds are measured.
        miss_rate: Probability that a call reads an insight or a trajectory and its lesson is still
            not seen (see :class:`combee_dspy.lms.CapacityModel`).
    """

    path: str | None = None
    examples: int | None = None
    heldout: int | None = None
    slots: int = 64
    time_scale: float = 0.2
    miss_rate: float = 0.0

    def service(self, seed: int, time_scale: float, task: SimulatedTask) -> SimulatedService:
        """Return a service of the stated laws, not started."""
        capacity = CapacityModel(lesson_miss_rate=self.miss_rate)
        config = SimulatedConfig(seed=seed, slots=self.slots, time_scale=time_scale, capacity=capacity)
        return SimulatedService(config, task)


@dataclass(frozen=True, slots=True)
class KeptRow:
    """A playbook after one epoch.

    Attributes:
        batch: Examples in a minibatch.
        method: ``"naive"`` or ``"combee"``.
        bullets: Bullets in it.
        lessons: Of the benchmark's lessons, how many stand in it.
        known: How many lessons the benchmark has.
        tokens: Its estimated tokens.
        heldout: Mean held-out score of the program with it.
        seed: Seed of method and service.
    """

    batch: int
    method: str
    bullets: int
    lessons: int
    known: int
    tokens: int
    heldout: float
    seed: int


@dataclass(frozen=True, slots=True)
class EpochRow:
    """One epoch of one method.

    Attributes:
        method: A name out of :data:`METHODS`.
        seed: Seed of method and service.
        seconds: Simulated seconds at full scale; ``None`` where the run was not timed.
        tokens: Prompt and completion tokens by role.
        calls: Calls by role.
        bullets: Bullets of the playbook.
        playbook_tokens: Its estimated tokens.
        scores: Held-out score per example.
    """

    method: str
    seed: int
    seconds: float | None
    tokens: Mapping[str, int]
    calls: Mapping[str, int]
    bullets: int
    playbook_tokens: int
    scores: tuple[float, ...]


def run_kept(options: PlaybookOptions, batches: Sequence[int] = BATCHES, seed: int = 0) -> Iterator[KeptRow]:
    """Learn one epoch at each batch size, naively and with Combee; rows come one at a time.

    Args:
        options: What is measured. Nothing is timed.
        batches: Examples in a minibatch.
        seed: Seed of methods and service.

    Raises:
        DataSourceError: The benchmark cannot be read.
        ArgumentValueError: It has fewer rows than asked for.
    """
    benchmark, task = _world(options, seed)
    for batch in batches:
        for name, aggregator in (("naive", SingleCall()), ("combee", ParallelScan())):
            with options.service(seed, 0, task) as service:
                program, scores, _ = _learn(Method(batch, aggregator, name), benchmark, options, service, seed)
            playbook = program.playbook_report.playbook
            text = write_text(playbook)
            yield KeptRow(
                batch,
                name,
                len(playbook),
                sum(f"[{key.lower()}]" in text.lower() for key in task.lessons),
                len(task.lessons),
                estimate_tokens(text),
                statistics.fmean(scores),
                seed,
            )


def run_epoch(
    options: PlaybookOptions, seed: int, *, timed: bool = True, methods: Sequence[str] = tuple(METHODS)
) -> Iterator[EpochRow]:
    """Learn one epoch with each method on one seed; rows come one at a time.

    Args:
        options: What is measured.
        seed: Seed of methods and service.
        timed: Whether seconds are measured; without, the service answers at once. Its answers
            do not depend on time.
        methods: Names out of :data:`METHODS`.

    Raises:
        DataSourceError: The benchmark cannot be read.
        ArgumentValueError: It has fewer rows than asked for, or a method is unknown.
    """
    for name in methods:
        if name not in METHODS:
            raise ArgumentValueError("methods", name, "is no method", f"Methods: {', '.join(METHODS)}.")
    benchmark, task = _world(options, seed)
    scale = options.time_scale if timed else 0.0
    for name in methods:
        with options.service(seed, scale, task) as service:
            program, scores, wall = _learn(METHODS[name], benchmark, options, service, seed)
        by_role = program.combee_report.costs["by_role"]
        playbook = program.playbook_report.playbook
        yield EpochRow(
            name,
            seed,
            wall / scale if timed else None,
            {role: found["prompt_tokens"] + found["completion_tokens"] for role, found in by_role.items()},
            {role: found["calls"] for role, found in by_role.items()},
            len(playbook),
            estimate_tokens(write_text(playbook)),
            tuple(scores),
        )


def _learn(
    method: Method, benchmark: Benchmark, options: PlaybookOptions, service: SimulatedService, seed: int
) -> tuple[Any, list[float], float]:
    """Return the program, its held-out scores, and the wall seconds of learning alone."""
    lm = service.lm()
    artifact = PlaybookArtifact(validate_every=0, staleness=method.staleness)
    optimizer = Combee(
        benchmark.metric,
        artifact=artifact,
        aggregator=method.aggregator,
        reflection_lm=lm,
        reflection_minibatch_size=method.batch,
        num_threads=options.slots,
        seed=seed,
        progress=False,
        probe=False,
    )
    with dspy.context(lm=lm), quietly():
        begun = time.monotonic()
        program: Any = optimizer.compile(benchmark.program(), trainset=list(benchmark.train.examples))
        wall = time.monotonic() - begun
        session = Threads().start(options.slots)
        try:
            pending = [
                session.submit(run_rollout, program, row, "", benchmark.metric, 0.0)
                for row in benchmark.heldout.examples
            ]
            return program, [rollout.result().score for rollout in pending], wall
        finally:
            session.close()


def _world(options: PlaybookOptions, seed: int) -> tuple[Benchmark, SimulatedTask]:
    name, params = (
        ("formula-mini", {"task": "compute"}) if options.path is None else ("formula", {"path": options.path})
    )
    made: dict[str, Any] = {}
    if options.path is None:
        made = {"train": options.examples, "heldout": options.heldout, "seed": seed}
    with quietly():
        benchmark = load_benchmark(name, **params, **{key: value for key, value in made.items() if value is not None})
        task = SimulatedTask.from_benchmark(benchmark, seed, params=params)
    return _cut(benchmark, options), task


def _cut(benchmark: Benchmark, options: PlaybookOptions) -> Benchmark:
    train, heldout = _first(benchmark.train, options.examples), _first(benchmark.heldout, options.heldout)
    return replace(benchmark, train=train, heldout=heldout)


def _first(split: Split, size: int | None) -> Split:
    if size is not None and not 1 <= size <= len(split):
        name = "examples" if split.name == "train" else split.name
        raise ArgumentValueError(name, size, f"cannot be taken from {len(split)} rows", f"Give 1 to {len(split)}.")
    return Split(split.name, split.examples[:size], split.row_hashes[:size])
