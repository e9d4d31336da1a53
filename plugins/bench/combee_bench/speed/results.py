"""What runs of an epoch come to: medians of seconds, held-out over seeds, and who may be called faster."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from combee_bench.options import SpeedOptions
from combee_bench.statistics import MARGIN, Comparison, Interval, compared, crossed_interval, score_table
from combee_bench.surroundings import LABEL
from combee_dspy.streams import derive_seed

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["MethodResult", "SpeedRun", "line", "results_of", "summary", "table"]


@dataclass(frozen=True, slots=True)
class SpeedRun:
    """One epoch of one method.

    Attributes:
        method: Its name.
        seed: Seed of service and method.
        repeat: Which run of this seed it is, from 0.
        seconds: Seconds at full scale; ``None`` where latencies were not waited for.
        wall_seconds: Wall-clock seconds.
        updates: Updates, which gepa calls iterations.
        calls: Calls by what was asked: ``task``, ``reflect`` or ``other``.
        tokens: Prompt and completion tokens by what was asked.
        written: Completion tokens by what was asked.
        slot_use: Share of the slots' time that was in use; ``None`` where not known.
        validation: Mean validation score of the result.
        before: Held-out score of the student per example.
        after: Held-out score of the result per example, in the same order.
    """

    method: str
    seed: int
    repeat: int
    seconds: float | None
    wall_seconds: float
    updates: int
    calls: dict[str, int]
    tokens: dict[str, int]
    written: dict[str, int]
    slot_use: float | None
    validation: float
    before: tuple[float, ...] = field(repr=False)
    after: tuple[float, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class MethodResult:
    """One method over all its runs.

    Attributes:
        method: Its name.
        runs: Its first run of each seed, by whose held-out scores it is judged.
        seconds: Median seconds of the runs of each seed, in the order of the seeds; empty where nothing was timed.
        before: Mean held-out score of the student.
        heldout: Held-out score of the result.
        gain: ``heldout`` minus ``before``, paired.
        versus: Beside the first method; ``None`` for the first itself.
    """

    method: str
    runs: tuple[SpeedRun, ...]
    seconds: tuple[float, ...]
    before: float
    heldout: Interval
    gain: Interval
    versus: Comparison | None = None

    def median(self, figure: Callable[[SpeedRun], float | None]) -> float | None:
        """Return the median over seeds; ``None`` where one is not known."""
        known = [value for run in self.runs if (value := figure(run)) is not None]
        return statistics.median(known) if len(known) == len(self.runs) else None


def results_of(runs: Sequence[SpeedRun]) -> list[MethodResult]:
    """Return one result per method on the seeds that all have finished, in the order of their first runs.

    How many times faster a method is than the first is the median over seeds of the ratio on a seed: how fast it
    is hangs on how many children are kept and on the slowest calls, which a seed has in common.
    """
    by_method: dict[str, dict[int, list[SpeedRun]]] = {}
    for one in runs:
        by_method.setdefault(one.method, {}).setdefault(one.seed, []).append(one)
    seeds = [seed for seed in dict.fromkeys(one.seed for one in runs) if all(seed in own for own in by_method.values())]
    found: list[MethodResult] = []
    for name, own in by_method.items():
        if not seeds:
            break
        first = tuple(own[seed][0] for seed in seeds)
        timed = [[one.seconds for one in own[seed] if one.seconds is not None] for seed in seeds]
        seconds = tuple(statistics.median(values) for values in timed) if all(timed) else ()
        before, after = (score_table([getattr(one, which) for one in first]) for which in ("before", "after"))
        versus: Comparison | None = None
        if found:
            base = score_table([one.after for one in found[0].runs])
            ratios = [peer / mine for peer, mine in zip(found[0].seconds, seconds, strict=bool(seconds))]
            times = statistics.median(ratios) if ratios else None
            versus = compared(found[0].method, name, base, after, times)
        gain = crossed_interval(after - before, derive_seed(0, "gain", name))
        heldout = crossed_interval(after, derive_seed(0, "heldout", name))
        found.append(MethodResult(name, first, seconds, float(before.mean()), heldout, gain, versus))
    return found


def summary(options: SpeedOptions, runs: Sequence[SpeedRun]) -> list[dict[str, Any]]:
    """Return the methods side by side as plain JSON data, without the scores of single examples."""
    data = [asdict(result) for result in results_of(runs)]
    for one in data:
        del one["runs"]
    return data


def line(options: SpeedOptions, run: SpeedRun) -> str:
    """Return what is said of one run when it ends."""
    took = "" if run.seconds is None else f"{_seconds(run.seconds)} s, "
    after = statistics.fmean(run.after)
    return f"{run.method}, seed {run.seed}, repeat {run.repeat + 1}: {took}held-out {after:.3f}"


def table(options: SpeedOptions, runs: Sequence[SpeedRun]) -> Table:
    """Return the figures of all methods, one column each."""
    from rich.table import Table

    results = results_of(runs)
    first = results[0].method if results else ""
    model = f"model {options.lm}" if options.lm else LABEL
    title = f"One epoch of {options.examples} examples, {options.slots} slots\n{model}"
    drawn = Table(title=title, caption="\n".join(_notes(options, results)), caption_justify="left")
    drawn.add_column("")
    for result in results:
        drawn.add_column(result.method, justify="right", overflow="fold")
    for said, cell in _rows(options, first):
        drawn.add_row(said, *(cell(result) for result in results))
    return drawn


def _notes(options: SpeedOptions, results: Sequence[MethodResult]) -> list[str]:
    from combee_bench.speed.methods import METHODS

    notes = []
    if options.lm is None:
        reasoning = f"reasoning {options.reasoning_tokens:g} tokens; " * (options.program == "chain-of-thought")
        notes.append(
            f"(0.5 s + output tokens / 60) × lognormal(0.35); {reasoning}a lesson for each "
            f"{'kind of mistake with a formula' if options.lessons == 'mistake' else 'formula'}; right untaught "
            f"{options.base_accuracy:.1%}, taught {options.taught_accuracy:.1%}; "
            f"temperature {options.temperature or 0:g}; time scale {options.time_scale:g}"
        )
    notes.append(f"medians over {len(options.seeds)} seed(s); held-out intervals are over examples and seeds, 95 %")
    if any(one.versus is not None and not one.versus.comparable for one in results):
        notes.append(f"not comparable: held-out is not shown to be within {MARGIN:g} of the first's")
    return [*notes, *(f"{one.method}: {METHODS[one.method].said}" for one in results)]


Row = tuple[str, Callable[[MethodResult], str]]


def _rows(options: SpeedOptions, first: str) -> list[Row]:
    unit = "s" if options.lm else "simulated s"
    many = len(options.seeds) > 1
    return [
        (f"{unit}, one epoch", lambda one: _seconds(statistics.median(one.seconds)) if one.seconds else "n/a"),
        (f"times faster than {first}", _times),
        *((f"… seed {seed}, {unit}", _of_seed(seed)) for seed in options.seeds if many),
        ("updates", lambda one: _figure(one.median(lambda run: run.updates))),
        ("task calls", _counted("calls", "task")),
        ("task tokens", _counted("tokens", "task")),
        ("reflection calls", _counted("calls", "reflect")),
        ("reflection tokens", _counted("tokens", "reflect")),
        ("… of them written", _counted("written", "reflect")),
        ("slot use", lambda one: "n/a" if (share := one.median(lambda run: run.slot_use)) is None else f"{share:.1%}"),
        ("validation", lambda one: f"{statistics.fmean(run.validation for run in one.runs):.3f}"),
        ("held-out before", lambda one: f"{one.before:.3f}"),
        ("held-out after", lambda one: f"{one.heldout.mean:.3f}"),
        ("gain", lambda one: one.gain.signed),
        (f"held-out minus {first}'s", lambda one: one.versus.difference.signed if one.versus else ""),
    ]


def _times(one: MethodResult) -> str:
    if one.versus is None:
        return "reference"
    if not one.versus.comparable:
        return "not comparable"
    return "n/a" if one.versus.times_faster is None else f"{one.versus.times_faster:.1f} ×"


def _of_seed(seed: int) -> Callable[[MethodResult], str]:
    def cell(one: MethodResult) -> str:
        known = {run.seed: seconds for run, seconds in zip(one.runs, one.seconds, strict=False)}
        return _seconds(known[seed]) if seed in known else ""

    return cell


def _counted(what: str, kind: str) -> Callable[[MethodResult], str]:
    return lambda one: _figure(one.median(lambda run: getattr(run, what).get(kind, 0)))


def _figure(value: float | None) -> str:
    return "n/a" if value is None else f"{value:,.0f}"


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
