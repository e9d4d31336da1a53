"""Runs the methods for one epoch each, on one service.

Every method gets the same program, data, service and seed; only the end is set,
after the minibatch that completes one pass over the training examples. On the
simulated service seconds are its own simulated seconds at full scale: wall-clock
divided by the time scale, so what the client computes counts too, and counts
for more the smaller the scale.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import dspy

from combee_bench.endpoints import Endpoint, model_endpoint, simulated_endpoint
from combee_bench.options import SpeedOptions
from combee_bench.scoring import scores_of
from combee_bench.speed.methods import METHODS, OneEpoch, Terms
from combee_bench.speed.results import SpeedRun
from combee_bench.surroundings import load_rows, quietly
from combee_dspy.benchmarks import LoadedBenchmark
from combee_dspy.exceptions import ArgumentValueError
from combee_simulator import (
    CapacityModel,
    FailureRates,
    ReasoningLaw,
    SimulatedConfig,
    WordingLaw,
    benchmark_task,
)

__all__ = ["run", "service_config"]

_CAPACITIES = {"items": CapacityModel(), "reading": CapacityModel.reading()}


def run(options: SpeedOptions) -> Iterator[SpeedRun]:
    """Run each method for one epoch, as often as asked; the figures come one run at a time.

    Methods run in an order rotated by a part of the list from one repeat and seed to the
    next, so that a drift of the machine hits all. Options and data are checked at once.

    Raises:
        ArgumentValueError: An option cannot be used, or the benchmark has fewer rows than asked
            for.
        DataSourceError: The benchmark cannot be read.
    """
    for name in options.methods:
        if name not in METHODS and options.methods != ("all",):
            raise ArgumentValueError(
                "methods", name, "is no method", f"Methods: all, {', '.join(METHODS)}."
            )
    benchmark, params = _source(options)
    module = dspy.ChainOfThought if options.program == "chain-of-thought" else dspy.Predict
    sizes = {
        "train": options.examples,
        "validation": options.validation,
        "heldout": options.heldout,
    }
    rows = load_rows(benchmark, params, **sizes)
    signature = rows.signature
    return _runs(replace(rows, program=lambda: module(signature)), options)


def _source(options: SpeedOptions) -> tuple[str, dict[str, Any]]:
    if options.path is None:
        return "formula-mini", {"task": "compute"}
    return "formula", {"path": str(options.path)}


def _runs(rows: LoadedBenchmark, options: SpeedOptions) -> Iterator[SpeedRun]:
    names = tuple(METHODS) if options.methods == ("all",) else options.methods
    turns = options.repeats * len(options.seeds)
    for turn in range(turns):
        seed, repeat = options.seeds[turn // options.repeats], turn % options.repeats
        first = turn * len(names) // turns
        with _endpoint(rows, options, seed) as endpoint:
            for name in names[first:] + names[:first]:
                yield _run(name, rows, options, endpoint, seed, repeat)


def _endpoint(
    rows: LoadedBenchmark, options: SpeedOptions, seed: int
) -> AbstractContextManager[Endpoint]:
    if options.lm is not None:
        where: dict[str, Any] = {"api_base": options.api_base, "api_key_env": options.api_key_env}
        return nullcontext(
            model_endpoint(
                options.lm, temperature=options.temperature, slots=options.slots, **where
            )
        )
    task = benchmark_task(rows, seed, params=_source(options)[1], base_rate=options.base_accuracy)
    task = replace(task, taught_rate=options.taught_accuracy)
    if options.lessons == "mistake":
        task = task.by_mistake()
    return simulated_endpoint(service_config(options, seed), task, temperature=options.temperature)


def service_config(options: SpeedOptions, seed: int) -> SimulatedConfig:
    """Return the settings of the simulated service."""
    reasons = options.program == "chain-of-thought"
    return SimulatedConfig(
        seed=seed,
        slots=options.slots,
        time_scale=options.time_scale,
        capacity=_CAPACITIES[options.attention],
        failures=FailureRates(rate_limited=options.refused),
        reasoning=(
            ReasoningLaw(options.reasoning_tokens, options.reasoning_spread) if reasons else None
        ),
        wording=WordingLaw(options.wordings == "each-call", options.quoting),
    )


def _run(
    name: str,
    rows: LoadedBenchmark,
    options: SpeedOptions,
    endpoint: Endpoint,
    seed: int,
    repeat: int,
) -> SpeedRun:
    stop = OneEpoch(options.examples if options.auto is None else None)
    terms = Terms(
        rows.metric,
        options.examples,
        options.slots,
        seed,
        endpoint.reflection_lm,
        stop,
        options.auto,
    )
    with dspy.context(**endpoint.settings()), quietly():
        student = rows.program()
        optimizer = METHODS[name].make(terms)
        with endpoint.counting() as counted:
            started = time.monotonic()
            program = optimizer.compile(
                student, trainset=list(rows.train.examples), valset=list(rows.validation.examples)
            )
            wall = time.monotonic() - started
    busy = counted.busy_seconds
    timed = options.lm is not None or options.time_scale > 0
    seconds = wall / endpoint.time_scale if timed else None
    before, after = (
        scores_of(which, rows, endpoint, options.slots) for which in (student, program)
    )
    report = getattr(program, "combee_report", None)
    best = (
        max(program.detailed_results.val_aggregate_scores) if report is None else report.best_score
    )
    return SpeedRun(
        method=name,
        seed=seed,
        repeat=repeat,
        seconds=seconds,
        wall_seconds=wall,
        updates=stop.iterations if report is None else report.updates,
        calls={kind: tally.calls for kind, tally in counted.tallies.items()},
        tokens={
            kind: tally.prompt_tokens + tally.completion_tokens
            for kind, tally in counted.tallies.items()
        },
        written={kind: tally.completion_tokens for kind, tally in counted.tallies.items()},
        slot_use=busy / (seconds * options.slots) if busy and seconds else None,
        validation=best,
        before=before,
        after=after,
    )
