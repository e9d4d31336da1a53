"""``combee show``: a run with its costs, one of its candidates, or one rollout or LM call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from combee_dspy.cli._tables import plain, show_facts, show_table

__all__ = ["show"]

_STYLES = {"+ ": "green", "- ": "red"}
_COSTS = ("role", "model", "calls", "errors", "cached", "prompt_tokens", "completion_tokens", "dollars", "gpu_seconds")


def show(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run's log_dir.", show_default=False)],
    what: Annotated[str | None, typer.Argument(metavar="[WHAT]", help="A candidate, or a number.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write JSON, with whole texts.")] = False,
) -> None:
    """Show a run with its costs, or one thing of it.

    \b
        combee show runs/today               its figures, and what it has cost by role and model
        combee show runs/today best          the candidate that was chosen, and what it changed in its parent
        combee show runs/today 3f2a          a candidate, by the beginning of its id
        combee show runs/today 1234 --json   a rollout or an LM call, by the id that combee rollouts shows
    """  # noqa: D301 - the backspace keeps lines apart on the help page
    from combee_dspy import tracking

    if what is None:
        found: Any = [{**one, "costs": tracking.costs(run, one["id"])} for one in tracking.runs(run)]
    else:
        found = tracking.show(run, _best(tracking.candidates(run)) if what == "best" else what)
    if as_json:
        typer.echo(json.dumps(found, indent=2))
    elif what is not None:
        _print(found)
    else:
        for one in found:
            costs = one.pop("costs")
            show_facts({name: value for name, value in one.items() if value is not None})
            show_table([{name: row[name] for name in _COSTS} for row in costs])


def _best(candidates: list[dict[str, Any]]) -> str:
    """Return the id of the candidate that was chosen last; before the end, of the best one so far."""
    judged = sorted((one for one in candidates if one["score"] is not None), key=lambda one: float(one["score"]))
    chosen = judged + [one for one in candidates if one["selected"]]
    return str(chosen[-1]["candidate"]) if chosen else "best"


def _print(found: dict[str, Any]) -> None:
    diff, value = found.pop("diff", {}), found.pop("value", {})
    found.pop("texts", None)
    show_facts({name: one for name, one in found.items() if one not in (None, "", [])})
    show_facts(value if isinstance(value, dict) else {"value": value})
    console = Console()
    for component, lines in diff.items():
        console.print(Text(f"\n{plain(component)}", style="bold"), soft_wrap=True)
        for line in lines:
            # One line at a time: what is no line feed must not steer the terminal.
            console.print(Text(line[:2] + plain(line[2:], 2_000), style=_STYLES.get(line[:2], "")), soft_wrap=True)
