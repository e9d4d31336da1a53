"""Several methods on one benchmark and one endpoint: the same rows, budget and seeds for each."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import dspy
from rich.table import Table

from combee_bench.baselines import ALL_LIMITS, Baseline, BaselineTask, build_baseline
from combee_bench.endpoints import Counted, Endpoint, model_endpoint, simulated_endpoint
from combee_bench.options import (
    HELDOUT,
    ROLLOUTS,
    TRAIN,
    VALIDATION,
    CompareOptions,
    check_budget,
)
from combee_bench.own import Own, read_own
from combee_bench.scoring import scores_of
from combee_bench.statistics import Side, mean_of, not_comparable, pareto_best, side_by_side
from combee_bench.surroundings import LABEL, load_rows, quietly
from combee_bench.tables import by_columns
from combee_dspy.benchmarks import LoadedBenchmark
from combee_dspy.costs import Price
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import NO_BASELINE
from combee_dspy.rollouts import run_in_daemon
from combee_dspy.stopping import Limits
from combee_simulator import SimulatedConfig, benchmark_task

__all__ = ["CompareRun", "line", "run", "sides_of", "summary", "table"]

T = TypeVar("T")

_INTERRUPTED = 130  # what a shell expects

_FORMS = {
    "seconds": "{:,.0f}",
    "rollouts": "{:,.0f}",
    "tokens": "{:,.0f}",
    "dollars": "{:.4f}",
    "gpu_seconds": "{:,.0f}",
}
AXES = tuple(_FORMS)
"""What a held-out score is set against."""

_EMBEDDED_TASK = {"task": "route", "levels": (1,), "formulas": 6}
"""The task that the embedded model can learn (see ``combee demo``)."""


@dataclass(frozen=True, slots=True)
class CompareRun:
    """One run of one method.

    Attributes:
        method: Its name.
        seed: Its seed.
        seconds: Seconds of the search.
        tokens: Tokens of the search.
        dollars: Dollars of the search; ``None`` where not known.
        rollouts: Rollouts bought.
        validation: Mean validation score of what it chose; ``None`` where it does not say.
        note: What it did otherwise than a reader would expect.
        versions: Which implementation of the method this is.
        before: Held-out score of the student per example.
        after: Held-out score of what the method chose, in the same order.
        gpu_seconds: GPU-seconds of the search; ``None`` where no GPUs are declared.
        serial: Whether the method is the serial baseline.
        limits: What it might spend.
    """

    method: str
    seed: int
    seconds: float
    tokens: int
    dollars: float | None
    rollouts: int
    validation: float | None
    note: str
    versions: dict[str, str]
    before: tuple[float, ...] = field(repr=False)
    after: tuple[float, ...] = field(repr=False)
    gpu_seconds: float | None = None
    serial: bool = False
    limits: Limits = field(default_factory=partial(Limits, rollouts=ROLLOUTS))


def run(options: CompareOptions) -> Iterator[CompareRun]:
    """Run every method on every seed; results come one run at a time, seed by seed.

    Options and data are checked at once, before the first method runs.

    Raises:
        UnknownStrategyError: A method is not installed.
        PluginError: A method is installed and cannot be loaded.
        DataSourceError: The benchmark cannot be read.
    """
    methods = [build_baseline(name) for name in options.methods]
    for method in methods:
        method.prepare()
    if options.config is not None:
        own = read_own(options.config)
        options = replace(options, log_dir=options.log_dir or own.compared)
        limits = (None if options.budget else own.limits()) or _limits(options)
        if limits.rollouts is not None:
            check_budget(limits.rollouts, len(own.rows.validation))
        for method in methods:
            if all(getattr(limits, name) is None for name in method.ends_by):
                ends = " and ".join(method.ends_by)
                problem = f"holds a method that ends by {ends} alone, and the budget is"
                problem += f" {_limits_in_words(limits)}"
                remedy = "Leave it out, or give --budget."
                raise ArgumentValueError("methods", method.name, problem, remedy)
        return _runs(options, methods, own.rows, limits, own)
    sizes = {
        "train": options.train or TRAIN,
        "validation": options.validation or VALIDATION,
        "heldout": options.heldout or HELDOUT,
    }
    rows = load_rows(options.benchmark or "formula-mini", _params(options), **sizes)
    return _runs(options, methods, rows, _limits(options))


def _limits(options: CompareOptions) -> Limits:
    return Limits(rollouts=options.budget or ROLLOUTS)


def _params(options: CompareOptions) -> dict[str, Any]:
    if options.path is not None:
        return {"path": str(options.path)}
    if options.benchmark not in (None, "formula-mini"):
        return {}
    if options.task is None and options.lm == "embedded":
        return _EMBEDDED_TASK
    return {"task": options.task or "compute"}


def _runs(
    options: CompareOptions,
    methods: Sequence[Baseline],
    rows: LoadedBenchmark,
    limits: Limits,
    own: Own | None = None,
) -> Iterator[CompareRun]:
    began = time.strftime("%Y-%m-%dT%H-%M-%S")
    place = None if options.log_dir is None else options.log_dir / began
    threads = options.threads or (4 if options.lm == "embedded" else 32)
    for seed in options.seeds:
        with _endpoint(options, rows, own, seed, threads) as endpoint:
            # The readings of the held-out set are in no method's price: the student is read once
            # for all of them.
            before = _interruptible(partial(scores_of, rows.program(), rows, endpoint, threads))
            for method in methods:
                log_dir = None if place is None else place / f"{method.name}-{seed}"
                task = BaselineTask(
                    rows.program(),
                    rows,
                    endpoint.reflection_lm,
                    limits.rollouts or 0,
                    threads,
                    seed,
                    log_dir,
                    limits,
                    costs=endpoint.costs,
                )
                yield _interruptible(partial(_run, options, method, task, endpoint, before))


def _interruptible(work: Callable[[], T]) -> T:
    """Carry out work of a peer's code, which Ctrl-C ends, and with it the process: threads of a
    peer's own go on, and Python would wait for them.
    """
    out, err = sys.stdout, sys.stderr  # what is measured has others meanwhile
    try:
        return run_in_daemon(work)
    except KeyboardInterrupt:
        out.flush()
        print("error: interrupted", file=err, flush=True)
        os._exit(_INTERRUPTED)


def _run(
    options: CompareOptions,
    method: Baseline,
    task: BaselineTask,
    endpoint: Endpoint,
    before: tuple[float, ...],
) -> CompareRun:
    with dspy.context(**endpoint.settings()), quietly(), endpoint.counting() as counted:
        started = time.monotonic()
        is_over = partial(_is_over, task.limits, counted, started)
        result = method.search(replace(task, is_over=is_over))
        seconds = (time.monotonic() - started) / endpoint.time_scale
    return CompareRun(
        method=method.name,
        seed=task.seed,
        limits=task.limits,
        seconds=seconds,
        tokens=counted.tokens,
        dollars=counted.dollars,
        rollouts=result.rollouts,
        validation=result.validation,
        note=" ".join(filter(None, (result.note, _passed(method, task.limits)))),
        versions=dict(method.versions()),
        before=before,
        after=scores_of(result.program, task.rows, endpoint, task.threads),
        gpu_seconds=None if options.gpus is None else options.gpus * seconds,
        serial=method.serial,
    )


def _is_over(limits: Limits, counted: Counted, started: float) -> bool:
    """Return whether tokens, dollars or seconds are spent. Dollars that nobody knows are."""
    tokens, dollars = counted.spent()
    spent = {"tokens": tokens, "dollars": dollars, "seconds": time.monotonic() - started}
    return any(
        (most := getattr(limits, name)) is not None and (amount is None or amount >= most)
        for name, amount in spent.items()
    )


def _passed(method: Baseline, limits: Limits) -> str:
    """Say which limits were no reason for a method to stop."""
    ignored = [
        name
        for name in ALL_LIMITS
        if getattr(limits, name) is not None and name not in method.ends_by
    ]
    return f"It does not end by {' and '.join(ignored)}." if ignored else ""


def _endpoint(
    options: CompareOptions, rows: LoadedBenchmark, own: Own | None, seed: int, threads: int
) -> AbstractContextManager[Endpoint]:
    price = None if options.prices is None else Price(*options.prices)
    if own is not None:
        return own.endpoint(price)
    if options.lm is None:
        task = benchmark_task(rows, seed, params=_params(options))
        config = SimulatedConfig(seed=seed, slots=threads, time_scale=options.time_scale)
        return simulated_endpoint(config, task, price=price)
    where: dict[str, Any] = {"api_base": options.api_base, "api_key_env": options.api_key_env}
    return nullcontext(
        model_endpoint(options.lm, options.reflection_lm, slots=threads, price=price, **where)
    )


def sides_of(
    options: CompareOptions, runs: Sequence[CompareRun]
) -> tuple[list[Side[CompareRun]], dict[str, tuple[str, ...]]]:
    """Return the methods side by side, and for each cost the methods that are best by it.

    Best: no other method has at least its held-out score for at most its cost. One method alone is
    best at nothing, and what costs nothing tells no method from another.
    """

    def times(first: Sequence[CompareRun], own: Sequence[CompareRun]) -> float:
        return sum(run.seconds for run in first) / sum(run.seconds for run in own)

    sides = side_by_side(runs, times, margin=options.margin)
    best = {}
    for axis in AXES:
        points = {side.method: (mean_cost(side, axis), side.heldout.mean) for side in sides}
        telling = len(points) > 1 and any(cost for cost, _ in points.values())
        best[axis] = pareto_best(points) if telling else ()
    return sides, best


def mean_cost(side: Side[CompareRun], axis: str) -> float | None:
    """Return the mean cost of a run on one axis; ``None`` where one is not known."""
    return mean_of([getattr(run, axis) for run in side.runs])


def serial_of(sides: Sequence[Side[CompareRun]]) -> Side[CompareRun] | None:
    """Return the serial baseline among methods, or ``None`` where there is none."""
    return next((side for side in sides if side.runs[0].serial), None)


def point_cost(side: Side[CompareRun], serial: Side[CompareRun] | None, axis: str) -> float | None:
    """Return what a held-out point above the serial baseline's result cost, where that is known.

    The cost is the method's own, whole: it need not run the baseline first.
    """
    cost = mean_cost(side, axis)
    points = 0.0 if serial is None else 100 * (side.heldout.mean - serial.heldout.mean)
    return None if cost is None or points <= 0 else cost / points


def summary(options: CompareOptions, runs: Sequence[CompareRun]) -> list[dict[str, Any]]:
    """Return the methods side by side as plain JSON data."""
    sides, best = sides_of(options, runs)
    serial = serial_of(sides)
    return [
        {
            **side.figures(),
            **{axis: mean_cost(side, axis) for axis in AXES},
            "serial_baseline": None if serial is None else serial.method,
            "per_point": {axis: point_cost(side, serial, axis) for axis in AXES},
            "best_on": [axis for axis in AXES if side.method in best[axis]],
        }
        for side in sides
    ]


def line(options: CompareOptions, run: CompareRun) -> str:
    """Return what is said of one run when it ends."""
    held = f"held-out {statistics.fmean(run.before):.2f} → {statistics.fmean(run.after):.2f}"
    spent = f"{run.tokens:,} tokens, {run.rollouts} rollouts, {run.seconds:,.0f} s"
    return f"{run.method} seed {run.seed}: {held} for {spent}"


def _limits_in_words(limits: Limits) -> str:
    amounts = {name: getattr(limits, name) for name in ALL_LIMITS}
    return ", ".join(f"{most:,g} {name}" for name, most in amounts.items() if most is not None)


def _title(options: CompareOptions, runs: Sequence[CompareRun]) -> str:
    seeds = f"{len(options.seeds)} seeds" if len(options.seeds) > 1 else f"seed {options.seeds[0]}"
    data = (
        f"{len(runs[0].after)} held-out examples, {_limits_in_words(runs[0].limits)} each, {seeds}"
    )
    if options.config is not None:
        return f"{options.config.name}: {data}"
    return f"{options.lm or LABEL}: {options.benchmark or 'formula-mini'}, {data}"


def table(options: CompareOptions, runs: Sequence[CompareRun]) -> Table:
    """Return the figures of all methods, one column each."""
    sides, best = sides_of(options, runs)
    serial = serial_of(sides)
    notes = ["★ Pareto-best: no other method has at least its held-out score for at most this cost"]
    if options.lm is None and options.config is None:
        notes.append(f"wall seconds × {1 / options.time_scale:g} = simulated seconds")
    if any(side.versus is not None and not side.versus.comparable for side in sides):
        notes.append(not_comparable(options.margin))
    if len(options.seeds) == 1:
        notes.append("one seed: intervals say nothing about other seeds")
    if serial is None:
        notes.append(f"cost of a point: {NO_BASELINE} (add gepa to the methods)")
    notes += [
        f"{run.method}: {run.note}" for run in runs if run.seed == options.seeds[0] and run.note
    ]
    return by_columns(
        _title(options, runs), {side.method: _cells(side, serial, best) for side in sides}, notes
    )


def _cells(
    side: Side[CompareRun], serial: Side[CompareRun] | None, best: dict[str, tuple[str, ...]]
) -> dict[str, str]:
    def cost(axis: str, form: str) -> str:
        mean = mean_cost(side, axis)
        mark = "★ " if side.method in best[axis] else ""
        return "unknown" if mean is None else mark + form.format(mean)

    def per_point(axis: str, form: str) -> str:
        points = point_cost(side, serial, axis)
        if points is not None:
            return form.format(points)
        return "" if side is serial else "unknown" if mean_cost(side, axis) is None else "not above"

    def costs(*axes: str) -> dict[str, str]:
        figures: dict[str, str] = {}
        for axis in axes:
            figures[f"{_axis_name(axis)} to reach it"] = cost(axis, _FORMS[axis])
            if serial is not None:
                point = per_point(axis, _FORMS[axis])
                figures[f"{_axis_name(axis)} per point above serial"] = point
        return figures

    validation = mean_of([run.validation for run in side.runs])
    return {
        "version": ", ".join(f"{name} {number}" for name, number in side.runs[0].versions.items()),
        "held-out after, 95 %": str(side.heldout),
        # What a score costs comes first; how fast it came says little without the rollouts.
        **costs("dollars", "tokens"),
        "held-out before": f"{side.before:.3f}",
        "gain, 95 %": side.gain.signed,
        "held-out minus the first's": "" if side.versus is None else side.versus.difference.signed,
        "validation": "" if validation is None else f"{validation:.3f}",
        **costs("rollouts", "seconds", "gpu_seconds"),
        "times faster than the first": "reference" if side.versus is None else str(side.versus),
    }


def _axis_name(axis: str) -> str:
    return axis.replace("gpu_", "GPU-")
