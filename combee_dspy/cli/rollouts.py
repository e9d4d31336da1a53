"""``combee rollouts``: a run's rollouts, chosen by a condition."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from combee_dspy.cli._tables import show_table, write_json

__all__ = ["rollouts"]

_BRIEF = ("id", "step", "purpose", "candidate", "score", "seconds", "error", "inputs", "prediction")


def rollouts(
    place: Annotated[Path, typer.Argument(metavar="RUN", help="The run's log_dir.", show_default=False)],
    where: Annotated[str | None, typer.Option(help="Which rollouts, as an SQL expression; all by default.")] = None,
    run: Annotated[str | None, typer.Option(help="One of several tasks, by its name; all by default.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Rows of a table; 0 for all.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="Write all of them, one JSON object a line.")] = False,
) -> None:
    """List a run's rollouts, straight from its journal. Works while the run goes on.

    \b
        combee rollouts runs/today --where "score < 0.5 and split = 'train'"
        combee rollouts runs/today --where "error is not null"
        combee rollouts runs/today --where "feedback like '%percent%'" --json

    A condition can only read. What the held-out set holds is not shown.
    """  # noqa: D301 - the backspace keeps lines apart on the help page
    from combee_dspy import tracking

    # One more than is shown tells whether there are more.
    found = tracking.rollouts(place, run=run, where=where, limit=limit + 1 if limit and not as_json else None)
    if as_json:
        write_json(found)
    else:
        show_table([{name: row[name] for name in _BRIEF} for row in found], limit)
