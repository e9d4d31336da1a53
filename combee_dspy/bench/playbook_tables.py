"""The playbook's figures as tables (see :mod:`combee_dspy.bench.playbook`). Pure."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np

from combee_dspy.bench.compare import MARGIN, Comparison
from combee_dspy.bench.playbook_runs import FAN_IN, METHODS, EpochRow, KeptRow
from combee_dspy.bench.record import LABEL
from combee_dspy.bench.side_statistics import Interval, crossed_interval
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.streams import derive_seed

__all__ = ["epoch_table", "kept_table", "versus"]


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
    """Return a method beside batch one: held-out paired by seed and example, seconds of the timed seeds.

    Seconds are those of the seeds that were timed with both. The interval is over seeds and examples
    (see :func:`combee_dspy.bench.side_statistics.crossed_interval`): what a method learned on one
    seed shows in all its examples at once.

    Args:
        rows: Rows of both, for the same seeds.
        method: The method.
        seed: Seed of the resampling.

    Raises:
        ArgumentValueError: The rows do not pair, or no seed was timed with both.
    """
    found = _difference(rows, method, seed)
    first = next(iter(METHODS))
    rows = _timed_alike(rows, (first, method))
    seconds = [_seconds(_of(rows, name)) for name in (first, method)]
    if None in seconds:
        raise ArgumentValueError("rows", method, "hold no timed run of the same seed", "Time one with both.")
    comparable = found.low > -MARGIN
    times = (seconds[0] or 0.0) / (seconds[1] or 1.0) if comparable else None
    return Comparison(first, found.mean, found.low, found.high, MARGIN, comparable, times)


def _difference(rows: Sequence[EpochRow], method: str, seed: int) -> Interval:
    first = next(iter(METHODS))
    pairs = [_of(rows, name) for name in (first, method)]
    if not pairs[0] or [row.seed for row in pairs[0]] != [row.seed for row in pairs[1]]:
        raise ArgumentValueError("rows", method, f"do not pair with those of {first}", "Run both on the same seeds.")
    before, after = (np.array([row.scores for row in found]) for found in pairs)
    if before.shape != after.shape:
        raise ArgumentValueError("rows", method, "were scored on other examples", "Run both on the same ones.")
    return crossed_interval(after - before, derive_seed(seed, "bench playbook", method))


def epoch_table(rows: Sequence[EpochRow]) -> str:
    """Return the second figure as a Markdown table, means over seeds; seconds over those timed with every method."""
    rows = _timed_alike(rows, {row.method for row in rows if row.seconds is not None})
    read = f"every batched row has fan_in={FAN_IN}, at most {FAN_IN} insights for a curator call"
    lines = [
        f"{LABEL}; simulated seconds at full scale, client's own work included; tokens and bullets are means; {read}.",
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
        if name != first and paired:
            beside = _difference(rows, name, 0)
            difference = f"{beside.mean:+.3f} ({beside.low:+.3f} to {beside.high:+.3f})"
            if None not in (seconds, _seconds(_of(rows, first))):
                faster = versus(rows, name).times_faster
                times = "not shown to be no worse" if faster is None else f"{faster:.1f}"
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


def _timed_alike(rows: Sequence[EpochRow], methods: Collection[str]) -> list[EpochRow]:
    """Return the rows with the seconds of those seeds only that were timed with each of some methods."""
    timed = [{row.seed for row in rows if row.method == name and row.seconds is not None} for name in methods]
    common = set.intersection(*timed) if timed else set()
    return [row if row.seed in common else replace(row, seconds=None) for row in rows]


_ROLES = ("task", "reflector", "proposer")


def _of(rows: Sequence[EpochRow], method: str) -> list[EpochRow]:
    return sorted((row for row in rows if row.method == method), key=lambda row: row.seed)


def _seconds(rows: Sequence[EpochRow]) -> float | None:
    found = [row.seconds for row in rows if row.seconds is not None]
    return statistics.fmean(found) if found else None
