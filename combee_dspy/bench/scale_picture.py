"""Seconds and memory of scans against their reflections, as one SVG. Pure; no library."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from combee_dspy.bench.scale_rows import MEMORY_LIMIT_MIB, ScaleRow

__all__ = ["scale_svg"]

_PANEL, _HEIGHT, _GAP = 400, 260, 16
_LEFT, _TOP, _BOTTOM = 56, 66, 44
_COLOURS = ("#3366aa", "#bb5533", "#2e8b57", "#8855aa")
Figure = Callable[[ScaleRow], "float | None"]


def scale_svg(rows: Sequence[ScaleRow], label: str) -> str:
    """Draw both axes logarithmic: dots for what was measured, a dashed line for what the plan says.

    Args:
        rows: What was measured.
        label: What the figures stand on; shown in the picture.

    Returns:
        A whole SVG document.
    """
    width, height = _GAP * 3 + 2 * _PANEL, _TOP + _HEIGHT + 24
    parts = [_text(_GAP, 24, "A scan alone, by its number of reflections", 15, "600"), _text(_GAP, 43, label, 11)]
    parts += _panel(rows, _GAP, "seconds of the scan; dashed: what its plan says", _seconds, _plan, None)
    second = _GAP * 2 + _PANEL
    parts += _panel(rows, second, "peak memory of the process, MiB; dashed: 1 GiB", _memory, None, MEMORY_LIMIT_MIB)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(label, quote=True)}" font-family="system-ui, sans-serif">'
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>{"".join(parts)}</svg>\n'
    )


def _seconds(row: ScaleRow) -> float | None:
    return row.seconds if row.simulated_seconds is None else row.simulated_seconds


def _plan(row: ScaleRow) -> float | None:
    return row.predicted_seconds


def _memory(row: ScaleRow) -> float | None:
    return row.peak_mib


def _panel(
    rows: Sequence[ScaleRow], x0: float, title: str, measured: Figure, planned: Figure | None, limit: float | None
) -> list[str]:
    values = [value for row in rows for figure in (measured, planned) if figure and (value := figure(row))]
    values += [limit] if limit else []
    sizes = sorted({row.reflections for row in rows})
    across = _scale([float(size) for size in sizes], x0 + _LEFT, x0 + _PANEL - 20)
    up = _scale(values, _TOP + _HEIGHT - _BOTTOM, _TOP + 22)
    parts = [_text(x0, _TOP + 6, title, 11, "600")]
    under = _TOP + _HEIGHT - _BOTTOM + 16
    parts += [_text(across(size), under, f"{size:,}", 9, anchor="middle") for size in sizes]
    for power in range(math.floor(_log(values)[0]), math.ceil(_log(values)[1]) + 1):
        y = up(10.0**power)
        parts.append(f'<line x1="{x0 + _LEFT}" x2="{x0 + _PANEL - 20}" y1="{y:.1f}" y2="{y:.1f}" stroke="#dddddd"/>')
        parts.append(_text(x0 + _LEFT - 6, y + 3, f"{10.0**power:,g}", 9, anchor="end"))
    if limit:
        y = up(limit)
        place = f'x1="{x0 + _LEFT}" x2="{x0 + _PANEL - 20}" y1="{y:.1f}" y2="{y:.1f}"'
        parts.append(f'<line {place} stroke="#222222" stroke-dasharray="5 4"/>')
    for number, name in enumerate(dict.fromkeys(row.aggregator for row in rows)):
        own, colour = [row for row in rows if row.aggregator == name], _COLOURS[number % len(_COLOURS)]
        if planned:
            said = " ".join(f"{across(row.reflections):.1f},{up(v):.1f}" for row in own if (v := planned(row)))
            parts.append(f'<polyline points="{said}" fill="none" stroke="{colour}" stroke-dasharray="5 4"/>')
        for row in own:
            if value := measured(row):
                place = f'cx="{across(row.reflections):.1f}" cy="{up(value):.1f}" r="4" fill="{colour}"'
                told = escape(f"{name}, {row.reflections:,} reflections: {value:,.1f}")
                parts.append(f"<circle {place}><title>{told}</title></circle>")
        at = x0 + _LEFT + 120 * number
        parts.append(f'<circle cx="{at}" cy="{_TOP + _HEIGHT - 8}" r="4" fill="{colour}"/>')
        parts.append(_text(at + 8, _TOP + _HEIGHT - 5, name, 10))
    return parts


def _log(values: Sequence[float]) -> tuple[float, float]:
    return (math.log10(min(values)), math.log10(max(values))) if values else (0.0, 1.0)


def _scale(values: Sequence[float], start: float, end: float) -> Callable[[float], float]:
    low, high = _log(values)
    low, high = (low, high) if start < end else (math.floor(low), math.ceil(high))
    span = high - low or 1.0
    return lambda value: start + (end - start) * (math.log10(value) - low) / span


def _text(x: float, y: float, said: str, size: int, weight: str = "400", *, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="#222222">{escape(said)}</text>'
    )
