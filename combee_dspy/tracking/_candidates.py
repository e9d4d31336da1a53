"""Candidates of a journal, as rows: lineage, texts, and what became of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from combee_dspy.events import (
    CandidateProposed,
    CandidateScreened,
    CandidateSelected,
    CandidateValidated,
)
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.journal import Reader, RunHistory
from combee_dspy.tracking._text import clean_values, cleaner

__all__ = ["candidate_named", "candidates_of", "chosen_of", "recorded"]

_OF_CANDIDATES: tuple[
    type[CandidateProposed | CandidateScreened | CandidateValidated | CandidateSelected], ...
] = (CandidateProposed, CandidateScreened, CandidateValidated, CandidateSelected)
_ENDS = (
    "SELECT run, candidate, max(ended) FROM effect WHERE (?1 IS NULL OR run = ?1)"
    " AND kind = 'rollout' AND purpose = 'validation' GROUP BY 1, 2"
)
_SHORTEST = 4
_LISTED = 20


def candidates_of(reader: Reader, run: int | None) -> list[dict[str, Any]]:
    """Return candidates as :func:`combee_dspy.tracking.candidates` does, of an open journal."""
    clean = cleaner()
    return [clean_values(row, clean) for row in recorded(reader, run)]


def recorded(reader: Reader, run: int | None) -> list[dict[str, Any]]:
    """Return what :func:`candidates_of` does, with texts as they were written."""
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    # The event comes in the order of updates, often long after the last row was scored.
    ends = {(name, candidate): at for name, candidate, at in reader.rows(_ENDS, (run,))}
    history = RunHistory(reader, run)
    for entry in history.entries(*_OF_CANDIDATES):
        event = entry.event
        row = rows.setdefault(
            (entry.run, event.candidate),
            {
                "run": entry.run,
                "candidate": event.candidate,
                "index": None,
                "step": entry.step,
                "operator": "",
                "parents": [],
                "components": [],
                "score": None,
                "rows": 0,
                "validated_at": None,
                "screened": None,
                "selected": "",
                "texts": {},
            },
        )
        match event:
            case CandidateProposed() if not row["texts"]:
                row["operator"], row["texts"] = event.operator, dict(event.texts)
                row["parents"], row["components"] = list(event.parents), list(event.components)
            case CandidateScreened():
                row["screened"] = {
                    "score": event.score,
                    "parent_score": event.parent_score,
                    "accepted": event.accepted,
                    "reason": event.reason,
                }
            case CandidateValidated():
                row.update(index=event.index, score=event.score, rows=event.rows)
                row["validated_at"] = ends.get((entry.run, event.candidate)) or entry.at
            case CandidateSelected():
                # A run that went on with a larger budget has chosen again: the last choice stands.
                for other in rows.values():
                    if other["run"] == entry.run:
                        other["selected"] = ""
                row["selected"] = event.reason
    return sorted(rows.values(), key=lambda row: int(row["run"]))


def chosen_of(candidates: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the candidate that was chosen last, else the best so far, else the student; empty
    where there is none.
    """
    selected = [candidate for candidate in candidates if candidate["selected"]]
    scored = sorted(
        (candidate for candidate in candidates if candidate["score"] is not None),
        key=lambda candidate: float(candidate["score"]),
    )
    return (selected or scored or [*candidates[:1]] or [{}])[-1]


def candidate_named(
    candidates: Sequence[dict[str, Any]], wanted: str | int
) -> dict[str, Any] | None:
    """Return the candidate that a name stands for, by the rules of every command; ``None`` where
    there is none.

    Args:
        candidates: What :func:`combee_dspy.tracking.candidates` returns.
        wanted: ``"best"`` for the one that was chosen, or the best so far; its index, the position
            among the validated ones; or the first four characters or more of its content hash.

    Raises:
        ArgumentValueError: Several have that name.
    """
    name = str(wanted)
    if name == "best":
        scored = [candidate for candidate in candidates if candidate["score"] is not None]
        runs = dict.fromkeys(candidate["run"] for candidate in scored or candidates)
        matches = [
            dict(chosen_of([candidate for candidate in candidates if candidate["run"] == run]))
            for run in runs
        ]
    else:
        matches = [
            candidate
            for candidate in candidates
            if name.isdecimal() and candidate["index"] == int(name)
        ]
        if not matches and len(name) >= _SHORTEST:
            matches = [
                candidate for candidate in candidates if candidate["candidate"].startswith(name)
            ]
    if len(matches) > 1:
        listed = ", ".join(
            f"{match['candidate']} of run {match['run']}" for match in matches[:_LISTED]
        )
        raise ArgumentValueError(
            "id", wanted, "names several candidates", f"Say of which run, or more of it: {listed}."
        )
    return matches[0] if matches else None
