"""A run, a candidate or an effect on a terminal, as names and values, and tables."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from combee_dspy.cli._tables import plain, show_facts, show_table
from combee_dspy.verdicts import NO_HELDOUT, TONES, Verdict, judge_difference

__all__ = ["name_dollars", "name_score", "show_run", "show_thing", "write_time"]

_HEADS = {"prompt_tokens": "in", "completion_tokens": "out", "gpu_seconds": "GPU s"}
_UNSHOWN = ("seconds", "known_dollars", "unpriced")  # of costs
_AUDIT = ("at", "user", "host", "version", "commit", "program", "texts")
_HELDOUT = tuple(
    f"heldout_{name}" for name in ("before", "after", "difference", "low", "high", "n")
)
_TIMES = ("at", "created", "ended", "finished", "started", "validated_at")
_STYLES = {"+ ": "green", "- ": "red"}


def name_score(row: dict[str, Any]) -> dict[str, str | None]:
    """Return a run's ``score``, on held-out rows where some were read, and what its ``result`` is
    called.
    """
    verdict = _verdict(row)
    places = ("seed_score", "best_score") if verdict is None else _HELDOUT[:2]
    result = NO_HELDOUT if verdict is None else verdict.name
    if row["state"] != "finished":
        result = str(row["state"])
    elif result == "better" and not row["supports_claims"] and not row["simulated"]:
        result = "better, unfit for claims"
    return {"score": _change(*(row[place] for place in places)), "result": result}


def name_dollars(dollars: float | None) -> float | str:
    """Return dollars; in a word where they are not known."""
    return "unknown" if dollars is None else dollars


def write_time(at: float) -> str:
    """Return a Unix time in this machine's zone."""
    try:
        return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{at:g}"  # no time of any calendar


def _verdict(row: dict[str, Any]) -> Verdict | None:
    if row["heldout_n"] is None:
        return None
    return judge_difference(*(row[name] for name in _HELDOUT[2:]))


def _change(before: float | None, after: float | None) -> str | None:
    return None if before is None or after is None else f"{before:.3f} → {after:.3f}"


def show_run(run: dict[str, Any]) -> None:
    """Show a run: the verdict, what it took, and who began it."""
    verdict = _verdict(run)
    result = f"{NO_HELDOUT}: the search chose by its scores, so they support no claim"
    if verdict is not None:
        ends = "{heldout_difference:+.3f}, interval {heldout_low:+.3f} to {heldout_high:+.3f}"
        change = _change(run["heldout_before"], run["heldout_after"])
        result = f"{verdict}: {change} ({ends.format_map(run)})"
    show_facts({"held-out": result}, TONES[verdict.tone if verdict else "unshown"])
    claims = "simulated" if run["simulated"] else "fit" if run["supports_claims"] else "unfit"
    counts = "{rollouts:,} rollouts, {updates:,} updates, {calls:,} LM calls, {tokens:,} tokens"
    begun = f"begun {write_time(run['created'])}"
    over = f", over {write_time(run['finished'])}" if run["finished"] else ""
    facts = {
        "claims": claims,
        "run": f"{run['name']}, {run['state']}, {begun}{over}",
        "program": f"{run['program']}, seed {run['seed']}",
        "models": ", ".join(f"{role} {model}" for role, model in run["models"].items()),
        "scored by": run["evaluator"],
        "validation": _change(run["seed_score"], run["best_score"]),
        "budget": run["budget"],
        "spent": f"{counts.format_map(run)}, dollars {name_dollars(run['dollars'])}",
        "per point": run["per_point"],
        "traces": run["traces"] and f"{run['recorded']:,} recorded rollouts read: {run['traces']}",
        "stopped": run["reason"],
    }
    show_facts({name: value for name, value in facts.items() if value})
    for kind, sentences in run["problems"].items():
        for sentence in sentences:
            show_facts({kind.removesuffix("s"): sentence})
    for rows, hidden in ((run["costs"], _UNSHOWN), (run["spending"], ())):
        typer.echo()
        show_table([_cost_row(row, hidden) for row in rows])
    typer.echo()
    show_table([_audit_row(row) for row in run["audit"]])


def _audit_row(row: dict[str, Any]) -> dict[str, Any]:
    shown = {name: plain(_written(name, row[name])) for name in _AUDIT}
    return {**shown, "program": shown["program"][:8], "commit": (row["commit"] or "none")[:8]}


def _cost_row(row: dict[str, Any], hidden: Collection[str]) -> dict[str, Any]:
    row["dollars"] = name_dollars(row["dollars"])
    return {_HEADS.get(name, name): value for name, value in row.items() if name not in hidden}


def _written(name: str, value: Any) -> Any:
    if name in _TIMES and isinstance(value, float):
        return write_time(value)
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
