"""Prints tables, names with values, and JSON lines.

What a run or a plugin wrote is cleaned before it is printed, so it cannot steer the terminal.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

_CELL = 60
_SHORT = 20
_WIDE = 200
_NAMES = 12
_AMOUNTS = ("rollouts", "calls", "tokens", "in", "out", "errors", "cached")
"""Columns of counts, whose thousands are set apart; other numbers, such as ids, are names."""


def plain(text: object, limit: int = 1_000) -> str:
    """Return a text on one line, cut to a length, without characters that a terminal obeys."""
    line = "".join(letter if letter.isprintable() else " " for letter in str(text)[: 2 * limit])
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def show_facts(facts: Mapping[str, object], style: str = "") -> None:
    """Print names and values, one a line, not wrapped, so that a path or a command can be copied.

    Args:
        facts: Values by name.
        style: Style of the values, as rich names it.
    """
    console = Console()
    width = max(_NAMES, max(map(len, facts), default=0) + 2)
    for name, value in facts.items():
        line = Text.assemble((f"{name:<{width}}", "bold"), (plain(value), style))
        console.print(line, soft_wrap=True)


def show_table(
    rows: Sequence[Mapping[str, Any]], limit: int = 0, folded: Collection[str] = ()
) -> None:
    """Print rows as a table, a line each: short columns whole, long texts as far as there is room.

    Args:
        rows: Cells by column; all rows have the same columns.
        limit: How many to print; 0 for all.
        folded: Columns that go on in the next line instead of being cut, so that what they hold can
            be typed again.
    """
    table = Table(box=None, pad_edge=False)
    columns: list[list[Text]] = []
    for name in rows[0] if rows else ():
        values = [row[name] for row in rows[: limit or None]]
        if name in _AMOUNTS:
            cells = [_cell(_grouped(value), fold=False) for value in values]
        else:
            cells = [_cell(value, fold=name in folded) for value in values]
        is_numeric = all(isinstance(value, int | float | None) for value in values)
        width = max(len(name), *map(len, cells))
        is_short = width <= _SHORT and name not in folded
        table.add_column(
            name,
            justify="right" if is_numeric else "left",
            min_width=width if is_short else len(name),
            no_wrap=is_short,
        )
        columns.append(cells)
    for line in zip(*columns, strict=True):
        table.add_row(*line)
    # A file has no width of its own.
    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    console.print(table)
    if limit and len(rows) > limit:
        console.print(f"These are the first {limit}; --limit 0 shows all of them.")


def _grouped(value: object) -> object:
    return f"{value:,}" if isinstance(value, int) else value


def _cell(value: object, *, fold: bool) -> Text:
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else value
    if fold:
        return Text(plain(text), overflow="fold")
    return Text(plain(text, _CELL), no_wrap=True, overflow="ellipsis")


def show_rows(
    rows: Sequence[dict[str, Any]],
    to_cells: Callable[[dict[str, Any]], dict[str, Any]],
    as_json: bool | None,
    limit: int = 0,
    folded: Collection[str] = (),
) -> None:
    """Print rows as a table, or as JSON, one object a line.

    The JSON is ASCII, so that nothing in it steers a terminal, and has neither NaN nor infinity.

    Args:
        rows: Whole rows, as JSON shows them.
        to_cells: Makes a row of the table from a whole row.
        as_json: Whether to print JSON; ``None`` for a table on a terminal and JSON elsewhere.
        limit: As for :func:`show_table`.
        folded: As for :func:`show_table`.
    """
    if as_json or (as_json is None and not sys.stdout.isatty()):
        for row in rows:
            typer.echo(json.dumps({name: _finite(value) for name, value in row.items()}))
    else:
        show_table([to_cells(row) for row in rows], limit, folded)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def field_values(text: str | None) -> str | None:
    """Return the values of a row's fields, given as JSON, without the fields' names."""
    try:
        fields = json.loads(text or "null")
    except (ValueError, RecursionError):
        return text
    return "; ".join(map(str, fields.values())) if isinstance(fields, dict) else text
