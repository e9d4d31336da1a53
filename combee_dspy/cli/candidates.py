"""``combee candidates``: every candidate of a run, with lineage and scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from combee_dspy.cli._tables import show_table, write_json

__all__ = ["candidates"]


def candidates(
    place: Annotated[Path, typer.Argument(metavar="RUN", help="The run's log_dir.", show_default=False)],
    run: Annotated[str | None, typer.Option(help="One of several tasks, by its name; all by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON with whole texts, one object a line.")] = False,
) -> None:
    """List every candidate of a run, with its lineage and scores.

    Works while the run goes on, and after it was killed. combee show RUN ID shows
    what a candidate says; from Python, combee_dspy.load_candidate(program, RUN, ID)
    returns the program with its texts, accepted or not.
    """
    from combee_dspy import tracking

    found = tracking.candidates(place, run)
    if as_json:
        write_json(found)
    else:
        indices = {one["candidate"]: one["index"] for one in found}
        several = len({one["run"] for one in found}) > 1
        show_table([({"run": one["run"]} if several else {}) | _row(one, indices) for one in found])


def _row(one: dict[str, Any], indices: dict[str, int | None]) -> dict[str, object]:
    screened = one["screened"] or {}
    parents = (parent if indices.get(parent) is None else str(indices[parent]) for parent in one["parents"])
    return {
        "index": one["index"],
        "candidate": one["candidate"],
        "parents": ", ".join(parents),
        "operator": one["operator"],
        "update": one["step"],
        "validation": one["score"],
        "screen": f"{screened['score']:.4g} against {screened['parent_score']:.4g}" if screened else None,
        "fate": "chosen" if one["selected"] else "" if screened.get("accepted", True) else screened["reason"],
    }
