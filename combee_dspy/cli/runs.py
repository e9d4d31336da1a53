"""``combee runs``: the runs whose journals lie in some folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from combee_dspy.cli._tables import show_table, write_json
from combee_dspy.exceptions import ArgumentValueError

__all__ = ["runs"]


def runs(
    folders: Annotated[list[Path] | None, typer.Argument(help="Where to look; this folder by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON, one object a line.")] = False,
) -> None:
    """List the runs whose journals lie in some folders, or anywhere below them."""
    from combee_dspy import tracking

    found: list[dict[str, Any]] = []
    for folder in folders or [Path()]:
        if not folder.exists():
            raise ArgumentValueError("FOLDERS", str(folder), "is not there", "Name a folder, or a journal.")
        for journal in sorted(folder.rglob("journal.sqlite")) if folder.is_dir() else [folder]:
            found += [{"run": str(journal.parent), **row} for row in tracking.runs(journal)]
    if as_json:
        write_json(found)
    elif found:
        show_table([_brief(row) for row in found])
    else:
        typer.echo("No journal was found. Name the log_dir of a run, or a folder that holds some.")


def _brief(row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: row[name] for name in ("run", "name", "state", "updates", "rollouts")}
    shown["validation"] = _change(row["seed_score"], row["best_score"])
    return {**shown, "held-out": _change(row["heldout_before"], row["heldout_after"]), "dollars": row["dollars"]}


def _change(before: float | None, after: float | None) -> str | None:
    return None if before is None or after is None else f"{before:.3f} → {after:.3f}"
