"""Several methods on one benchmark and one endpoint: the same rows, budget and seeds for each."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dspy

from combee_bench.baselines import Baseline, BaselineTask, build_baseline
from combee_bench.endpoints import Endpoint, model_endpoint, simulated_endpoint
from combee_bench.options import CompareOptions
from combee_bench.pictures import figure
from combee_bench.scoring import scores_of
from combee_bench.simulated import SimulatedConfig, benchmark_task
from combee_bench.statistics import (
    MARGIN,
    Comparison,
    Interval,
    compared,
    crossed_interval,
    mean_of,
    pareto_best,
    score_table,
)
from combee_bench.surroundings import LABEL, load_rows, quietly
from combee_dspy.benchmarks import LoadedBenchmark
from combee_dspy.costs import Price
from combee_dspy.streams import derive_seed

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["CompareRun", "MethodSummary", "draw", "line", "run", "summaries", "summary", "table"]

AXES = ("seconds", "tokens", "dollars")
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
    sizes = {"train": options.train, "validation": options.validation, "heldout": options.heldout}
    return _runs(options, methods, load_rows(options.benchmark, _params(options), **sizes))


def _params(options: CompareOptions) -> dict[str, Any]:
    if options.path is not None:
        return {"path": str(options.path)}
    if options.benchmark != "formula-mini":
        return {}
    if options.task is None and options.lm == "embedded":
        return _EMBEDDED_TASK
    return {"task": options.task or "compute"}


def _runs(options: CompareOptions, methods: Sequence[Baseline], rows: LoadedBenchmark) -> Iterator[CompareRun]:
    threads = options.threads or (4 if options.lm == "embedded" else 32)
    for seed in options.seeds:
        with _endpoint(options, rows, seed, threads) as endpoint:
            # The readings of the held-out set are in no method's price: the student is read once for all of them.
            before = scores_of(rows.program(), rows, endpoint, threads)
            for method in methods:
                yield _run(options, method, rows, endpoint, seed, threads, before)


def _run(
    options: CompareOptions,
    method: Baseline,
    rows: LoadedBenchmark,
    endpoint: Endpoint,
    seed: int,
    threads: int,
    before: tuple[float, ...],
) -> CompareRun:
    student = rows.program()
    task = BaselineTask(student, rows, endpoint.reflection_lm, options.budget, threads, seed)
    with dspy.context(**endpoint.settings()), quietly(), endpoint.counting() as counted:
        started = time.monotonic()
        found = method.search(task)
        seconds = (time.monotonic() - started) / endpoint.time_scale
    return CompareRun(
        method=method.name,
        seed=seed,
        seconds=seconds,
        tokens=counted.tokens,
        dollars=counted.dollars,
        rollouts=found.rollouts,
        validation=found.validation,
        note=found.note,
        versions=dict(method.versions()),
        before=before,
        after=scores_of(found.program, rows, endpoint, threads),
    )


def _endpoint(
    options: CompareOptions, rows: LoadedBenchmark, seed: int, threads: int
) -> AbstractContextManager[Endpoint]:
    price = None if options.prices is None else Price(*options.prices)
    if options.lm is None:
        task = benchmark_task(rows, seed, params=_params(options))
        config = SimulatedConfig(seed=seed, slots=threads, time_scale=options.time_scale)
        return simulated_endpoint(config, task, price=price)
    where: dict[str, Any] = {"api_base": options.api_base, "api_key_env": options.api_key_env}
    return nullcontext(model_endpoint(options.lm, options.reflection_lm, slots=threads, price=price, **where))


@dataclass(frozen=True, slots=True)
class MethodSummary:
    """One method over all seeds.

    Attributes:
        method: Its name.
        before: Mean held-out score of the student.
        heldout: Held-out score of what it chose.
        gain: ``heldout`` minus ``before``, paired.
        seconds: Mean seconds a run.
        tokens: Mean tokens a run.
        dollars: Mean dollars a run; ``None`` where one is not known.
        rollouts: Mean rollouts a run.
        validation: Mean validation score; ``None`` where one is not known.
        versus: Beside the first method; ``None`` for the first itself. ``times_faster`` is a ratio of mean seconds.
        best_on: The axes on which no other method has at least its held-out score for at most its cost;
            empty for a method that stands alone.
    """

    method: str
    before: float
    heldout: Interval
    gain: Interval
    seconds: float
    tokens: float
    dollars: float | None
    rollouts: float
    validation: float | None
    versus: Comparison | None = None
    best_on: tuple[str, ...] = ()


def summaries(runs: Sequence[CompareRun]) -> list[MethodSummary]:
    """Return one summary per method, in the order of their first runs, on the seeds that all have finished."""
    by_method: dict[str, dict[int, CompareRun]] = {}
    for one in runs:
        by_method.setdefault(one.method, {})[one.seed] = one
    seeds = [seed for seed in dict.fromkeys(one.seed for one in runs) if all(seed in own for own in by_method.values())]
    if not seeds:
        return []
    chosen = {name: [own[seed] for seed in seeds] for name, own in by_method.items()}
    scores = {name: score_table([one.after for one in own]) for name, own in chosen.items()}
    costs = {
        axis: {name: mean_of([getattr(one, axis) for one in own]) for name, own in chosen.items()} for axis in AXES
    }
    best = {
        axis: _best(found, {name: float(own.mean()) for name, own in scores.items()}) for axis, found in costs.items()
    }
    first = next(iter(chosen))
    found: list[MethodSummary] = []
    for name, own in chosen.items():
        before = score_table([one.before for one in own])
        took = statistics.fmean(one.seconds for one in own)
        base = statistics.fmean(one.seconds for one in chosen[first])
        found.append(
            MethodSummary(
                method=name,
                before=float(before.mean()),
                heldout=crossed_interval(scores[name], derive_seed(0, "heldout", name)),
                gain=crossed_interval(scores[name] - before, derive_seed(0, "gain", name)),
                seconds=took,
                tokens=statistics.fmean(one.tokens for one in own),
                dollars=costs["dollars"][name],
                rollouts=statistics.fmean(one.rollouts for one in own),
                validation=mean_of([one.validation for one in own]),
                versus=None if name == first else compared(first, name, scores[first], scores[name], base / took),
                best_on=tuple(axis for axis in AXES if name in best[axis]),
            )
        )
    return found


def _best(costs: dict[str, float | None], scores: dict[str, float]) -> tuple[str, ...]:
    if len(costs) < 2 or not any(costs.values()):
        # One method alone is best at nothing, and what costs nothing tells no method from another.
        return ()
    return pareto_best({name: (cost, scores[name]) for name, cost in costs.items()})


def summary(options: CompareOptions, runs: Sequence[CompareRun]) -> list[dict[str, Any]]:
    """Return the methods side by side as plain JSON data."""
    return [asdict(one) for one in summaries(runs)]


def line(options: CompareOptions, run: CompareRun) -> str:
    """Return what is said of one run when it ends."""
    held = f"held-out {statistics.fmean(run.before):.2f} → {statistics.fmean(run.after):.2f}"
    return f"{run.method} seed {run.seed}: {run.rollouts} rollouts, {run.seconds:,.0f} s, {held}"


def _title(options: CompareOptions) -> str:
    seeds = f"{len(options.seeds)} seeds" if len(options.seeds) > 1 else f"seed {options.seeds[0]}"
    data = f"{options.benchmark}, {options.heldout} held-out examples, {options.budget} rollouts each, {seeds}"
    return f"{options.lm or LABEL}: {data}"


def table(options: CompareOptions, runs: Sequence[CompareRun]) -> Table:
    """Return the figures of all methods, one column each."""
    from rich.table import Table

    found = summaries(runs)
    notes = ["★ Pareto-best: no other method has at least its held-out score for at most this cost"]
    if options.lm is None:
        notes.append(f"wall seconds × {1 / options.time_scale:g} = simulated seconds")
    if any(one.versus is not None and not one.versus.comparable for one in found):
        notes.append(f"not comparable: held-out is not shown to be within {MARGIN:g} of the first's")
    if len(options.seeds) == 1:
        notes.append("one seed: intervals say nothing about other seeds")
    notes += [f"{one.method}: {one.note}" for one in runs if one.seed == options.seeds[0] and one.note]
    drawn = Table(title=_title(options), caption="\n".join(notes), caption_justify="left")
    drawn.add_column("")
    for one in found:
        drawn.add_column(one.method, justify="right", overflow="fold")
    versions = {one.method: one.versions for one in runs}
    columns = [_cells(one, versions[one.method]) for one in found]
    for title in columns[0] if columns else ():
        drawn.add_row(title, *(column[title] for column in columns))
    return drawn


def _cells(one: MethodSummary, versions: dict[str, str]) -> dict[str, str]:
    def cost(axis: str, shown: str) -> str:
        return f"★ {shown}" if axis in one.best_on else shown

    versus = one.versus
    times = "reference"
    if versus is not None:
        times = "not comparable" if versus.times_faster is None else f"{versus.times_faster:.1f} ×"
    return {
        "version": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "rollouts": f"{one.rollouts:,.0f}",
        "validation": "" if one.validation is None else f"{one.validation:.3f}",
        "held-out before": f"{one.before:.3f}",
        "held-out after, 95 %": str(one.heldout),
        "gain, 95 %": one.gain.signed,
        "held-out minus the first's": "" if versus is None else versus.difference.signed,
        "seconds": cost("seconds", f"{one.seconds:,.0f}"),
        "tokens": cost("tokens", f"{one.tokens:,.0f}"),
        "dollars": "unknown" if one.dollars is None else cost("dollars", f"{one.dollars:.4f}"),
        "times faster than the first": times,
    }


def draw(options: CompareOptions, runs: Sequence[CompareRun], path: Path) -> None:
    """Draw held-out score against each cost that is known: a point and its 95 % interval per method.

    The Pareto-best of a panel are filled; the others are rings.
    """
    found = summaries(runs)
    axes = [axis for axis in AXES if any(getattr(one, axis) for one in found)]
    with figure(path, _title(options), len(axes)) as panels:
        for panel, axis in zip(panels, axes, strict=True):
            for number, one in enumerate(found):
                cost = getattr(one, axis)
                if cost is None:
                    continue
                spread = [[one.heldout.mean - one.heldout.low], [one.heldout.high - one.heldout.mean]]
                style = "full" if axis in one.best_on else "none"
                panel.errorbar([cost], [one.heldout.mean], spread, fmt="o", color=f"C{number}", fillstyle=style)
                panel.annotate(one.method, (cost, one.heldout.mean), (6, 4), textcoords="offset points", fontsize=8)
            panel.set_xlim(left=0)
            panel.set_xlabel(axis)
        panels[0].set_ylabel("held-out score, 95 %")
