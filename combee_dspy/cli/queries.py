"""Commands that read the journal of a run that is under way, finished or killed."""

from __future__ import annotations

import json
import sys
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

from combee_dspy import tracking
from combee_dspy.cli._facts import (
    name_score,
    show_run,
    show_thing,
    write_time,
)
from combee_dspy.cli._tables import field_values, show_rows
from combee_dspy.exceptions import ArgumentValueError, JournalError, NotPlainFileError

_Run = Annotated[Path, typer.Argument(metavar="RUN", help="The run's log_dir.", show_default=False)]
_Task = Annotated[
    str | None, typer.Option("--run", help="One of several tasks, by its name; all by default.")
]
_Json = Annotated[bool, typer.Option("--json", help="Write JSON, whole texts included.")]
_Rows = Annotated[
    bool | None,
    typer.Option(
        "--json/--table",
        help="JSON lines, whole texts included, or a table; a terminal gets the table.",
    ),
]
_SHORT_ID = 6


def runs(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Where to look; this folder by default.")
    ] = None,
    as_json: _Rows = None,
) -> None:
    """List the runs below some folders, with date, program, model and score."""
    rows: list[dict[str, Any]] = []
    damaged: list[JournalError | NotPlainFileError] = []
    for folder in folders or [Path()]:
        if not folder.exists():
            raise ArgumentValueError(
                "FOLDERS", str(folder), "is not there", "Name a folder, or a journal."
            )
        for journal in sorted(folder.rglob("journal.sqlite")) if folder.is_dir() else [folder]:
            try:
                rows += [{"run": str(journal.parent), **row} for row in tracking.runs(journal)]
            except (JournalError, NotPlainFileError) as error:
                damaged.append(error)
    if damaged and not rows:
        raise damaged[0]
    for problem in damaged:
        typer.echo(f"Not listed: {problem}", err=True)
    if rows:
        show_rows(rows, _run_row, as_json, folded=("run",))
    else:
        typer.echo("No run found. Name the log_dir of a run, or a folder above it.", err=True)


def _run_row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "date": write_time(row["created"])[:10],
        "program": row["program"],
        "model": row["models"].get("task", "").rpartition("/")[2],
        **name_score(row),
        "run": row["run"] if row["name"] == "main" else f"{row['run']} --run {row['name']}",
    }


def show(
    run: _Run,
    what: Annotated[
        str | None, typer.Argument(metavar="WHAT", help="A candidate, or a number.")
    ] = None,
    task: _Task = None,
    as_json: _Json = False,
) -> None:
    """Show a run with its costs, or one thing of it.

    \b
        combee show runs/today             its figures, and what it has cost: by role and model,
                                           by update, and by each accepted prompt
        combee show runs/today best        the chosen candidate, its changes, and lines to look at
        combee show runs/today 3f2a        a candidate, by the beginning of its id
        combee show runs/today 1           … by its index, as combee candidates shows it
        combee show runs/today effect/7    a rollout or an LM call, by its id in combee rollouts
    """  # noqa: D301 - the backspace keeps lines apart on the help page
    rows = tracking.overview(run, task) if what is None else [tracking.show(run, what, task)]
    if as_json:
        typer.echo(json.dumps(rows if what is None else rows[0], indent=2))
        return
    for row in rows:
        (show_run if what is None else show_thing)(row)


def report(
    place: _Run,
    output: Annotated[
        Path | None, typer.Option(help="Where to write it; beside the journal by default.")
    ] = None,
    run: Annotated[
        str | None, typer.Option(help="One of several tasks, by its name; the newest by default.")
    ] = None,
    show_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Write one page about a run, to open in a browser: it needs no network and loads nothing."""
    try:
        target = tracking.write_report(place, output, run=run)
    except OSError as error:
        raise ArgumentValueError(
            "--output",
            str(output or place),
            f"cannot be written: {error.strerror}",
            "Name another file.",
        ) from error
    if show_it:
        webbrowser.open(target.resolve().as_uri())
    typer.echo(target)


def rollouts(
    place: _Run,
    where: Annotated[
        str | None, typer.Option(help="Which rollouts, as an SQL expression; all by default.")
    ] = None,
    run: _Task = None,
    limit: Annotated[
        int | None,
        typer.Option(min=0, help="Rows at most, 0 for all; by default 50 of a table, all as JSON."),
    ] = None,
    as_json: _Rows = None,
) -> None:
    """List a run's rollouts, straight from its journal.

    \b
        combee rollouts runs/today --where "score < 0.5 and split = 'train'"
        combee rollouts runs/today --where "error is not null"
        combee rollouts runs/today --where "feedback like '%percent%'" --json

    A condition can only read. What the held-out set holds is not shown.
    """  # noqa: D301 - the backspace keeps lines apart on the help page
    as_json = not sys.stdout.isatty() if as_json is None else as_json
    most = 50 * (not as_json) if limit is None else limit
    # One more than a table shows tells whether there are more.
    rows = tracking.rollouts(place, run, where, most + (not as_json) if most else None)
    failed = any(row["error"] for row in rows)
    show_rows(rows, lambda row: _rollout_row(row, failed), as_json, most)


def _rollout_row(row: dict[str, Any], failed: bool) -> dict[str, Any]:
    return {
        "id": row["id"],
        "update": _update(row),
        "for": row["purpose"],
        "candidate": row["candidate"][:_SHORT_ID],
        "score": row["score"],
        "seconds": row["seconds"],
        **({"error": row["error"]} if failed else {}),
        "inputs": field_values(row["inputs"]),
        "prediction": field_values(row["prediction"]),
    }


def _update(row: dict[str, Any]) -> int | None:
    """Return the number of a row's update; none before the first."""
    return None if row["step"] < 0 else row["step"]


def candidates(place: _Run, run: _Task = None, as_json: _Rows = None) -> None:
    """List every candidate of a run, with its lineage and scores.

    combee show RUN ID shows what a candidate says; from Python,
    combee_dspy.load_candidate(program, RUN, ID) returns the program with its
    texts, accepted or not.
    """
    rows: list[dict[str, Any]] = tracking.candidates(place, run)
    indices = {row["candidate"]: row["index"] for row in rows}
    several = len({row["run"] for row in rows}) > 1
    show_rows(
        rows,
        lambda row: ({"run": row["run"]} if several else {}) | _candidate_row(row, indices),
        as_json,
    )


def _candidate_row(row: dict[str, Any], indices: dict[str, int | None]) -> dict[str, Any]:
    screened = row["screened"] or {}
    parents = (
        parent[:_SHORT_ID] if indices.get(parent) is None else str(indices[parent])
        for parent in row["parents"]
    )
    refused = "" if screened.get("accepted", True) else screened["reason"]
    return {
        "index": row["index"],
        "id": row["candidate"][:_SHORT_ID],
        "parents": ", ".join(parents),
        "operator": row["operator"],
        "update": _update(row),
        "validation": row["score"],
        "screen": (
            f"{screened['score']:.3g} to {screened['parent_score']:.3g}" if screened else None
        ),
        "fate": "chosen" if row["selected"] else refused,
    }


def replay(
    run: _Run,
    tracking_uri: Annotated[
        str | None, typer.Option(help="The store; MLflow's own choice by default.")
    ] = None,
    experiment: Annotated[
        str | None, typer.Option(help="The experiment, if MLflow has no such run yet.")
    ] = None,
) -> None:
    """Send MLflow what it lacks of a run.

    A run writes everything to its journal first. If MLflow did not answer, or the
    run was killed, this completes MLflow's record. Each rollout arrives exactly
    once; a second replay changes nothing.
    """
    for where in tracking.replay(run, tracking_uri=tracking_uri, experiment=experiment):
        typer.echo(where)
