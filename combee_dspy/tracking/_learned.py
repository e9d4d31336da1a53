"""What a run learned: the lines of its text, and the candidate that each of them came from.
Pure.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from combee_dspy.records import is_hidden

__all__ = ["diffs", "gain", "learned", "lines_of"]

_Candidate = Mapping[str, Any]


def learned(chosen: _Candidate, candidates: Sequence[_Candidate]) -> list[dict[str, Any]]:
    """Return each line of a candidate's texts with the update and operator that brought it.

    The gain of an update is that of all its lines together.
    ``candidates`` are all of the run, parents before children.
    """
    ids = {chosen["candidate"]}
    for candidate in reversed(candidates):
        if candidate["candidate"] in ids:
            ids.update(candidate["parents"])
    descent = [candidate for candidate in candidates if candidate["candidate"] in ids]
    scores = {candidate["candidate"]: candidate["score"] for candidate in candidates}
    rows: list[dict[str, Any]] = []
    for part, text in chosen["texts"].items():
        first: dict[str, _Candidate] = {}
        for candidate in descent:
            for line in lines_of(part, candidate["texts"].get(part, "")):
                first.setdefault(_same(line), candidate)
        for line in filter(str.strip, lines_of(part, text)):
            source = first[_same(line)]
            heading = line.startswith("#") or line.endswith(":")
            screened = source["screened"]
            rows.append(
                {
                    "part": part,
                    "text": line,
                    # Of the student, whatever it came from.
                    "step": source["step"] if source["parents"] else -1,
                    "operator": source["operator"],
                    "gain": None if heading else gain(source, scores),
                    "heading": heading,
                    "score": source["score"],
                    "fate": screened["reason"] if screened and source["score"] is None else "",
                }
            )
    return rows


def gain(candidate: _Candidate, scores: Mapping[str, float | None]) -> float | None:
    """Return what validation gained over a candidate's best parent, where both are known."""
    before = [score for name in candidate["parents"] if (score := scores.get(name)) is not None]
    score = candidate["score"]
    return None if score is None or not before else float(score) - max(before)


def diffs(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the lines of a comparison by part, after ``"+ "``, ``"- "`` or two spaces; of parts
    that differ.
    """
    both = {
        part: (lines_of(part, before.get(part, "")), lines_of(part, text))
        for part, text in after.items()
    }
    return {
        part: [line for line in difflib.ndiff(*two) if line[0] != "?"]
        for part, two in both.items()
        if two[0] != two[1]
    }


def lines_of(part: str, text: str) -> list[str]:
    """Return a text's lines; what is kept as JSON beside an instruction, one line each. What is no
    such JSON is a text like any other.
    """
    if not is_hidden(part):
        return text.splitlines()
    try:
        data = json.loads(text) if text else {}
        if "fields" in data:
            return [f"{name}: {description}" for name, description in data["fields"].items()]
        return [
            f"{_flat(demonstration['inputs'])} ⇒ {_flat(demonstration['outputs'])}"
            for demonstration in data.get("demonstrations", ())
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return text.splitlines()


def _flat(values: Mapping[str, Any]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in values.items())


def _same(line: str) -> str:
    """Return what makes two lines the same: a bullet of a playbook stays itself while it is
    counted.
    """
    head, separator, text = line.partition(" :: ")
    return text if separator and head.startswith("[") else line
