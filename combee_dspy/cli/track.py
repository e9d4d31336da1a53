"""``combee track``: completing a run's record."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["track_app"]

track_app = typer.Typer(help="Complete a run's record in MLflow.", no_args_is_help=True, rich_markup_mode=None)


@track_app.callback()
def _track() -> None:
    """Complete a run's record in MLflow."""


@track_app.command("replay")
def replay(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's log_dir.", show_default=False)],
    tracking_uri: Annotated[str | None, typer.Option(help="The store; MLflow's own choice by default.")] = None,
    experiment: Annotated[str | None, typer.Option(help="The experiment, where a run has to be made.")] = None,
) -> None:
    """Tell MLflow what a run's journal holds and MLflow has not got yet.

    A run writes everything to its journal first. Where MLflow did not answer, or
    the run was killed, this completes the record: each rollout arrives exactly
    once, and doing it twice changes nothing.
    """
    # MLflow takes seconds to import, and --help needs none of it.
    from combee_dspy import tracking

    for where in tracking.replay(run, tracking_uri=tracking_uri, experiment=experiment):
        typer.echo(where)
