"""Charts of the strategist's pages: SVG and HTML that load nothing. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Interval", "bars", "curve", "intervals", "progress"]

_WIDTH, _HEIGHT, _LEFT, _BELOW = 720, 240, 48, 30
_TICKS = 5


@dataclass(frozen=True, slots=True)
class Interval:
    """A difference with its interval, in score units, and what it must lie above.

    ``tone`` is a class of the report's style: ``better``, ``worse`` or ``unshown``.
    """

    label: str
    low: float
    difference: float
    high: float
    limit: float
    tone: str


def curve(points: Sequence[tuple[float, float]], across: str, up: str) -> str:
    """Return a line through points of x and a share, both axes from 0."""
    step = _round_up(max((x for x, _ in points), default=0.0) / _TICKS)
    most = step * max(1, math.ceil(max((x for x, _ in points), default=0.0) / step))
    width, height = _WIDTH - 2 * _LEFT, _HEIGHT - _BELOW - 10

    def place(x: float, y: float) -> str:
        return f"{_LEFT + width * x / most:.1f},{10 + height * (1 - min(1.0, max(0.0, y))):.1f}"

    count = round(most / step)
    lines = [
        f'<path d="M{place(0, share)} H{_LEFT + width}" stroke="var(--line)"/>'
        f'<text x="{_LEFT - 6}" y="{14 + height * (1 - share):.0f}" text-anchor="end">'
        f"{share:.0%}</text>"
        for share in (tick / _TICKS for tick in range(_TICKS + 1))
    ]
    lines += [
        f'<text x="{_LEFT + width * tick / count:.0f}" y="{_HEIGHT - 14}" text-anchor="middle">'
        f"{step * tick:,.10g}</text>"
        for tick in range(count + 1)
    ]
    line = " ".join(place(x, y) for x, y in points)
    dots = "".join(
        f'<circle cx="{at.partition(",")[0]}" cy="{at.partition(",")[2]}" r="3.5"/>'
        for at in line.split()
    )
    return (
        f'<figure><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img"'
        f' aria-label="{escape(up)} by {escape(across)}">{"".join(lines)}'
        f'<polyline points="{line}" fill="none" stroke="#e69f00" stroke-width="2"/>'
        f'<g fill="#0072b2">{dots}</g></svg>'
        f"<figcaption>{escape(up)}, by {escape(across)}</figcaption></figure>"
    )


def _round_up(number: float) -> float:
    """Return the next of 1, 2, 2.5 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(number)) if number > 0 else 1.0
    return next(power * times for times in (1, 2, 2.5, 5, 10) if power * times >= number)


def bars(rows: Sequence[tuple[str, float]]) -> str:
    """Return a bar for each label and share; the longest fills the width."""
    most = max((share for _, share in rows), default=0.0) or 1.0
    return "".join(
        f'<div class="bar"><b>{escape(label)}</b><span><i style="width:{100 * share / most:.1f}%">'
        f"</i></span><small>{share:.1%}</small></div>"
        for label, share in rows
    )


def progress(rows: Sequence[tuple[str, float, float]]) -> str:
    """Return for each label a bar of how much is reached of what is wanted; full at all of it."""
    return "".join(
        f'<div class="bar{" better" if reached >= wanted else ""}"><b>{escape(label)}</b><span>'
        f'<i style="width:{100 * min(1.0, reached / wanted) if wanted else 100:.1f}%"></i></span>'
        f"<small>{round(reached, 2):,.10g} of {wanted:,.10g}</small></div>"
        for label, reached, wanted in rows
    )


def intervals(rows: Sequence[Interval]) -> str:
    """Return each interval as a bar on one scale, with zero and what it must lie above."""
    if not rows:
        return ""
    low = min(0.0, *(min(row.low, row.limit) for row in rows))
    high = max(0.0, *(max(row.high, row.limit) for row in rows))
    span = (high - low) or 1.0

    def at(value: float) -> str:
        return f"{100 * (value - low) / span:.1f}%"

    shown = "".join(
        f'<div class="bar {row.tone}"><b>{escape(row.label)}</b><span>'
        f'<u style="left:{at(0)}"></u><u class="limit" style="left:{at(row.limit)}"></u>'
        f'<i style="margin-left:{at(row.low)};width:{100 * (row.high - row.low) / span:.1f}%"></i>'
        f'<em style="left:{at(row.difference)}"></em></span>'
        f"<small>{100 * row.difference:+.1f} points</small></div>"
        for row in rows
    )
    return f'{shown}<p class="sub">Grey line: zero. Dashed: what the interval must lie above.</p>'
