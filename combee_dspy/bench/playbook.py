"""Playbooks on the simulated service: what a batch keeps, and what an epoch costs.

    python -m combee_dspy.bench.playbook kept --path data/formula --json kept.json
    python -m combee_dspy.bench.playbook epoch --path data/formula --seeds 0-9 --json epoch.jsonl

``kept`` prints bullets and tokens of the playbook after one epoch at batch 1, 10, 40 and 100, for
one curator call over the whole batch (naive ACE) and for Combee's shuffle and shards.

``epoch`` prints seconds and tokens of one epoch of ACE at batch 1, of ACE's own batched mode and of
Combee on ACE at batch 40, with the paired held-out difference to batch 1 over all seeds. ACE's
batched mode is re-created from the description of its pull request 36: parallel rollouts and
reflections, insights duplicated and shuffled, one curator call for every ``curator_batch_size`` of
them; its calls are taken to run at once, which is the faster reading. A multiple is printed
only where the method is shown to be no worse (see :func:`combee_dspy.bench.compare`).

Without ``--path`` the rows are those of formula-mini. Everything is simulated: no language model
answers, and what a crowded call loses is a stated law of the service (see
:class:`combee_dspy.lms.CapacityModel`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import dspy

from combee_dspy.aggregators import Aggregator, ParallelScan, SingleCall
from combee_dspy.artifacts import PlaybookArtifact, write_text
from combee_dspy.bench.compare import Comparison, compare
from combee_dspy.bench.record import LABEL
from combee_dspy.bench.speed import quietly
from combee_dspy.benchmarks import Benchmark, Split, load_benchmark
from combee_dspy.combee import Combee
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms import SimulatedConfig, SimulatedService, SimulatedTask
from combee_dspy.reflections import estimate_tokens
from combee_dspy.rollouts import Threads, run_rollout
from combee_dspy.streams import derive_seed

__all__ = ["BATCHES", "METHODS", "EpochRow", "KeptRow", "Method", "PlaybookOptions", "main", "run_epoch", "run_kept"]

BATCHES = (1, 10, 40, 100)
"""Batch sizes of the first figure; the paper's are 1, 40 and 100."""

_CURATOR_BATCH = 10
"""Insights for one curator of ACE's batched mode: its pull request names no default, 10 is ours."""

_FAN_IN = 8
"""Insights for one shard of Combee on ACE. Code joins the shards, so more and smaller ones cost no merge
call, and an answer takes as long as it has operations."""


@dataclass(frozen=True, slots=True)
class Method:
    """How one method learns a playbook.

    Attributes:
        batch: Examples in a minibatch.
        aggregator: How insights become curator calls.
        told: What it is, for a reader.
    """

    batch: int
    aggregator: Aggregator
    told: str


METHODS: Mapping[str, Method] = {
    "ace": Method(1, SingleCall(), "ACE, batch of one"),
    "ace-batched": Method(
        40,
        ParallelScan(copies=2, placement="plain", fan_in=_CURATOR_BATCH),
        f"ACE's own batched mode, re-created, {_CURATOR_BATCH} insights a curator",
    ),
    "combee": Method(40, ParallelScan(fan_in=_FAN_IN), f"Combee on ACE, batch of 40, {_FAN_IN} insights a shard"),
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
    """

    path: str | None = None
    examples: int | None = None
    heldout: int | None = None
    slots: int = 64
    time_scale: float = 0.2


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
            with SimulatedService(SimulatedConfig(seed=seed, slots=options.slots, time_scale=0), task) as service:
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
        with SimulatedService(SimulatedConfig(seed=seed, slots=options.slots, time_scale=scale), task) as service:
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
    artifact = PlaybookArtifact(validate_every=0)
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


def kept_table(rows: Iterable[KeptRow]) -> str:
    """Return the first figure as a Markdown table."""
    lines = [
        f"{LABEL}; what a crowded call loses is the service's stated law.",
        "",
        "| batch | method | bullets | lessons kept | playbook tokens | held-out |",
        "| ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    told = {"naive": "naive ACE, one curator call", "combee": "Combee on ACE"}
    lines += [
        f"| {row.batch} | {told[row.method]} | {row.bullets} | {row.lessons} of {row.known} | {row.tokens:,} "
        f"| {row.heldout:.3f} |"
        for row in rows
    ]
    return "\n".join(lines)


def versus(rows: Sequence[EpochRow], method: str, *, seed: int = 0) -> Comparison:
    """Return a method beside batch one: all seeds' held-out examples paired, seconds of the timed seeds.

    Args:
        rows: Rows of both, for the same seeds.
        method: The method.
        seed: Seed of the resampling.

    Raises:
        ArgumentValueError: The rows do not pair, or none was timed.
    """
    first = next(iter(METHODS))
    pairs = [_of(rows, name) for name in (first, method)]
    if not pairs[0] or [row.seed for row in pairs[0]] != [row.seed for row in pairs[1]]:
        raise ArgumentValueError("rows", method, f"do not pair with those of {first}", "Run both on the same seeds.")
    before, after = ([score for row in found for score in row.scores] for found in pairs)
    seconds = [_seconds(found) for found in pairs]
    if None in seconds:
        raise ArgumentValueError("rows", method, "hold no timed run", "Time at least one seed.")
    return compare(
        first,
        before,
        after,
        seconds=(seconds[0] or 0.0, seconds[1] or 0.0),
        seed=derive_seed(seed, "bench playbook", method),
    )


def epoch_table(rows: Sequence[EpochRow]) -> str:
    """Return the second figure as a Markdown table, means over seeds."""
    lines = [
        f"{LABEL}; simulated seconds at full scale, client's own work included; tokens and bullets are means.",
        "",
        "| method | seconds | task tokens | reflector | curator | bullets | held-out | difference, 95 % | faster |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: |",
    ]
    first = next(iter(METHODS))
    for name in dict.fromkeys(row.method for row in rows):
        found = _of(rows, name)
        tokens = [statistics.fmean(row.tokens.get(role, 0) for row in found) for role in _ROLES]
        held = statistics.fmean(score for row in found for score in row.scores)
        seconds = _seconds(found)
        difference = times = ""
        paired = [row.seed for row in found] == [row.seed for row in _of(rows, first)]
        if name != first and paired and None not in (seconds, _seconds(_of(rows, first))):
            beside = versus(rows, name)
            difference = f"{beside.difference:+.3f} ({beside.low:+.3f} to {beside.high:+.3f})"
            times = "not shown to be no worse" if beside.times_faster is None else f"{beside.times_faster:.1f}"
        lines.append(
            f"| {METHODS[name].told} | {'' if seconds is None else format(seconds, ',.0f')} "
            f"| {' | '.join(format(one, ',.0f') for one in tokens)} "
            f"| {statistics.fmean(row.bullets for row in found):.1f} | {held:.3f} | {difference} | {times} |"
        )
    seeds = sorted({row.seed for row in rows})
    timed = sorted({row.seed for row in rows if row.seconds is not None})
    examples = sum(len(row.scores) for row in _of(rows, first))
    lines += ["", f"{len(seeds)} seeds, {examples:,} held-out pairs; seconds from {len(timed)} of the seeds."]
    return "\n".join(lines)


_ROLES = ("task", "reflector", "proposer")


def _of(rows: Sequence[EpochRow], method: str) -> list[EpochRow]:
    return sorted((row for row in rows if row.method == method), key=lambda row: row.seed)


def _seconds(rows: Sequence[EpochRow]) -> float | None:
    found = [row.seconds for row in rows if row.seconds is not None]
    return statistics.fmean(found) if found else None


def _seeds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what the command line asks for and print the table."""
    parser = argparse.ArgumentParser(prog="python -m combee_dspy.bench.playbook", description=__doc__)
    parser.add_argument("figure", choices=("kept", "epoch"))
    parser.add_argument("--path", help="directory with Formula's train, validation and test.jsonl")
    parser.add_argument("--examples", type=int, help="training examples; by default all")
    parser.add_argument("--heldout", type=int, help="held-out examples; by default all")
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)), help="for kept")
    parser.add_argument("--seeds", type=_seeds, default=[0], help="a seed, or first-last; kept takes the first")
    parser.add_argument("--methods", default=",".join(METHODS), help="for epoch; what is missing is read from --json")
    parser.add_argument("--timed", type=int, default=1, help="how many of the seeds are timed")
    parser.add_argument("--time-scale", type=float, default=0.2, help="wall seconds per simulated second")
    parser.add_argument("--json", type=Path, help="where rows are noted; a broken-off run of epoch goes on from it")
    asked = parser.parse_args(arguments)
    options = PlaybookOptions(asked.path, asked.examples, asked.heldout, asked.slots, asked.time_scale)
    if asked.figure == "kept":
        kept = list(run_kept(options, [int(size) for size in asked.batches.split(",")], asked.seeds[0]))
        if asked.json is not None:
            record = {"label": LABEL, "simulated": True, "rows": [asdict(row) for row in kept]}
            asked.json.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        sys.stdout.write(kept_table(kept) + "\n")
        return
    rows = _noted(asked.json)
    for number, seed in enumerate(asked.seeds):
        missing = [
            name for name in asked.methods.split(",") if (name, seed) not in {(row.method, row.seed) for row in rows}
        ]
        for row in run_epoch(options, seed, timed=number < asked.timed, methods=missing):
            rows.append(row)
            if asked.json is not None:
                with asked.json.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"simulated": True, **asdict(row)}) + "\n")
    sys.stdout.write(epoch_table([row for row in rows if row.seed in asked.seeds]) + "\n")


def _noted(path: Path | None) -> list[EpochRow]:
    if path is None or not path.exists():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        found.pop("simulated", None)
        rows.append(EpochRow(**{**found, "scores": tuple(found["scores"])}))
    return rows


if __name__ == "__main__":
    main()
