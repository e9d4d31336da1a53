"""The commands that read a run's journal: while it goes on, after it has ended, and after it was
killed.
"""

from __future__ import annotations

import json
import sys
import webbrowser
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from combee_dspy import tracking
from combee_dspy.cli._tables import field_values, plain, show_facts, show_rows, show_table
from combee_dspy.exceptions import ArgumentValueError, JournalError, NotPlainFileError
from combee_dspy.gains import name_gain

__all__ = ["candidates", "replay", "report", "rollouts", "runs", "show"]

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

_COSTS = {
    "role": "role",
    "model": "model",
    "calls": "calls",
    "errors": "errors",
    "cached": "cached",
    "prompt_tokens": "in",
    "completion_tokens": "out",
    "dollars": "dollars",
    "gpu_seconds": "GPU s",
}
_SHORT_ID = 6
_AUDIT = ("at", "user", "host", "version", "commit", "program", "texts")
_TIMES = ("at", "created", "ended", "finished", "started", "validated_at")
_STYLES = {"+ ": "green", "- ": "red"}


def runs(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Where to look; this folder by default.")
    ] = None,
    as_json: _Rows = None,
) -> None:
    """List the runs whose journals lie in some folders, or anywhere below them."""
    found: list[dict[str, Any]] = []
    damaged: list[JournalError | NotPlainFileError] = []
    for folder in folders or [Path()]:
        if not folder.exists():
            raise ArgumentValueError(
                "FOLDERS", str(folder), "is not there", "Name a folder, or a journal."
            )
        for journal in sorted(folder.rglob("journal.sqlite")) if folder.is_dir() else [folder]:
            try:
                found += [{"run": str(journal.parent), **row} for row in tracking.runs(journal)]
            except (JournalError, NotPlainFileError) as error:
                damaged.append(error)
    if damaged and not found:
        raise damaged[0]
    for one in damaged:
        typer.echo(f"Not listed: {one}", err=True)
    if found:
        show_rows(found, _run_row, as_json, folded="run")
    else:
        typer.echo(
            "No journal was found. Name the log_dir of a run, or a folder that holds some.",
            err=True,
        )


def _run_row(row: dict[str, Any]) -> dict[str, Any]:
    return {
        **{name: row[name] for name in ("state", "rollouts")},
        "validation": _change(row["seed_score"], row["best_score"]),
        # In a table there is no room for the reason.
        "held-out": (
            held.replace(" (the interval holds zero)", "") if (held := _heldout(row)) else None
        ),
        "dollars": _dollars(row["dollars"]),
        "claims": _claims(row),
        "run": row["run"] if row["name"] == "main" else f"{row['run']} --run {row['name']}",
    }


def _heldout(row: dict[str, Any]) -> str | None:
    """Return held-out figures after what they are called; ``None`` where nothing was held out."""
    if row["heldout_n"] is None:
        return None
    what = name_gain(*(row[f"heldout_{name}"] for name in ("difference", "low", "high")))
    return f"{what}: {_change(row['heldout_before'], row['heldout_after'])}"


def _claims(row: dict[str, Any]) -> str:
    return "simulated" if row["simulated"] else "fit" if row["supports_claims"] else "unfit"


def _dollars(known: float | None) -> float | str:
    return "unknown" if known is None else known


def _change(before: float | None, after: float | None) -> str | None:
    return None if before is None or after is None else f"{before:.3f} → {after:.3f}"


def show(
    run: _Run,
    what: Annotated[
        str | None, typer.Argument(metavar="[WHAT]", help="A candidate, or a number.")
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
    found: Any = tracking.overview(run, task) if what is None else tracking.show(run, what, task)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    elif what is not None:
        _show_one(found)
    else:
        for one in found:
            _show_run(one)


def _show_run(one: dict[str, Any]) -> None:
    costs, paid, parts, problems = (
        one.pop(name) for name in ("costs", "spending", "audit", "problems")
    )
    if (held := _heldout(one)) is not None:
        show_facts({"held-out": held})
    one["dollars"], one["claims"] = _dollars(one["dollars"]), _claims(one)
    del one["simulated"], one["supports_claims"]
    show_facts({name: _told(name, value) for name, value in one.items() if value is not None})
    for kind, said in problems.items():
        for text in said:
            show_facts({kind.removesuffix("s"): text})
    priced = [row | {"dollars": _dollars(row["dollars"])} for row in costs]
    typer.echo()
    show_table([{head: row[name] for name, head in _COSTS.items()} for row in priced])
    typer.echo()
    renamed = [{_COSTS.get(name, name): value for name, value in row.items()} for row in paid]
    show_table([row | {"dollars": _dollars(row["dollars"])} for row in renamed])
    typer.echo()
    show_table([{name: plain(_told(name, row[name])) for name in _AUDIT} for row in parts])


def _told(name: str, value: Any) -> Any:
    if name in _TIMES and isinstance(value, float):
        try:
            return datetime.fromtimestamp(value).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        except (OverflowError, ValueError, OSError):
            return f"{value:g}"  # no time of any calendar
    return f"{value:.4g}" if isinstance(value, float) else value


def _show_one(found: dict[str, Any]) -> None:
    diff, value, suspicious = (
        found.pop("diff", {}),
        found.pop("value", {}),
        found.pop("suspicious", []),
    )
    found.pop("texts", None)
    show_facts({name: _told(name, one) for name, one in found.items() if one not in (None, "", [])})
    show_facts(value if isinstance(value, dict) else {"value": value})
    console = Console()
    for component, lines in diff.items():
        console.print(Text(f"\n{plain(component)}", style="bold"), soft_wrap=True)
        for line in lines:
            # One line at a time: what is no line feed must not steer the terminal.
            console.print(
                Text(line[:2] + plain(line[2:], 2_000), style=_STYLES.get(line[:2], "")),
                soft_wrap=True,
            )
    for one in suspicious:
        said = plain("look at line {line} of {part}, {reason}: {text}".format_map(one))
        console.print(Text(said, style="yellow"), soft_wrap=True)


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
    found = tracking.rollouts(place, run, where, most + (not as_json) if most else None)
    failed = any(row["error"] for row in found)
    show_rows(found, lambda row: _rollout_row(row, failed), as_json, most)


def _rollout_row(row: dict[str, Any], failed: bool) -> dict[str, Any]:
    return {
        "id": row["id"],
        "update": row["step"],
        "for": row["purpose"],
        "candidate": row["candidate"][:_SHORT_ID],
        "score": row["score"],
        "seconds": row["seconds"],
        **({"error": row["error"]} if failed else {}),
        "inputs": field_values(row["inputs"]),
        "prediction": field_values(row["prediction"]),
    }


def candidates(place: _Run, run: _Task = None, as_json: _Rows = None) -> None:
    """List every candidate of a run, with its lineage and scores.

    combee show RUN ID shows what a candidate says; from Python,
    combee_dspy.load_candidate(program, RUN, ID) returns the program with its
    texts, accepted or not.
    """
    found: list[dict[str, Any]] = tracking.candidates(place, run)
    indices = {one["candidate"]: one["index"] for one in found}
    several = len({one["run"] for one in found}) > 1
    show_rows(
        found,
        lambda one: ({"run": one["run"]} if several else {}) | _candidate_row(one, indices),
        as_json,
    )


def _candidate_row(one: dict[str, Any], indices: dict[str, int | None]) -> dict[str, Any]:
    screened = one["screened"] or {}
    parents = (
        parent[:_SHORT_ID] if indices.get(parent) is None else str(indices[parent])
        for parent in one["parents"]
    )
    return {
        "index": one["index"],
        "id": one["candidate"][:_SHORT_ID],
        "parents": ", ".join(parents),
        "operator": one["operator"],
        "update": one["step"],
        "validation": one["score"],
        "screen": (
            f"{screened['score']:.3g} to {screened['parent_score']:.3g}" if screened else None
        ),
        "fate": (
            "chosen"
            if one["selected"]
            else ""
            if screened.get("accepted", True)
            else screened["reason"]
        ),
    }


def replay(
    run: _Run,
    tracking_uri: Annotated[
        str | None, typer.Option(help="The store; MLflow's own choice by default.")
    ] = None,
    experiment: Annotated[
        str | None, typer.Option(help="The experiment, where a run has to be made.")
    ] = None,
) -> None:
    """Tell MLflow what a run's journal holds and MLflow has not got yet.

    A run writes everything to its journal first. Where MLflow did not answer, or
    the run was killed, this completes the record: each rollout arrives exactly
    once, and doing it twice changes nothing.
    """
    for where in tracking.replay(run, tracking_uri=tracking_uri, experiment=experiment):
        typer.echo(where)
