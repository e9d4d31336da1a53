"""Prints a run, a candidate or an effect as names with values, and tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from combee_dspy.cli._tables import plain, show_facts, show_table
from combee_dspy.verdicts import NO_HELDOUT, TONES, Verdict, judge_difference

_HEADS = {
    "prompt_tokens": "in",
    "completion_tokens": "out",
    "gpu_seconds": "GPU s",
    "of": "spent on",
}
_HIDDEN_COSTS = ("seconds", "known_dollars", "unpriced")
_AUDIT = ("at", "user", "host", "version", "commit", "program", "texts")
_TIMES = ("at", "created", "ended", "finished", "started", "validated_at")
_STYLES = {"+ ": "green", "- ": "red"}


def write_time(at: float) -> str:
    """Return a Unix time in this machine's zone."""
    try:
        return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{at:g}"  # no time of any calendar


def name_score(row: Mapping[str, Any]) -> dict[str, str | None]:
    """Return a run's ``score``, on held-out rows where some were read, and its ``result``."""
    verdict = _verdict(row)
    score, result = _change(row, "seed_score", "best_score"), NO_HELDOUT
    if verdict is not None:
        score, result = _change(row, "heldout_before", "heldout_after"), verdict.name
    if row["state"] != "finished":
        result = row["state"]
    elif result == "better" and not row["supports_claims"] and not row["simulated"]:
        result = "better, unfit for claims"
    return {"score": score, "result": result}


def _verdict(row: Mapping[str, Any]) -> Verdict | None:
    if row["heldout_n"] is None:
        return None
    names = ("heldout_difference", "heldout_low", "heldout_high", "heldout_n")
    return judge_difference(*(row[name] for name in names))


def _change(row: Mapping[str, Any], before: str, after: str) -> str | None:
    if row[before] is None or row[after] is None:
        return None
    return f"{row[before]:.3f} → {row[after]:.3f}"


def show_run(run: dict[str, Any]) -> None:
    """Print a run: the verdict first, then its figures, costs and who began it."""
    verdict = _verdict(run)
    result = f"{NO_HELDOUT}: the search chose by its scores, so they support no claim"
    if verdict is not None:
        ends = "{heldout_difference:+.3f}, interval {heldout_low:+.3f} to {heldout_high:+.3f}"
        change = _change(run, "heldout_before", "heldout_after")
        result = f"{verdict}: {change} ({ends.format_map(run)})"
    show_facts({"held-out": result}, TONES[verdict.tone if verdict else "unshown"])
    show_facts({name: value for name, value in _run_facts(run).items() if value})
    for kind, sentences in run["problems"].items():
        for sentence in sentences:
            show_facts({kind.removesuffix("s"): sentence})
    for rows, hidden in ((run["costs"], _HIDDEN_COSTS), (run["spending"], ())):
        typer.echo()
        show_table([_cost_row(row, hidden) for row in rows])
    typer.echo()
    show_table([_audit_row(row) for row in run["audit"]])


def _run_facts(run: dict[str, Any]) -> dict[str, Any]:
    counts = "{rollouts:,} rollouts, {updates:,} updates, {calls:,} LM calls, {tokens:,} tokens"
    span = f"started {write_time(run['created'])}"
    if run["finished"]:
        span += f", ended {write_time(run['finished'])}"
    recorded = f"{run['recorded']:,} recorded rollouts read: {run['traces']}"
    dollars = "dollars unknown" if run["dollars"] is None else f"${run['dollars']:.4f}"
    claims = "supported" if run["supports_claims"] else "none: see the warnings"
    return {
        "claims": "none: simulated" if run["simulated"] else claims,
        "run": f"{run['name']}, {run['state']}, {span}",
        "program": f"{run['program']}, seed {run['seed']}",
        "models": ", ".join(f"{role} {model}" for role, model in run["models"].items()),
        "scored by": run["evaluator"],
        "validation": _change(run, "seed_score", "best_score"),
        "budget": run["budget"],
        "spent": f"{counts.format_map(run)}, {dollars}",
        "per point": run["per_point"],
        "traces": recorded if run["traces"] else "",
        "stopped": run["reason"],
    }


def _audit_row(row: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: plain(_written(name, row[name])) for name in _AUDIT}
    return {**shown, "program": shown["program"][:8], "commit": (row["commit"] or "none")[:8]}


def _cost_row(row: Mapping[str, Any], hidden: Collection[str]) -> dict[str, Any]:
    shown = {**row, "dollars": _dollars(row)}
    return {_HEADS.get(name, name): value for name, value in shown.items() if name not in hidden}


def _dollars(row: Mapping[str, Any]) -> Any:
    return "unknown" if row["dollars"] is None else row["dollars"]


def _written(name: str, value: object) -> object:
    if isinstance(value, float):
        return write_time(value) if name in _TIMES else f"{value:.4g}"
    return value


def show_thing(thing: dict[str, Any]) -> None:
    """Print a candidate with its changes, or an effect."""
    value = thing.get("value", {})
    apart = ("texts", "diff", "value", "suspicious")
    facts = {name: _written(name, fact) for name, fact in thing.items() if name not in apart}
    show_facts({name: fact for name, fact in facts.items() if fact not in (None, "", [])})
    show_facts(value if isinstance(value, dict) else {"value": value})
    console = Console()
    for component, lines in thing.get("diff", {}).items():
        console.print(Text(f"\n{plain(component)}", style="bold"), soft_wrap=True)
        for line in lines:
            # One line at a time: only its own line feed may reach the terminal.
            text = line[:2] + plain(line[2:], 2_000)
            console.print(Text(text, style=_STYLES.get(line[:2], "")), soft_wrap=True)
    for place in thing.get("suspicious", []):
        text = plain("look at line {line} of {part}, {reason}: {text}".format_map(place))
        console.print(Text(text, style="yellow"), soft_wrap=True)
