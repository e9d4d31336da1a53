"""Tables of figures, by rows or by columns, with what a reader must know below them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

__all__ = ["by_columns", "by_fields", "by_rows"]


def by_rows(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], notes: Sequence[str] = ()
) -> Table:
    """Return a table of one line a row; a head that starts with ``<`` is of a column of words."""
    table = Table(title=title, caption="\n".join(notes) or None, caption_justify="left")
    for head in heads:
        table.add_column(
            head.removeprefix("<"), justify="left" if head.startswith("<") else "right"
        )
    for row in rows:
        table.add_row(*row)
    return table


def by_columns(title: str, columns: Mapping[str, Mapping[str, str]], notes: Sequence[str]) -> Table:
    """Return a table of one column a name, all with the same cells by title."""
    table = Table(title=title, caption="\n".join(notes) or None, caption_justify="left")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right", overflow="fold")
    for head in next(iter(columns.values()), ()):
        table.add_row(head, *(cells[head] for cells in columns.values()))
    return table


def by_fields(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of one line a row and one column a field."""
    heads = [f"<{name.replace('_', ' ')}" for name in rows[0]]
    return by_rows(title, heads, [[_cell(value) for value in row.values()] for row in rows])


def _cell(value: Any) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {part}" for name, part in value.items())
    if isinstance(value, tuple):
        return "; ".join(map(str, value))
    return f"{value:,.4g}" if isinstance(value, float) else str(value)
