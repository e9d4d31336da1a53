"""Tables, names and values, and JSON lines; what a run or a plugin wrote never steers the
terminal.
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

__all__ = ["field_values", "plain", "show_facts", "show_rows", "show_table"]

_CELL = 60
_SHORT = 20
_WIDE = 200
_NAMES = 12


def plain(text: object, limit: int = 1_000) -> str:
    """Return a text on one line, cut to a length, without what a terminal would obey."""
    line = "".join(letter if letter.isprintable() else " " for letter in str(text)[: 2 * limit])
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def show_facts(facts: Mapping[str, Any], style: str = "") -> None:
    """Print names and values, one a line, not wrapped, so that a path or a command can be copied;
    the values in a style of rich's.
    """
    console = Console()
    width = max(_NAMES, max(map(len, facts), default=0) + 2)
    for name, value in facts.items():
        console.print(
            Text.assemble((f"{name:<{width}}", "bold"), (plain(value), style)), soft_wrap=True
        )


def show_table(
    rows: Sequence[Mapping[str, Any]], limit: int = 0, folded: Collection[str] = ()
) -> None:
    """Print the first rows as a table, a line each: narrow columns whole, and long texts as far as
    there is room.

    Some columns may be ``folded`` instead of cut: what stands there can be typed again.
    """
    table = Table(box=None, pad_edge=False)
    names = list(rows[0]) if rows else []
    lines = [
        [plain(_cell(value), 1_000 if name in folded else _CELL) for name, value in row.items()]
        for row in rows[: limit or None]
    ]
    for number, name in enumerate(names):
        width = max(len(name), *(len(line[number]) for line in lines))
        short = width <= _SHORT and name not in folded
        table.add_column(name, min_width=width if short else len(name), no_wrap=short)
    for line in lines:
        table.add_row(
            *(
                (
                    Text(cell, overflow="fold")
                    if name in folded
                    else Text(cell, no_wrap=True, overflow="ellipsis")
                )
                for name, cell in zip(names, line, strict=True)
            )
        )
    # Nobody's window bounds a file.
    console = Console(width=None if sys.stdout.isatty() else _WIDE)
    console.print(table)
    if limit and len(rows) > limit:
        console.print(f"These are the first {limit}; --limit 0 shows all of them.")


def _cell(value: object) -> object:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else value


def show_rows(
    rows: Sequence[dict[str, Any]],
    to_cells: Callable[[dict[str, Any]], dict[str, Any]],
    as_json: bool | None,
    limit: int = 0,
    folded: Collection[str] = (),
) -> None:
    """Print what is shown of each row, as a table; or whole rows as JSON, one object a line.

    By default a terminal gets a table, and a pipe or a file JSON. The JSON is ASCII, so that
    nothing in it steers a terminal, and has neither NaN nor infinity.
    """
    if as_json or (as_json is None and not sys.stdout.isatty()):
        for row in rows:
            typer.echo(json.dumps({name: _finite(value) for name, value in row.items()}))
    else:
        show_table([to_cells(row) for row in rows], limit, folded)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def field_values(text: str | None) -> str | None:
    """Return what the fields of a row say, without their names."""
    try:
        fields = json.loads(text or "null")
    except (ValueError, RecursionError):
        return text
    return "; ".join(map(str, fields.values())) if isinstance(fields, dict) else text
