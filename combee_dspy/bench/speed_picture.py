"""Seconds for one epoch and the held-out difference beside them, as one SVG. Pure; no library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from combee_dspy.bench.compare import MARGIN
from combee_dspy.bench.speed_options import SpeedOptions
from combee_dspy.bench.speed_quality import MethodResult

__all__ = ["speed_svg"]

_ROW, _TOP, _GAP = 34, 92, 16
_NAMES, _BARS, _DIFFERENCE = 170, 420, 250
_BAR, _BOUND, _REFERENCE = "#3366aa", "#bb5533", "#507080"


def speed_svg(results: Sequence[MethodResult], options: SpeedOptions) -> str:
    """Draw each method's seconds on a logarithmic axis, and its held-out difference to the first.

    A tick in a bar is the method's own schedule. Beside a bar stand the seconds and how many times faster than the
    first that is, where it may be said: where the interval on the right lies above the dashed margin.

    Args:
        results: The methods; the first is the reference.
        options: What was measured.

    Returns:
        A whole SVG document.
    """
    width = _GAP * 4 + _NAMES + _BARS + _DIFFERENCE
    height = _TOP + _ROW * max(1, len(results)) + 56
    label = f"One epoch of {options.examples} examples ({options.benchmark}), {options.slots} slots: {options.label}"
    parts = [
        _text(_GAP, 24, "Seconds for one epoch, and what was learned", 15, "600"),
        _text(_GAP, 43, label, 11),
        _text(_GAP + _NAMES, 68, f"{options.unit}, logarithmic; line: the method's own schedule", 11, "600"),
        _text(_start(), 68, f"held-out minus {results[0].method if results else ''}'s, 95 %", 11, "600"),
    ]
    highest = max((result.seconds for result in results), default=1.0)
    lowest = min((_least(result) for result in results), default=0.1)
    spread = max((abs(end) for one in results if one.versus for end in (one.versus.low, one.versus.high)), default=0)
    reach = max(2 * MARGIN, spread) * 1.1
    bottom = _TOP + len(results) * _ROW
    decade = math.floor(math.log10(max(lowest, 1e-9)))
    for power in range(decade, math.floor(math.log10(max(highest, 1e-9))) + 1):
        x = _GAP + _NAMES + _along(10**power, 10**decade, highest)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{bottom}" stroke="#dddddd"/>')
        parts.append(_text(x, bottom + 14, f"{10**power:g}", 9, anchor="middle"))
    for number, result in enumerate(results):
        y = _TOP + number * _ROW
        parts += _bar(result, y, 10**decade, highest)
        parts += _interval(result, y, reach)
    for value, anchor, dash in ((0.0, "start", ""), (-MARGIN, "end", ' stroke-dasharray="4 3"')):
        x = _across(value, reach)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 8}" y2="{bottom}" stroke="#888888"{dash}/>')
        parts.append(_text(x, bottom + 14, f"{value:+.2f}" if value else "0", 9, anchor=anchor))
    last = f"Seconds: median of {options.repeats}. A multiple stands only where held-out is shown to be no worse."
    parts.append(_text(_GAP, height - 12, last, 10))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(label, quote=True)}" font-family="system-ui, sans-serif">'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )


def _least(result: MethodResult) -> float:
    bound = result.median.bound
    return result.seconds if bound is None or bound.schedule <= 0 else min(result.seconds, bound.schedule)


def _along(seconds: float, lowest: float, highest: float) -> float:
    return (_BARS - 110) * math.log(max(seconds, lowest) / lowest) / max(math.log(highest / lowest), 1e-9)


def _bar(result: MethodResult, y: float, lowest: float, highest: float) -> list[str]:
    left, length = _GAP + _NAMES, max(1.0, _along(result.seconds, lowest, highest))
    said = f"{result.seconds:,.0f}" if result.seconds >= 10 else f"{result.seconds:,.2g}"
    if result.versus is not None:
        times = result.versus.times_faster
        said += " · not comparable" if times is None else f" · {times:.1f} ×"
    fill = _REFERENCE if result.versus is None else _BAR
    place = f'x="{left}" y="{y + 3}" width="{length:.1f}" height="17" fill="{fill}"'
    parts = [
        _text(_GAP + _NAMES - 8, y + 15, result.method, 12, anchor="end"),
        f"<rect {place}><title>{escape(result.method)}: {said}</title></rect>",
        _text(left + length + 6, y + 15, said, 11),
    ]
    bound = result.median.bound
    if bound is not None and bound.schedule > 0:
        x = left + _along(bound.schedule, lowest, highest)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 23}" stroke="{_BOUND}" stroke-width="2"/>')
    return parts


def _interval(result: MethodResult, y: float, reach: float) -> list[str]:
    versus = result.versus
    if versus is None:
        return [_text(_across(0.0, reach) + 6, y + 15, "reference", 10)]
    low, high, middle = (_across(value, reach) for value in (versus.low, versus.high, versus.difference))
    fill = _BAR if versus.comparable else "#ffffff"
    said = f"{result.method}: {versus.difference:+.3f} [{versus.low:+.3f}, {versus.high:+.3f}]"
    ring = f'cx="{middle:.1f}" cy="{y + 11}" r="5" fill="{fill}" stroke="{_BAR}" stroke-width="2"'
    return [
        f'<line x1="{low:.1f}" x2="{high:.1f}" y1="{y + 11}" y2="{y + 11}" stroke="{_BAR}" stroke-width="2"/>',
        f"<circle {ring}><title>{escape(said)}</title></circle>",
    ]


def _start() -> int:
    return _GAP * 3 + _NAMES + _BARS


def _across(value: float, reach: float) -> float:
    return _start() + _DIFFERENCE * (value + reach) / (2 * reach)


def _text(x: float, y: float, said: str, size: int, weight: str = "400", *, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="#222222">{escape(said)}</text>'
    )
