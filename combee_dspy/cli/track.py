"""``combee track``: completing a run's record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from combee_dspy.cli._exit import EXIT_CODES, Debug, guarded

__all__ = ["HELP", "track_app"]

HELP = f"""Tell MLflow what a run wrote down and MLflow has not got yet.

A run writes every rollout to a journal on its own machine first. Where MLflow
did not answer, or the run was killed, this completes the record: each rollout
arrives exactly once, and doing it twice changes nothing.

\b
    combee track replay logs/my-run
    combee track replay combee_runs/journals/20260101-120000-1a2b3c4d --tracking-uri http://localhost:5000

The store is the one that the run was recorded in. A run that was not recorded
in MLflow at all, or another store, gets a run of its own there.

{EXIT_CODES}"""

track_app = typer.Typer(
    name="track", help="Complete a run's record in MLflow.", no_args_is_help=True, rich_markup_mode=None
)


@track_app.callback()
def _track() -> None:
    """Complete a run's record in MLflow."""


@track_app.command("replay", help=HELP)
@guarded
def replay(
    path: Annotated[Path, typer.Argument(help="A run's log_dir, or the folder of its journal.")],
    tracking_uri: Annotated[
        str | None, typer.Option(help="The store; by default the one that the run was recorded in.")
    ] = None,
    experiment: Annotated[str | None, typer.Option(help="The experiment, where a run has to be made.")] = None,
    debug: Debug = False,
) -> None:
    """Tell MLflow what a run wrote down and MLflow has not got yet."""
    # MLflow takes seconds to import, and --help needs none of it.
    from combee_dspy import tracking

    done = tracking.replay(path, tracking_uri, experiment)
    typer.echo(f"{done.rollouts} rollouts are recorded in run {done.run_id} at {tracking.Redactor().text(done.uri)}.")
    if done.left_out:
        typer.echo(f"MLflow refused {done.left_out} writes for good: see the warnings above.", err=True)
