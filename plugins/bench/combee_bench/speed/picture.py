"""Seconds for one epoch and the held-out difference beside them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from combee_bench.options import SpeedOptions
from combee_bench.pictures import figure
from combee_bench.speed.results import SpeedRun, results_of
from combee_bench.statistics import MARGIN
from combee_bench.surroundings import LABEL

__all__ = ["draw"]


def draw(options: SpeedOptions, runs: Sequence[SpeedRun], path: Path) -> None:
    """Draw each method's seconds on a logarithmic axis, and its held-out difference to the first.

    Beside a bar stand the seconds and how many times faster than the first that is, where it may
    be said: where the interval on the right lies above the dashed margin.
    """
    results = results_of(runs)
    places = range(len(results))
    title = f"One epoch of {options.examples} examples, {options.slots} slots: {options.lm or LABEL}"
    with figure(path, title, 2, height=1.2 + 0.4 * len(results)) as (seconds, difference):
        medians = [statistics.median(one.seconds) if one.seconds else 0.0 for one in results]
        bars = seconds.barh(places, medians, color=["#507080" if one.versus is None else "#3366aa" for one in results])
        said = [f"{took:,.0f}" for took in medians]
        for place, one in enumerate(results):
            if one.versus is not None:
                times = one.versus.times_faster
                said[place] += " · not comparable" if times is None else f" · {times:.1f} ×"
        seconds.bar_label(bars, said, padding=3, fontsize=8)
        if min(medians, default=0.0) > 0:
            seconds.set_xscale("log")
            seconds.set_xlim(right=max(medians) * 6)
        seconds.set_xlabel("seconds" if options.lm else "simulated seconds")
        seconds.set_yticks(places, [one.method for one in results])
        for place, one in enumerate(results):
            if one.versus is not None:
                found = one.versus.difference
                difference.plot([found.low, found.high], [place, place], color="#3366aa")
                difference.plot(
                    found.mean, place, "o", color="#3366aa", fillstyle="full" if one.versus.comparable else "none"
                )
        difference.axvline(0, color="#888888", linewidth=0.8)
        difference.axvline(-MARGIN, color="#888888", linewidth=0.8, linestyle="--")
        difference.set_xlabel(f"held-out minus {results[0].method}'s, 95 %" if results else "")
        difference.set_yticks([])
        for axes in (seconds, difference):
            axes.set_ylim(len(results) - 0.4, -0.6)
