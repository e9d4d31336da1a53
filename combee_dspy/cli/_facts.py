"""A run, a candidate or an effect on a terminal, as names and values, and tables."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from combee_dspy.cli._tables import plain, show_facts, show_table
from combee_dspy.gains import name_gain

__all__ = ["name_claims", "name_dollars", "name_heldout", "show_run", "show_thing", "write_change"]

_HEADS = {"prompt_tokens": "in", "completion_tokens": "out", "gpu_seconds": "GPU s"}
_UNSHOWN = ("seconds", "known_dollars", "unpriced")  # of costs
_AUDIT = ("at", "user", "host", "version", "commit", "program", "texts")
_TIMES = ("at", "created", "ended", "finished", "started", "validated_at")
_STYLES = {"+ ": "green", "- ": "red"}


def name_heldout(row: dict[str, Any]) -> str | None:
    """Return held-out figures after what they are called; ``None`` where nothing was held out."""
    if row["heldout_n"] is None:
        return None
    what = name_gain(*(row[f"heldout_{name}"] for name in ("difference", "low", "high")))
    return f"{what}: {write_change(row['heldout_before'], row['heldout_after'])}"


def name_claims(row: dict[str, Any]) -> str:
    """Return what a run's figures are fit for."""
    return "simulated" if row["simulated"] else "fit" if row["supports_claims"] else "unfit"


def name_dollars(dollars: float | None) -> float | str:
    """Return dollars; in a word where they are not known."""
    return "unknown" if dollars is None else dollars


def write_change(before: float | None, after: float | None) -> str | None:
    """Return two scores as a change; ``None`` where one is not known."""
    return None if before is None or after is None else f"{before:.3f} → {after:.3f}"


def show_run(run: dict[str, Any]) -> None:
    """Show the figures of a run, what it has cost, and who began it. Takes the run apart."""
    costs, spending, audit, problems = (
        run.pop(name) for name in ("costs", "spending", "audit", "problems")
    )
    if (heldout := name_heldout(run)) is not None:
        show_facts({"held-out": heldout})
    run["dollars"], run["claims"] = name_dollars(run["dollars"]), name_claims(run)
    del run["simulated"], run["supports_claims"]
    show_facts({name: _written(name, value) for name, value in run.items() if value is not None})
    for kind, sentences in problems.items():
        for sentence in sentences:
            show_facts({kind.removesuffix("s"): sentence})
    for rows, hidden in ((costs, _UNSHOWN), (spending, ())):
        typer.echo()
        show_table([_cost_row(row, hidden) for row in rows])
    typer.echo()
    show_table([{name: plain(_written(name, row[name])) for name in _AUDIT} for row in audit])


def _cost_row(row: dict[str, Any], hidden: Collection[str]) -> dict[str, Any]:
    row["dollars"] = name_dollars(row["dollars"])
    return {_HEADS.get(name, name): value for name, value in row.items() if name not in hidden}


def _written(name: str, value: Any) -> Any:
    if name in _TIMES and isinstance(value, float):
        try:
            return datetime.fromtimestamp(value).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        except (OverflowError, ValueError, OSError):
            return f"{value:g}"  # no time of any calendar
    return f"{value:.4g}" if isinstance(value, float) else value


def show_thing(thing: dict[str, Any]) -> None:
    """Show a candidate with its changes, or an effect. Takes it apart."""
    thing.pop("texts", None)
    diff, value = thing.pop("diff", {}), thing.pop("value", {})
    suspicious = thing.pop("suspicious", [])
    facts = {name: _written(name, fact) for name, fact in thing.items()}
    show_facts({name: fact for name, fact in facts.items() if fact not in (None, "", [])})
    show_facts(value if isinstance(value, dict) else {"value": value})
    console = Console()
    for component, lines in diff.items():
        console.print(Text(f"\n{plain(component)}", style="bold"), soft_wrap=True)
        for line in lines:
            # One line at a time: what is no line feed must not steer the terminal.
            text = line[:2] + plain(line[2:], 2_000)
            console.print(Text(text, style=_STYLES.get(line[:2], "")), soft_wrap=True)
    for place in suspicious:
        text = plain("look at line {line} of {part}, {reason}: {text}".format_map(place))
        console.print(Text(text, style="yellow"), soft_wrap=True)
