"""What runs of an epoch come to, and how they are shown."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

from combee_bench.options import SpeedOptions
from combee_bench.statistics import Side, not_comparable, side_by_side
from combee_bench.surroundings import LABEL
from combee_bench.tables import by_columns

__all__ = ["SpeedRun", "line", "sides_of", "summary", "table"]


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


def sides_of(
    options: SpeedOptions, runs: Sequence[SpeedRun]
) -> tuple[list[Side[SpeedRun]], dict[tuple[str, int], float]]:
    """Return the methods side by side, and the median seconds of each method on each seed.

    How many times faster a method is than the first is the median over seeds of the ratio on a
    seed: how fast it is hangs on how many children are kept and on the slowest calls, which a seed
    has in common.
    """
    timed: dict[tuple[str, int], list[float]] = {}
    for run in runs:
        if run.seconds is not None:
            timed.setdefault((run.method, run.seed), []).append(run.seconds)
    took = {place: statistics.median(seconds) for place, seconds in timed.items()}

    def times(first: Sequence[SpeedRun], own: Sequence[SpeedRun]) -> float | None:
        if not took:
            return None
        return statistics.median(
            took[peer.method, peer.seed] / took[run.method, run.seed]
            for peer, run in zip(first, own, strict=True)
        )

    return side_by_side(runs, times, margin=options.margin), took


def summary(options: SpeedOptions, runs: Sequence[SpeedRun]) -> list[dict[str, Any]]:
    """Return the methods side by side as plain JSON data."""
    sides, took = sides_of(options, runs)
    return [
        {**side.figures(), "seconds": [took.get((side.method, run.seed)) for run in side.runs]}
        for side in sides
    ]


def line(options: SpeedOptions, run: SpeedRun) -> str:
    """Return what is said of one run when it ends."""
    took = "" if run.seconds is None else f"{_seconds(run.seconds)} s, "
    return (
        f"{run.method}, seed {run.seed}, repeat {run.repeat + 1}: {took}held-out"
        f" {statistics.fmean(run.after):.3f}"
    )


def _describe(options: SpeedOptions) -> str:
    if options.auto is None:
        return f"One epoch of {options.examples} examples"
    return f"auto={options.auto!r} on {options.examples} and {options.validation} examples"


def table(options: SpeedOptions, runs: Sequence[SpeedRun]) -> Table:
    """Return the figures of all methods, one column each."""
    sides, took = sides_of(options, runs)
    title = f"{_describe(options)}, {options.slots} slots\n{options.lm or LABEL}"
    return by_columns(
        title, {side.method: _cells(options, side, took) for side in sides}, _notes(options, sides)
    )


def _cells(
    options: SpeedOptions, side: Side[SpeedRun], took: dict[tuple[str, int], float]
) -> dict[str, str]:
    def median(figure: Callable[[SpeedRun], float | None], form: str = "{:,.0f}") -> str:
        values = [value for run in side.runs if (value := figure(run)) is not None]
        return form.format(statistics.median(values)) if len(values) == len(side.runs) else "n/a"

    def counted(what: str, kind: str) -> str:
        return median(lambda run: getattr(run, what).get(kind, 0))

    seconds = {run.seed: took.get((side.method, run.seed)) for run in side.runs}
    measured = [value for value in seconds.values() if value is not None]
    of_seeds = seconds if len(seconds) > 1 else {}
    return {
        f"{'' if options.lm else 'simulated '}s": (
            _seconds(statistics.median(measured)) if measured else "n/a"
        ),
        "times faster than the first": "reference" if side.versus is None else str(side.versus),
        **{
            f"… seed {seed}, s": "n/a" if value is None else _seconds(value)
            for seed, value in of_seeds.items()
        },
        "updates": median(lambda run: run.updates),
        "task calls": counted("calls", "task"),
        "task tokens": counted("tokens", "task"),
        "reflection calls": counted("calls", "reflect"),
        "reflection tokens": counted("tokens", "reflect"),
        "… of them written": counted("written", "reflect"),
        "slot use": median(lambda run: run.slot_use, "{:.1%}"),
        "validation": median(lambda run: run.validation, "{:.3f}"),
        "held-out before": f"{side.before:.3f}",
        "held-out after": f"{side.heldout.mean:.3f}",
        "gain": side.gain.signed,
        "held-out minus the first's": "" if side.versus is None else side.versus.difference.signed,
    }


def _notes(options: SpeedOptions, sides: Sequence[Side[SpeedRun]]) -> list[str]:
    from combee_bench.speed.methods import METHODS

    notes = []
    if options.lm is None:
        reasoning = f"reasoning {options.reasoning_tokens:g} tokens; " * (
            options.program == "chain-of-thought"
        )
        grain = "kind of mistake with a formula" if options.lessons == "mistake" else "formula"
        accuracy = (
            f"right untaught {options.base_accuracy:.1%}, taught {options.taught_accuracy:.1%}"
        )
        worded = ", worded anew by each call" * (options.wordings == "each-call")
        worded += f", {options.quoting:.0%} of them quoting 13 words" * (options.quoting > 0)
        notes.append(
            f"(0.5 s + output tokens / 60) × lognormal(0.35); {reasoning}a lesson for each"
            f" {grain}{worded}; {accuracy}; temperature {options.temperature or 0:g}; time scale"
            f" {options.time_scale:g}"
            + f"; {options.refused:.0%} of requests refused by chance"
            * (options.refused > 0)
        )
    notes.append(
        f"medians over {len(options.seeds)} seed(s); held-out intervals are over examples and"
        " seeds, 95 %"
    )
    if any(side.versus is not None and not side.versus.comparable for side in sides):
        notes.append(not_comparable(options.margin))
    return [*notes, *(f"{side.method}: {METHODS[side.method].label}" for side in sides)]


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
