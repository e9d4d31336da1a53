"""``combee runs``: the runs that were recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from combee_dspy.cli._exit import EXIT_CODES, Debug, guarded
from combee_dspy.cli._tables import Format, write_table

__all__ = ["HELP", "runs"]

HELP = f"""List the recorded runs: those in MLflow, and journals on this machine.

\b
    combee runs                              combee_runs/ under this folder, and the store set for MLflow
    combee runs checkpoints logs             log_dirs, journals, or folders that hold some
    combee runs --tracking-uri http://localhost:5000 --format json

From Python: combee_dspy.tracking.query.runs().to_pandas().

{EXIT_CODES}"""

_BRIEF = ("run", "name", "status", "rollouts", "best_score", "heldout_before", "heldout_after", "dollars")


@guarded
def runs(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Where to look for journals; combee_runs/journals by default.")
    ] = None,
    tracking_uri: Annotated[str | None, typer.Option(help="The MLflow store.")] = None,
    form: Annotated[Format, typer.Option("--format", help="How to write them.")] = Format.TABLE,
    output: Annotated[Path | None, typer.Option(help="Write them to this file.")] = None,
    debug: Debug = False,
) -> None:
    """List the recorded runs: those in MLflow, and journals on this machine."""
    # MLflow and pyarrow take seconds to import, and --help needs neither.
    from combee_dspy.tracking import query

    found = query.runs(folders or None, tracking_uri)
    if form is Format.TABLE and output is None:
        if not found.num_rows:
            typer.echo("No recorded run was found here. Name a folder, or a store with --tracking-uri.")
            return
        found = found.select(list(_BRIEF))
    write_table(found, form, output)
