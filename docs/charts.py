"""The charts of the results pages, as SVG: ``python docs/charts.py`` writes them to docs/images.

Each figure stands on its page with the command that measured it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

IMAGES = Path(__file__).parent / "images"
# Legible on white and on black; the second scheme is the reader's own.
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#333}.title{font-weight:600}.note{fill:#666}"
    ".bar{fill:#9aa3ad}.own{fill:#0072b2}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.note{fill:#aaa}.bar{fill:#6b7280}"
    ".own{fill:#56b4e9}}"
)
CURVES = (
    "path{fill:none;stroke:#7b8490;stroke-width:2.5}line{stroke:#8886}.combee{stroke:#0072b2}"
    "@media(prefers-color-scheme:dark){.combee{stroke:#56b4e9}}"
)
WIDTH, LABELS, BARS, ROW = 720, 230, 400, 26
LEFT, TOP, ACROSS, DOWN = 40, 60, 520, 200  # the field of curves


@dataclass(frozen=True)
class Bar:
    """One bar: whose it is, how long, what stands at its end, and whether it is Combee's."""

    label: str
    value: float
    said: str
    own: bool = False


@dataclass(frozen=True)
class Chart:
    """Bars of one quantity, from 0; ``note`` says by what it was measured."""

    title: str
    note: str
    bars: tuple[Bar, ...]

    def drawn(self) -> str:
        """Return the SVG."""
        most = max(bar.value for bar in self.bars)
        height = 58 + ROW * len(self.bars)
        rows = "".join(self._row(place, bar, most) for place, bar in enumerate(self.bars))
        said = "; ".join(f"{bar.label}: {bar.said}" for bar in self.bars)
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'aria-label="{escape(f"{self.title}. {said}. {self.note}")}"><style>{STYLE}</style>'
            f'<text class="title" x="0" y="16">{escape(self.title)}</text>'
            f'<text class="note" x="0" y="36">{escape(self.note)}</text>{rows}</svg>\n'
        )

    def _row(self, place: int, bar: Bar, most: float) -> str:
        top = 52 + ROW * place
        width = max(1.0, BARS * bar.value / most)
        name = "own" if bar.own else "bar"
        return (
            f'<text x="{LABELS - 10}" y="{top + 14}" text-anchor="end">{escape(bar.label)}</text>'
            f'<rect class="{name}" x="{LABELS}" y="{top}" width="{width:.1f}" height="18" rx="2"/>'
            f'<text x="{LABELS + width + 8:.1f}" y="{top + 14}">{escape(bar.said)}</text>'
        )


@dataclass(frozen=True)
class Curve:
    """One curve: whose it is, a value for each place from 1 on, how it is dashed, and whether it is
    Combee's.
    """

    label: str
    values: Sequence[float]
    dashes: str = ""
    own: bool = False


@dataclass(frozen=True)
class Curves:
    """Curves over days, from 0 to 100; ``event`` happens as day ``at`` begins."""

    title: str
    note: str
    event: str
    at: int
    curves: tuple[Curve, ...]

    def drawn(self) -> str:
        """Return the SVG."""
        height, field = TOP + DOWN + 30, LEFT + ACROSS
        days = range(1, len(self.curves[0].values) + 1)
        turn = (self._across(self.at - 1) + self._across(self.at)) / 2
        parts = [_text(0, 16, self.title, "title"), _text(0, 36, self.note, "note")]
        for value in (0, 50, 100):
            parts += [_line(LEFT, _down(value), field, _down(value))]
            parts += [_text(LEFT - 8, _down(value) + 4, str(value), "note", "end")]
        for day in days:
            label = f"day {day}" if day == 1 else str(day)
            parts += [_text(self._across(day), height - 10, label, "note", "middle")]
        parts += [_line(turn, TOP, turn, TOP + DOWN)]
        parts += [_text(turn + 6, TOP + DOWN - 8, self.event, "note")]
        parts += map(self._curve, self.curves)
        values = "; ".join(
            f"{curve.label}: {', '.join(f'{value:.0f}' for value in curve.values)}"
            for curve in self.curves
        )
        label = escape(f"{self.title}, by day. {values}. {self.note}")
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
            f'aria-label="{label}"><style>{STYLE}{CURVES}</style>{"".join(parts)}</svg>\n'
        )

    def _curve(self, curve: Curve) -> str:
        points = " L".join(
            f"{self._across(day):.1f},{_down(value):.1f}"
            for day, value in enumerate(curve.values, 1)
        )
        last = curve.values[-1]
        name = ' class="combee"' if curve.own else ""
        label = _text(LEFT + ACROSS + 8, _down(last) + 4, f"{curve.label}, {last:.0f}")
        return f'<path{name} stroke-dasharray="{curve.dashes}" d="M{points}"/>{label}'

    def _across(self, day: int) -> float:
        return LEFT + ACROSS * (day - 0.5) / len(self.curves[0].values)


def _down(value: float) -> float:
    return TOP + DOWN * (1 - value / 100)


def _line(left: float, top: float, right: float, bottom: float) -> str:
    return f'<line x1="{left:.1f}" y1="{top:.1f}" x2="{right:.1f}" y2="{bottom:.1f}"/>'


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    where = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f'<text class="{kind}" {where}>{escape(text)}</text>'


def _fortnight() -> tuple[Curve, ...]:
    """Return the mean of three seeds by day, from the table on the page itself."""
    page = (Path(__file__).parent / "results" / "live.md").read_text(encoding="utf-8")
    rows = [
        [float(cell) for cell in line.strip("| ").split("|")[1:]]
        for line in page.splitlines()
        if re.fullmatch(r"\| \d+ (\| [\d.]+ ){9}\|", line)
    ]
    once, gepa, live = ([sum(row[place::3]) / 3 for row in rows] for place in range(3))
    return (
        Curve("Live", live, own=True),
        Curve("nightly dspy.GEPA", gepa, "7 4"),
        Curve("compiled once", once, "2 4"),
    )


CHARTS: dict[str, Chart | Curves] = {
    "models": Chart(
        "Held-out score after 30,000 tokens",
        "real model: Qwen2.5-Coder-1.5B; mean of sixteen sets of rules, fixed beforehand",
        (
            Bar("all rules, by hand", 0.839, "0.84"),
            Bar("Combee 0.2", 0.578, "0.58"),
            Bar("Combee", 0.518, "0.52", own=True),
            Bar("dspy.GEPA", 0.219, "0.22"),
            Bar("untouched", 0.159, "0.16"),
        ),
    ),
    "speed": Chart(
        "Seconds for an epoch of 240 examples",
        "simulated service, 64 calls at once; no language model",
        (
            Bar("Combee, one large update", 52, "52", own=True),
            Bar("Combee", 60, "60", own=True),
            Bar("20-line map-reduce", 174, "174"),
            Bar("dspy.GEPA, minibatch 40", 405, "405"),
            Bar("dspy.GEPA, P×N(2, 4)", 1034, "1,034"),
            Bar("dspy.GEPA", 4502, "4,502"),
        ),
    ),
    "quality": Chart(
        "Held-out score at 600 rollouts",
        "simulated service, three seeds; no language model",
        (
            Bar("Combee", 1.0, "1.00 for $0.0295", own=True),
            Bar("dspy.GEPA", 0.833, "0.83 for $0.0267"),
        ),
    ),
    "lessons": Chart(
        "Right of 100 where a fifth of the labels is wrong, 300 rollouts",
        "scripted service, ten seeds; no language model",
        (
            Bar("book of lessons", 92.2, "92", own=True),
            Bar("dspy.GEPA, minibatch 20", 76.2, "76"),
            Bar("scan, rewrite (the paper's)", 75.0, "75"),
            Bar("Combee 0.2", 73.0, "73"),
            Bar("dspy.GEPA", 44.6, "45"),
            Bar("untouched", 0, "0"),
        ),
    ),
    "memory": Chart(
        "Tokens of the prompt of one call, Formula",
        "simulated service, three seeds; no language model",
        (
            Bar("memory", 650, "650, held-out 0.79", own=True),
            Bar("instruction", 3649, "3,649, held-out 0.83"),
        ),
    ),
    "traces": Chart(
        "Right of 100 after 2,000 recorded answers, none run again",
        "scripted service, 60 rules, five seeds; no language model",
        (
            Bar("clean labels", 100, "100", own=True),
            Bar("a fifth of the labels wrong", 95.2, "95", own=True),
        ),
    ),
    "information": Chart(
        "Share of stated facts that some reader keeps",
        "real model: Qwen2.5-Coder-1.5B, union, five seeds; the formula is fitted to 5 to 20 facts",
        (
            Bar("5 facts, real reader", 0.83, "0.83", own=True),
            Bar("5 facts, formula", 0.94, "0.94"),
            Bar("10 facts, real reader", 0.97, "0.97", own=True),
            Bar("10 facts, formula", 0.94, "0.94"),
            Bar("20 facts, real reader", 0.86, "0.86", own=True),
            Bar("20 facts, formula", 0.83, "0.83"),
            Bar("40 facts, real reader", 0.77, "0.77", own=True),
            Bar("40 facts, formula", 0.73, "0.73"),
            Bar("80 facts, real reader", 0.76, "0.76", own=True),
            Bar("80 facts, formula", 0.72, "0.72"),
        ),
    ),
    "statistics": Chart(
        "How often a verdict is wrong, at its worst",
        "drawn scores, 2,000 studies each; 2.5 % is stated",
        (
            Bar("no worse than the first", 2.9, "2.9 %", own=True),
            Bar("held-out gain above 0", 1.4, "1.4 %", own=True),
            Bar("judge agrees by 0.7", 1.6, "1.6 %", own=True),
        ),
    ),
    "reliability": Chart(
        "Damaged journals that were accepted with other content",
        "files damaged at random on a real disk",
        (
            Bar("with checksums", 0, "0 of 3,010", own=True),
            Bar("without", 251 / 700, "251 of 700"),
        ),
    ),
    "live": Curves(
        "Percent of the day's requests that were answered rightly",
        "simulated fortnight, mean of three seeds, code of 27 November; no language model",
        "a third of the rules change",
        8,
        _fortnight(),
    ),
    "earlier_models": Chart(
        "Planted facts that come back from 20 reflections, of 100",
        "real model: Qwen2.5-Coder-1.5B, five seeds; 22 to 26 November 2026",
        (
            Bar("union: four calls, joined by code", 95, "95", own=True),
            Bar("parallel-scan: then merged", 49, "49", own=True),
            Bar("one call over all of them", 0, "0"),
        ),
    ),
    "house": Chart(
        "Code tokens, and what was aimed at",
        "commit b5b153d6, 28 November 2026",
        (
            Bar("core", 272_000, "272,000", own=True),
            Bar("aim", 150_000, "150,000"),
            Bar("search/", 53_800, "53,800", own=True),
            Bar("aim", 26_000, "26,000"),
            Bar("tests/", 277_000, "277,000", own=True),
            Bar("aim", 180_000, "180,000"),
        ),
    ),
    "production": Chart(
        "How often combee diagnose says go, 200 validation rows",
        "simulated searches, 100 of each; no language model",
        (
            Bar("converged: go is right", 72, "72", own=True),
            Bar("flat: go is wrong", 3, "3"),
            Bar("still rising slowly: wrong", 2, "2"),
            Bar("still rising: wrong", 0, "0"),
        ),
    ),
}


def main() -> None:
    """Write each chart."""
    for name, chart in CHARTS.items():
        (IMAGES / f"{name}.svg").write_text(chart.drawn(), encoding="utf-8")


if __name__ == "__main__":
    main()
