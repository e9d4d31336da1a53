"""``combee rollouts``: a run's rollouts, chosen by a condition."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from combee_dspy.cli._exit import EXIT_CODES, Debug, guarded
from combee_dspy.cli._tables import Format, write_table

__all__ = ["HELP", "rollouts"]

HELP = f"""List a run's rollouts, from MLflow or straight from its journal.

\b
    combee rollouts checkpoints --where "score < 0.5 and split = 'train'"
    combee rollouts 3f2a… --where "error_class is not null and error_class != ''"
    combee rollouts checkpoints --columns rollout_id,score,dollars --format csv
    combee rollouts checkpoints --format parquet --output rollouts.parquet

RUN is a log_dir, a journal's folder, its name in combee_runs/journals, or the
id of a run in MLflow.

\b
Conditions: =  !=  <  <=  >  >=  in (…)  contains '…'  is null  and  or  not  ( )
Values:     0.5  'text' (a quote inside is doubled)  true  false
A column of truth values may stand alone: not cached

From Python: combee_dspy.tracking.query.rollouts(RUN, where=…).to_pandas().

{EXIT_CODES}"""

_BRIEF = ("iteration", "purpose", "candidate_id", "score", "latency", "error_class", "inputs", "prediction")


@guarded
def rollouts(  # noqa: PLR0913 - one parameter an option
    run: Annotated[str, typer.Argument(metavar="RUN", help="Which run.", show_default=False)],
    where: Annotated[str | None, typer.Option(help="Which rollouts; all by default.")] = None,
    columns: Annotated[str | None, typer.Option(help="Which columns, by comma; 'all' for all of them.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Rows on a screen; 0 for all.")] = 50,
    form: Annotated[Format, typer.Option("--format", help="How to write them.")] = Format.TABLE,
    output: Annotated[Path | None, typer.Option(help="Write them to this file.")] = None,
    tracking_uri: Annotated[str | None, typer.Option(help="The MLflow store.")] = None,
    debug: Debug = False,
) -> None:
    """List a run's rollouts, from MLflow or straight from its journal."""
    # MLflow and pyarrow take seconds to import, and --help needs neither.
    from combee_dspy.tracking import query

    names = None
    if columns is not None and columns.strip() != "all":
        names = [name.strip() for name in columns.split(",") if name.strip()]
    found = query.rollouts(run, where, names, tracking_uri)
    on_screen = form is Format.TABLE and output is None
    if on_screen and columns is None:
        # An older run may lack a column.
        found = found.select([name for name in _BRIEF if name in found.column_names])
    write_table(found, form, output, (limit or None) if on_screen else None)
