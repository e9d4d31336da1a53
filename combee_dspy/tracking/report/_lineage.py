"""Candidates as whole texts, put together from what each changed."""

from __future__ import annotations

from collections.abc import Mapping

from combee_dspy.tracking.report._data import CandidateRow

__all__ = ["texts_before", "texts_of"]


def texts_of(one: CandidateRow, known: Mapping[str, CandidateRow], seed: Mapping[str, str]) -> dict[str, str]:
    """Return a whole candidate.

    Args:
        one: The candidate, which holds only what it changed.
        known: The run's candidates by content hash.
        seed: The seed's texts.
    """
    return {**texts_before(one, known, seed), **one.texts}


def texts_before(one: CandidateRow, known: Mapping[str, CandidateRow], seed: Mapping[str, str]) -> dict[str, str]:
    """Return its parent as a whole; the seed where the parent is not known."""
    line: list[CandidateRow] = []
    at, seen = known.get(one.parent_id), {one.candidate_id}
    while at is not None and at.candidate_id not in seen:
        seen.add(at.candidate_id)
        line.append(at)
        at = known.get(at.parent_id)
    texts = dict(seed)
    for ancestor in reversed(line):
        texts.update(ancestor.texts)
    return texts
