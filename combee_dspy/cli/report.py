"""``combee report``: one page about a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from combee_dspy.exceptions import ArgumentValueError

__all__ = ["report"]


def report(
    place: Annotated[Path, typer.Argument(metavar="RUN", help="The run's log_dir.", show_default=False)],
    output: Annotated[Path | None, typer.Option(help="Where to write it; beside the journal by default.")] = None,
    run: Annotated[str | None, typer.Option(help="One of several tasks, by its name; the newest by default.")] = None,
) -> None:
    """Write one page about a run, to open in a browser: it needs no network and loads nothing.

    Works while the run goes on, and after it was killed.
    """
    from combee_dspy import tracking
    from combee_dspy.journal import journal_file

    target = output or journal_file(place).with_name("report.html")
    try:
        tracking.write_report(place, target, run=run)
    except OSError as error:
        problem = f"cannot be written: {error.strerror}"
        raise ArgumentValueError("--output", str(target), problem, "Name another file.") from error
    typer.echo(f"Wrote {target}")
