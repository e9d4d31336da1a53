"""The table of ``combee bench speed``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from combee_dspy.bench import MethodResult, SpeedOptions, SpeedRun

__all__ = ["run_line", "speed_table", "width_of"]

_FIRST, _COLUMN = 36, 27


def width_of(methods: int) -> int:
    """Return the characters of a line that so many methods take."""
    return _FIRST + _COLUMN * methods


def run_line(run: SpeedRun, options: SpeedOptions) -> str:
    """Return what is said of one run when it ends."""
    after = sum(run.after) / len(run.after)
    took = "" if run.seconds is None else f"{_seconds(run.seconds)} {options.unit}, "
    which = f"seed {run.seed}" if run.repeat is None else f"repeat {run.repeat + 1} of {options.repeats}"
    return f"{run.method}, {which}: {took}held-out {after:.3f}"


def speed_table(options: SpeedOptions, results: Sequence[MethodResult]) -> Table:
    """Return the figures of all methods, one column each."""
    from rich.table import Table

    from combee_dspy.bench import MARGIN, METHODS

    first = options.methods[0]
    notes = [f"wall seconds × {1 / options.time_scale:g} = simulated seconds", options.law] if options.law else []
    if options.repeats > 1:
        fewer = options.peer_repeats
        but = "" if fewer is None else f", of dspy.GEPA of {fewer}"
        notes.append(f"median of {options.repeats}{but}; calls, tokens, slot use and bounds are of the median run")
    seeds = {len(result.seeds) for result in results}
    notes.append("held-out over " + " or ".join(f"{count} seed{'s' * (count > 1)}" for count in sorted(seeds)))
    if any(result.versus is not None and not result.versus.comparable for result in results):
        notes.append(f"not comparable: held-out is not shown to be within {MARGIN:g} of {first}'s")
    if any(result.repeated is False for result in results):
        notes.append("a timed run did not score on held-out what its repetition without latencies did")
    table = Table(
        title=f"One epoch of {options.examples} examples ({options.benchmark}), {options.slots} slots\n{options.label}",
        caption="\n".join([*notes, *(f"{result.method}: {METHODS[result.method].said}" for result in results)]),
        caption_justify="left",
    )
    table.add_column("")
    for result in results:
        table.add_column(result.method, justify="right", overflow="fold")
    columns = [_cells(result) for result in results]
    for number, title in enumerate(_TITLES):
        table.add_row(title.format(first=first, seconds=options.unit), *(column[number] for column in columns))
    return table


_TITLES = (
    "{seconds}, one epoch",
    "times faster than {first}",
    "updates",
    "planned sizes",
    "task calls",
    "task tokens",
    "reflection calls",
    "reflection tokens",
    "… of them written",
    "other calls",
    "guesses for nothing",
    "slot use",
    "own schedule, {seconds}",
    "efficiency",
    "… if long calls were known",
    "… without barriers",
    "validation",
    "held-out before",
    "held-out after",
    "gain, 95 % interval",
    "held-out minus {first}'s",
)
_UNKNOWN = "n/a"


def _cells(result: MethodResult) -> tuple[str, ...]:
    versus, run = result.versus, result.median
    times, against = "reference", ""
    if versus is not None:
        times = "not comparable" if versus.times_faster is None else f"{versus.times_faster:.1f} ×"
        against = f"{versus.difference:+.3f} [{versus.low:+.3f}, {versus.high:+.3f}]"
    return (
        _seconds(result.seconds),
        times,
        str(run.updates),
        _sizes(run.sizes),
        f"{run.calls.get('task', 0):,}",
        f"{run.tokens.get('task', 0):,}",
        f"{run.calls.get('reflect', 0):,}",
        f"{run.tokens.get('reflect', 0):,}",
        f"{run.written.get('reflect', 0):,}",
        f"{run.calls.get('other', 0):,}",
        "" if run.speculative is None else f"{run.speculative:,}",
        _share(run.slot_use),
        _UNKNOWN if run.bound is None else _seconds(run.bound.schedule),
        _share(run.efficiency),
        _share(run.staged_efficiency),
        _share(run.free_efficiency),
        f"{run.validation:.3f}",
        f"{result.before:.3f}",
        f"{result.heldout.mean:.3f}",
        f"{result.gain.mean:+.3f} [{result.gain.low:+.3f}, {result.gain.high:+.3f}]",
        against,
    )


def _share(value: float | None) -> str:
    return _UNKNOWN if value is None else f"{value:.1%}"


def _seconds(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _sizes(sizes: Sequence[int]) -> str:
    """Return sizes with repeats folded: ``3 8 20×11``."""
    folded: list[list[int]] = []
    for size in sizes:
        if folded and folded[-1][0] == size:
            folded[-1][1] += 1
        else:
            folded.append([size, 1])
    return " ".join(f"{size}×{count}" if count > 1 else str(size) for size, count in folded)
