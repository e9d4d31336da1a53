"""What a run learned: the lines of its text, and the candidate that each of them came from. Pure."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from combee_dspy.operators import is_hidden

__all__ = ["ancestors", "diffs", "learned"]

_Candidate = Mapping[str, Any]


def ancestors(chosen: _Candidate, known: Sequence[_Candidate]) -> list[_Candidate]:
    """Return a candidate and all that it descends from, the oldest first."""
    by_id = {one["candidate"]: one for one in known}
    found, waiting = {}, [chosen]
    while waiting:
        one = waiting.pop()
        if one["candidate"] not in found:
            found[one["candidate"]] = one
            waiting += [by_id[parent] for parent in one["parents"] if parent in by_id]
    return [one for one in known if one["candidate"] in found]


def learned(chosen: _Candidate, known: Sequence[_Candidate]) -> list[dict[str, Any]]:
    """Return each line of a candidate's texts with the update and operator that brought it.

    The gain of an update is that of all its lines together, and stands at the first of them.
    """
    line_of_descent = ancestors(chosen, known)
    scores = {one["candidate"]: one["score"] for one in known}
    found = []
    told = set()
    for part, text in chosen["texts"].items():
        first: dict[str, _Candidate] = {}
        for one in line_of_descent:
            for line in _lines(part, one["texts"].get(part, "")):
                first.setdefault(_same(line), one)
        for line in filter(str.strip, _lines(part, text)):
            source = first[_same(line)]
            heading = line.startswith("#") or line.endswith(":")
            gain = None
            if not heading and source["candidate"] not in told:
                told.add(source["candidate"])
                gain = _gain(source, scores)
            # Of the student, whatever it came from.
            step = -1 if not source["parents"] else source["step"]
            about = {"step": step, "operator": source["operator"], "gain": gain, "heading": heading}
            found.append({"part": part, "text": line, **about})
    return found


def _gain(one: _Candidate, scores: Mapping[str, float | None]) -> float | None:
    """Return what validation gained over a candidate's best parent, where both are known."""
    before = [score for parent in one["parents"] if (score := scores.get(parent)) is not None]
    return None if one["score"] is None or not before else float(one["score"]) - max(before)


def diffs(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the lines of a comparison by part, after ``"+ "``, ``"- "`` or two spaces; of parts that differ."""
    both = {part: (_lines(part, before.get(part, "")), _lines(part, text)) for part, text in after.items()}
    return {
        part: [one for one in difflib.ndiff(*two) if one[0] != "?"] for part, two in both.items() if two[0] != two[1]
    }


def _lines(part: str, text: str) -> list[str]:
    """Return a text's lines; what is kept as JSON beside an instruction, one line each."""
    if not is_hidden(part):
        return text.splitlines()
    data = json.loads(text) if text else {}
    if "fields" in data:
        return [f"{name}: {said}" for name, said in data["fields"].items()]
    return [f"{_flat(one['inputs'])} ⇒ {_flat(one['outputs'])}" for one in data.get("demonstrations", ())]


def _flat(values: Mapping[str, Any]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in values.items())


def _same(line: str) -> str:
    """Return what makes two lines the same: a bullet of a playbook stays itself while it is counted."""
    head, separator, text = line.partition(" :: ")
    return text if separator and head.startswith("[") else line
