"""Held-out score against seconds, tokens and dollars, as one SVG. Pure; no library."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from combee_dspy.bench.side_statistics import AXES, MethodSummary

__all__ = ["compare_svg"]

_PANEL, _HEIGHT = 300, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 20, 56, 44
_GAP = 16
_TICKS = 4
_LINE = 12
_LEGEND = "Filled: no other method does as well for as little. Bars: 95 % over examples and seeds."
_COLOURS = ("#3366aa", "#bb5533", "#2e8b57", "#8855aa", "#a07000", "#507080")


def compare_svg(summaries: Sequence[MethodSummary], label: str) -> str:
    """Draw held-out score against each cost: a point and its 95 % interval per method.

    The Pareto-best of a panel are filled and joined by a line; the others are
    rings. A panel is left out where its cost is not known, or is zero, for all
    methods. Everything that colour says, place and words say too.

    Args:
        summaries: The methods.
        label: What the figures stand on; shown in the picture.

    Returns:
        A whole SVG document.
    """
    axes = [axis for axis in AXES if any(_cost(summary, axis) for summary in summaries)]
    width = _GAP + max(1, len(axes)) * (_PANEL + _GAP)
    low, high = _range(summaries)
    parts = [_text(_GAP, 20, "Held-out score against cost, one point a method", 14, "600"), _text(_GAP, 38, label, 11)]
    for number, axis in enumerate(axes):
        parts += _panel(summaries, axis, _GAP + number * (_PANEL + _GAP), low, high)
    height = _TOP + _HEIGHT + 26
    parts.append(_text(_GAP, height - 8, _LEGEND, 10))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(label, quote=True)}" font-family="system-ui, sans-serif">'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )


def _panel(summaries: Sequence[MethodSummary], axis: str, x0: float, low: float, high: float) -> list[str]:
    known = [(number, one, cost) for number, one in enumerate(summaries) if (cost := _cost(one, axis)) is not None]
    most = max(cost for _, _, cost in known) * 1.15 or 1.0
    left, right = x0 + _LEFT, x0 + _PANEL - _RIGHT
    top, bottom = _TOP + 8, _TOP + _HEIGHT - _BOTTOM

    def across(cost: float) -> float:
        return left + (right - left) * cost / most

    def up(score: float) -> float:
        return bottom - (bottom - top) * (score - low) / (high - low)

    frame = f'x="{left}" y="{top}" width="{right - left}" height="{bottom - top}"'
    parts = [f'<rect {frame} fill="none" stroke="#cccccc"/>']
    for step in range(_TICKS + 1):
        score, cost = low + (high - low) * step / _TICKS, most * step / _TICKS
        parts.append(_text(left - 6, up(score) + 3, f"{score:.2f}", 9, anchor="end"))
        parts.append(_text(across(cost), bottom + 13, _short(cost), 9, anchor="middle"))
    parts.append(_text((left + right) / 2, bottom + 30, axis, 11, "600", anchor="middle"))
    front = sorted((cost, one.heldout.mean) for _, one, cost in known if axis in one.best_on)
    if len(front) > 1:
        places = " ".join(f"{across(cost):.1f},{up(score):.1f}" for cost, score in front)
        parts.append(f'<polyline points="{places}" fill="none" stroke="#888888" stroke-dasharray="4 3"/>')
    taken: list[tuple[float, float, float]] = []
    for number, one, cost in known:
        x = across(cost)
        parts += _point(one, axis, _COLOURS[number % len(_COLOURS)], x, up)
        parts.append(_label(one.method, x, up(one.heldout.mean) - 6, right, taken))
    return parts


def _label(method: str, x: float, y: float, right: float, taken: list[tuple[float, float, float]]) -> str:
    """Return a point's label, moved down past those that stand there already."""
    width = 7.0 * len(method)
    # A label that would leave the panel stands on the other side of its point.
    outside = x + 10 + width > right
    start = x - 8 - width if outside else x + 8
    while any(abs(y - other) < _LINE and start < end and begin < start + width for begin, end, other in taken):
        y += _LINE
    taken.append((start, start + width, y))
    return _text(x - 8 if outside else x + 8, y, method, 11, anchor="end" if outside else "start")


def _point(one: MethodSummary, axis: str, colour: str, x: float, up: Callable[[float], float]) -> list[str]:
    y, top, bottom = (up(score) for score in (one.heldout.mean, one.heldout.high, one.heldout.low))
    best = axis in one.best_on
    said = f"{one.method}: held-out {one.heldout.mean:.3f} [{one.heldout.low:.3f}, {one.heldout.high:.3f}]"
    said += ", Pareto-best" if best else ""
    fill = colour if best else "#ffffff"
    ring = f'cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{fill}" stroke="{colour}" stroke-width="2"'
    return [
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top:.1f}" y2="{bottom:.1f}" stroke="{colour}"/>',
        f"<circle {ring}><title>{escape(said)}</title></circle>",
    ]


def _range(summaries: Sequence[MethodSummary]) -> tuple[float, float]:
    low = min((one.heldout.low for one in summaries), default=0.0)
    high = max((one.heldout.high for one in summaries), default=1.0)
    room = max(0.02, (high - low) * 0.1)
    return low - room, high + room


def _cost(summary: MethodSummary, axis: str) -> float | None:
    value = getattr(summary, axis)
    return None if value is None else float(value)


def _short(value: float) -> str:
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _text(x: float, y: float, said: str, size: int, weight: str = "400", *, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="#222222">{escape(said)}</text>'
    )
