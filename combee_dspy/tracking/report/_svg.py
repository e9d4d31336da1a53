"""Charts from numbers: scales, axes and marks of an SVG that scales with its container."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from combee_dspy.tracking.report._html import Child, Markup, el

__all__ = ["Frame", "Scale", "compact", "legend", "line", "mark", "nice_ticks", "svg", "text"]

WIDTH = 430
HEIGHT = 260


@dataclass(frozen=True, slots=True)
class Scale:
    """From data to pixels, linear or logarithmic.

    Attributes:
        low: The data's low end; above 0 where ``log``.
        high: Its high end, above ``low``.
        start: Pixel of ``low``.
        end: Pixel of ``high``.
        log: Whether the scale is logarithmic.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value, kept within the frame."""
        low, high, at = self.low, self.high, min(max(value, self.low), self.high)
        if self.log:
            low, high, at = math.log(low), math.log(high), math.log(at)
        return self.start + (at - low) / (high - low) * (self.end - self.start)


@dataclass(frozen=True, slots=True)
class Frame:
    """A plot with its two scales.

    Attributes:
        x: Horizontal scale.
        y: Vertical scale.
    """

    x: Scale
    y: Scale

    @classmethod
    def of(cls, x: tuple[float, float], y: tuple[float, float], *, log: bool = False, height: float = HEIGHT) -> Frame:
        """Return a frame of the usual size over two ranges; an empty range is widened."""
        (x0, x1), (y0, y1) = _wide(x, log), _wide(y, log)
        return cls(Scale(x0, x1, 60, WIDTH - 14, log), Scale(y0, y1, height - 40, 14, log))

    def axes(
        self,
        x_label: str,
        y_label: str,
        x_ticks: Sequence[float],
        y_ticks: Sequence[float],
        shown: Callable[[float], str] | None = None,
    ) -> list[Markup]:
        """Return grid lines, ticks and labels."""
        x, y, show = self.x, self.y, shown or compact
        parts = [el("line", x1=x.start, x2=x.end, y1=y(tick), y2=y(tick), class_="grid") for tick in y_ticks]
        parts += [text(show(tick), x.start - 6, y(tick) + 4, "end") for tick in y_ticks]
        parts.append(el("line", x1=x.start, x2=x.end, y1=y.start, y2=y.start, class_="axis"))
        for tick in x_ticks:
            parts.append(el("line", x1=x(tick), x2=x(tick), y1=y.start, y2=y.start + 4, class_="axis"))
            parts.append(text(compact(tick), x(tick), y.start + 17, "middle"))
        parts.append(text(x_label, (x.start + x.end) / 2, y.start + 35, "middle", "label"))
        if not y_label:
            return parts
        middle = (y.start + y.end) / 2
        turned = f"rotate(-90 11 {middle:.0f})"
        parts.append(el("text", y_label, x=11.0, y=middle, text_anchor="middle", class_="label", transform=turned))
        return parts


def svg(label: str, children: Child, height: float = HEIGHT, width: float = WIDTH) -> Markup:
    """Return a drawing with a text alternative.

    Args:
        label: What it shows, for those who do not see it.
        children: Its elements.
        height: Units of the view box.
        width: Units of the view box.
    """
    box = f"0 0 {width:.0f} {height:.0f}"
    return el("svg", el("title", label), children, viewBox=box, role="img", aria_label=label, class_="chart")


def text(content: str, x: float, y: float, anchor: str = "start", class_: str = "tick") -> Markup:
    """Return a line of text."""
    return el("text", content, x=float(x), y=float(y), text_anchor=anchor, class_=class_)


def line(points: Sequence[tuple[float, float]], class_: str) -> Markup | None:
    """Return a line through pixels; ``None`` below two of them."""
    if len(points) < 2:
        return None
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return el("path", d=path, class_=class_)


def mark(x: float, y: float, hint: str, class_: str, radius: float = 4) -> Markup:
    """Return a dot that says what it is when pointed at."""
    return el("circle", el("title", hint), cx=float(x), cy=float(y), r=float(radius), class_=class_)


def legend(entries: Sequence[tuple[str, str]]) -> Markup:
    """Return a legend under a drawing.

    Args:
        entries: ``(class of the swatch, meaning)``.
    """
    items = [el("li", el("span", class_=f"swatch {swatch}"), meaning) for swatch, meaning in entries]
    return el("ul", items, class_="legend")


def nice_ticks(low: float, high: float, count: int = 4, *, log: bool = False) -> list[float]:
    """Return round numbers within a range: 1, 2 or 5 times a power of ten, about ``count`` of them."""
    if not (math.isfinite(low) and math.isfinite(high)) or high <= low:
        return []
    if log:
        found = [
            base * 10.0**power
            for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            for base in (1, 2, 5)
            if low <= base * 10.0**power <= high
        ]
        if len(found) > 7:
            found = [tick for tick in found if f"{tick:e}".startswith("1")]
        return found[:: max(1, len(found) // 6)] or [low, high]
    rough = (high - low) / max(1, count)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(base * power for base in (1, 2, 5, 10) if base * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, first + 50) if n * step <= high * (1 + 1e-9) + 1e-12]


def compact(value: float) -> str:
    """Return a number in few characters: 1.2k, 3.4M, 0.05."""
    size = abs(value)
    for limit, suffix in ((1e9, "B"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (limit if suffix != 'k' else 1e3):.3g}{suffix}"
    return f"{value:,.0f}" if size >= 1000 else f"{value:.3g}"


def _wide(span: tuple[float, float], log: bool) -> tuple[float, float]:
    low, high = span
    if log:
        return (low / 1.15, high * 1.15) if low > 0 else (1e-3, max(high, 1.0))
    if high > low:
        return low, high
    pad = abs(low) * 0.05 or 0.5
    return low - pad, high + pad
