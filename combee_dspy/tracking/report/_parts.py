"""Small pieces that the sections of a report share: tables, figures, numbers as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from combee_dspy.tracking.report._data import Spending
from combee_dspy.tracking.report._html import Child, Markup, el

__all__ = ["amount", "block", "dollars", "duration", "facts", "figure", "money", "score", "section", "table"]


def section(name: str, title: str, *children: Child) -> Markup:
    """Return a section that a link can lead to."""
    return el("section", el("h2", title, id=name), children, aria_labelledby=name)


def table(columns: Sequence[str], rows: Iterable[Sequence[Child]], *, best: int = -1, foot: bool = False) -> Markup:
    """Return a table that scrolls sideways where it is wider than the page.

    Args:
        columns: Titles; one that starts with ``#`` holds numbers, one that starts with ``~`` long text.
        rows: Cells, in the order of the columns.
        best: Position of the row to stress.
        foot: Whether the last row is a sum.
    """
    kinds = [{"#": "n", "~": "w"}.get(title[:1]) for title in columns]
    titles = [
        el("th", title.lstrip("#~"), class_=kind, scope="col") for title, kind in zip(columns, kinds, strict=True)
    ]
    body = [
        el(
            "tr",
            [el("td", cell, class_=kind) for cell, kind in zip(row, kinds, strict=True)],
            class_="best" if number == best else None,
        )
        for number, row in enumerate(rows)
    ]
    last = [el("tfoot", body.pop())] if foot and body else []
    return el("div", el("table", el("thead", el("tr", titles)), el("tbody", body), last), class_="scroll", tabindex="0")


def figure(caption: str, drawing: Child, note: str = "") -> Markup:
    """Return a drawing with its title."""
    return el("figure", el("figcaption", caption), drawing, el("p", note, class_="note") if note else None)


def facts(entries: Iterable[tuple[str, str, str]]) -> Markup:
    """Return figures with their names.

    Args:
        entries: ``(name, figure, note)``.
    """
    shown = [
        el("div", el("dt", name), el("dd", value, el("small", note) if note else None)) for name, value, note in entries
    ]
    return el("dl", shown, class_="facts")


def block(text: str) -> Markup:
    """Return foreign text as it is, in its own direction of writing."""
    # HTML drops a line feed that comes first.
    return el("pre", f"\n{text}" if text.startswith("\n") else text, dir="auto")


def score(value: float | None) -> str:
    """Return a score in three decimals; a dash where there is none."""
    return "–" if value is None else f"{value:.3f}"


def amount(value: float) -> str:
    """Return a count with thousands set apart."""
    return f"{value:,.0f}"


def money(value: float) -> str:
    """Return dollars; sums below one with the decimals that they need."""
    return f"${value:,.2f}" if value >= 1 or value == 0 else f"${value:,.4f}"


def dollars(spending: Spending) -> str:
    """Return what was spent in dollars, saying so where a part is not known."""
    if not spending.unpriced:
        return money(spending.dollars)
    known = f", {money(spending.dollars)} known" if spending.dollars else ""
    return f"unknown ({amount(spending.unpriced)} unpriced calls{known})"


def duration(seconds: float | None) -> str:
    """Return seconds as people say them; a dash where there are none."""
    if seconds is None:
        return "–"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
