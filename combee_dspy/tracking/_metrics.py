"""What a run amounts to for MLflow: parameters before it, metrics by update, a description after
it.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from combee_dspy.gains import NO_HELDOUT, name_gain
from combee_dspy.journal import Reader, failure_counts, outcomes
from combee_dspy.tracking._lessons import count_lessons
from combee_dspy.tracking._queries import costs_of
from combee_dspy.tracking._sql import RUNS, SPENT
from combee_dspy.tracking._text import cut, dollars

__all__ = [
    "MAX_PARAM",
    "MAX_TAG",
    "charted",
    "description",
    "end_metrics",
    "heldout_gain",
    "params",
    "title",
    "update_metrics",
]

MAX_PARAM = 6_000
"""Characters of a parameter's value that MLflow keeps; it cuts the rest without a word."""

MAX_TAG = 8_000
"""Characters of a tag's value, and of a run's description."""

_NAME = re.compile(r"[^\w./ -]")  # MLflow refuses names with anything else
_LONGEST_NAME = 100
_HELDOUT = ("before", "after", "difference", "low", "high", "n")


def params(row: Mapping[str, Any]) -> dict[str, str]:
    """Return what was decided before a run (its row in the journal): each setting under its own
    name, as ``num_threads`` or ``search.staleness``; a strategy by its name, and its parameters as
    ``aggregator.copies``; models, sizes, digests and versions in groups, as ``size/train``.
    """
    about = json.loads(row["description"])
    decided: dict[str, Any] = {
        "name": row["name"],
        **about.pop("settings", {}),
        "seed": row["seed"],
        **_strategies(about.pop("specs", {})),
    }
    for name, value in about.items():
        if name in _FACTS:
            decided |= {f"{_FACTS[name]}/{key}": fact for key, fact in value.items()}
        elif isinstance(value, dict):
            decided |= {f"{name}.{key}": part for key, part in value.items()}
        else:
            decided[name] = value
    texts = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in decided.items()
    }
    return {_named(name): cut(text, MAX_PARAM) for name, text in texts.items()}


_FACTS = {"models": "model", "digests": "digest", "sizes": "size", "versions": "version"}


def _strategies(specs: Mapping[str, Any]) -> dict[str, Any]:
    decided: dict[str, Any] = {}
    for role, spec in specs.items():
        several = spec if isinstance(spec, list) else [spec]
        decided[role] = ", ".join(part["name"] for part in several)
        for part in several:
            prefix = f"{role}.{part['name']}" if isinstance(spec, list) else role
            decided |= {f"{prefix}.{key}": value for key, value in part["params"].items()}
    return decided


_CHARTED = {
    "val/best": "score/best",
    "val/candidate": "score/candidate",
    "train/train": "score/train",
    "best_score": "score/chosen",
    "heldout/before": "score/heldout_before",
    "heldout/after": "score/heldout",
    "cost/rollouts": "cost/rollouts",
    "cost/dollars": "cost/dollars",
    "cost/unpriced_calls": "cost/unpriced_calls",
    "cost/heldout_rollouts": "cost/heldout_rollouts",
    "time/run": "cost/seconds",
    "total/gpu_seconds": "cost/gpu_seconds",
    "per_point/dollars": "cost/dollars_a_point",
    "batch/size": "batch/size",
    "scan/covered": "scan/kept",
}


def charted(found: Mapping[str, float]) -> dict[str, float]:
    """Return what people chart, by its name in MLflow: a dozen metrics, tokens and dollars by role,
    and lessons by state.

    The rest is a file.
    """
    groups = {
        name: value
        for name, value in found.items()
        if name.startswith(("tokens/", "dollars/", "lessons/"))
    }
    return groups | {_CHARTED[name]: value for name, value in found.items() if name in _CHARTED}


def title(row: Mapping[str, Any]) -> str:
    """Return the name of a run (its row in the journal) among others: task, aggregator, and rows to
    learn from.
    """
    about = json.loads(row["description"])
    aggregator = (about.get("specs") or {}).get("aggregator") or {}
    task = about["program"] if row["name"] == "main" else row["name"]
    size = (about.get("sizes") or {}).get("train")
    parts = [task, aggregator.get("name", ""), f"{size} rows" if size else ""]
    return ", ".join(filter(None, parts))


def update_metrics(
    reader: Reader, run: int, step: int, *, event: int, effect: int
) -> dict[str, float]:
    """Return the metrics of one update that is over; sums are over all updates up to this one.

    Events and effects with larger ids than the given ones are not read: the same
    bounds give the same figures, however much the journal has grown since.
    """
    found: dict[str, float] = defaultdict(float)
    covered: list[float] = []
    sql = (
        "SELECT step, kind, data FROM event WHERE run = ? AND id <= ? AND (step = ? OR kind ="
        " 'validated' AND step < ?) ORDER BY id"
    )
    for row in reader.rows(sql, (run, event, step, step)):
        data = json.loads(row["data"])
        if row["kind"] == "validated":
            _validated(found, data, of_step=row["step"] == step)
        else:
            _counted(found, covered, row["kind"], data)
    if covered:
        found["scan/covered"] = sum(covered) / len(covered)
    sql = (
        "SELECT purpose, count(*), avg(score), count(error), avg(ended - started) FROM effect WHERE"
        " run = ? AND kind = 'rollout' AND step = ? AND id <= ? AND purpose <> 'heldout' GROUP BY 1"
    )
    for purpose, count, score, errors, seconds in reader.rows(sql, (run, step, effect)):
        found[f"rollouts/{purpose}"], found[f"rollouts/{purpose}_errors"] = count, errors
        found[f"time/{purpose}_rollout"] = seconds
        if purpose in ("train", "screen") and score is not None:
            found[f"train/{purpose}"] = score
    # As the update left the book: what is decided later, also about its lessons, is no part of it.
    closed = "SELECT coalesce(max(id), 0) FROM event WHERE run = ? AND kind = 'update' AND step = ?"
    found |= count_lessons(reader, run, reader.rows(closed, (run, step))[0][0], step)
    sql = (
        "SELECT count(*) FROM effect"
        " WHERE run = ? AND kind = 'rollout' AND id <= ? AND step <= ? AND purpose <> 'heldout'"
    )
    found["cost/rollouts"] = reader.rows(sql, (run, effect, step))[0][0]
    before = SPENT.format("e.step <= ? AND e.purpose <> 'heldout'")
    found |= _by_role(reader.rows(before, (run, effect, step)))
    return {_named(name): float(value) for name, value in found.items() if math.isfinite(value)}


def _by_role(spent: Sequence[sqlite3.Row]) -> dict[str, float]:
    """Return what rows of ``SPENT`` amount to, by role and as a whole.

    A model without a price takes nothing from the others: dollars are those that are known, beside
    ``cost/unpriced_calls``. Where none is known there is no number, least of all 0.
    """
    amounts: dict[str, float] = {}
    for role, calls, tokens, dollars_known, unpriced in spent:
        amounts |= {f"calls/{role}": calls, f"tokens/{role}": tokens}
        if unpriced < calls:
            amounts[f"dollars/{role}"] = dollars_known
            amounts["cost/dollars"] = amounts.get("cost/dollars", 0.0) + dollars_known
        if unpriced:
            amounts["cost/unpriced_calls"] = amounts.get("cost/unpriced_calls", 0) + unpriced
    return amounts


def _validated(found: dict[str, float], data: Mapping[str, Any], *, of_step: bool) -> None:
    if data["score"] is None:
        return
    if data["index"] == 0:
        found["val/seed"] = data["score"]
    if data["best"]:
        found["val/best"] = data["score"]
    if of_step and data["index"]:
        # One value a step: the best of several children.
        found["val/candidate"] = max(data["score"], found.get("val/candidate", -math.inf))


def _counted(
    found: dict[str, float], covered: list[float], kind: str, data: Mapping[str, Any]
) -> None:
    match kind:
        case "update":
            found["time/update"] = data["seconds"]
        case "batch":
            found["batch/size"], found["batch/clamps"] = data["size"], len(data["clamps"])
            if data["fit"] is not None:
                found["batch/plateau"], found["batch/exponent"] = (
                    data["fit"]["plateau"],
                    data["fit"]["exponent"],
                )
        case "scan":
            found["scan/reflections"] += data["n"]
            found["scan/nodes"] += len(data["nodes"])
            found["scan/failed_nodes"] += sum(one["failed"] is not None for one in data["nodes"])
            found["scan/lessons"] += len(data["lessons"])
            if data["retained"]:
                covered.append(
                    sum(one["covered"] for one in data["retained"]) / len(data["retained"])
                )
        case "screened":
            found["candidates/screened"] += 1
            found["candidates/screened_out"] += not data["accepted"]
        case "candidate" | "refused":
            found[f"candidates/{'proposed' if kind == 'candidate' else kind}"] += 1
        case "warning" | "error":
            found[f"{kind}s"] += 1


def end_metrics(reader: Reader, run: int) -> dict[str, float]:
    """Return the metrics of a run that is over: the result's scores, and the sums of everything,
    the reading of the held-out set included.
    """
    row, total = reader.rows(RUNS, (run,))[0], costs_of(reader, run, ())[0]
    told = reader.rows(
        "SELECT data FROM event WHERE run = ? AND kind = 'per_point' ORDER BY id DESC LIMIT 1",
        (run,),
    )
    points = json.loads(told[0]["data"]) if told else {}
    found = {
        # Not val/best: the program that is returned may be another than the last update's best, and
        # is judged again.
        "best_score": row["best_score"],
        **{f"heldout/{name}": row[f"heldout_{name}"] for name in _HELDOUT},
        **{
            f"per_point/{name}": points.get(name)
            for name in ("points", "rollouts", "tokens", "dollars", "gpu_seconds", "seconds")
        },
        **{f"total/{name}": row[name] for name in ("rollouts", "updates", "tokens")},
        **{
            f"total/{name}": total[name]
            for name in ("calls", "errors", "cached", "dollars", "gpu_seconds")
        },
        "total/unpriced_calls": total["unpriced"],
        **_by_role(reader.rows(SPENT.format("1"), (run, sys.maxsize))),
        "cost/heldout_rollouts": row["heldout_rollouts"] or None,
        **count_lessons(reader, run),
        "time/run": row["finished"] - row["created"] if row["finished"] else None,
    }
    return {name: float(value) for name, value in found.items() if value is not None}


def heldout_gain(row: sqlite3.Row | Mapping[str, Any]) -> str:
    """Return what the held-out figures of a run (a row of ``RUNS``) are called."""
    if not row["heldout_n"]:
        return NO_HELDOUT
    return name_gain(*(row[f"heldout_{name}"] for name in ("difference", "low", "high")))


def description(reader: Reader, run: int) -> str:
    """Return a run's description, the headline first: MLflow shows about three lines."""
    row, total = reader.rows(RUNS, (run,))[0], costs_of(reader, run, ())[0]
    lines = []
    if row["heldout_n"]:
        figures = "Held-out {}: {:.3f} → {:.3f} ({:+.3f}, interval {:+.3f} to {:+.3f}, n = {})."
        lines.append(
            figures.format(heldout_gain(row), *(row[f"heldout_{name}"] for name in _HELDOUT))
        )
        lines.append(f"Cost per held-out point: {row['per_point']}.")
    if row["seed_score"] is not None and row["best_score"] is not None:
        lines.append(f"Validation {row['seed_score']:.3f} → {row['best_score']:.3f}.")
    if row["simulated"]:
        lines.append("The models are simulated: this run supports no claim about a model.")
    elif not row["supports_claims"]:
        lines.append("This run supports no claim.")
    lines.extend(f"Failed: {one}." for one in failure_counts(outcomes(reader, run)))
    lines.append(f"{row['state'].capitalize()}{': ' + row['reason'] if row['reason'] else ''}.")
    spent = dollars(total["known_dollars"], total["unpriced"])
    lines.append(
        f"{row['rollouts']} rollouts, {row['calls']} LM calls, {row['tokens']} tokens, {spent}."
    )
    texts = reader.rows(
        "SELECT data FROM event WHERE run = ? AND kind = 'warning' ORDER BY id LIMIT 10", (run,)
    )
    return cut(
        "\n\n".join([*lines, *(f"Warning: {json.loads(one['data'])['text']}" for one in texts)]),
        MAX_TAG,
    )


def _named(name: str) -> str:
    return _NAME.sub("_", name)[:_LONGEST_NAME]
