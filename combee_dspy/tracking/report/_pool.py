"""The candidates of a run and where they came from, joined from what is heard about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from combee_dspy import events
from combee_dspy.tracking._text import cut, one_line
from combee_dspy.tracking.report._data import CandidateRow

__all__ = ["MAX_ROWS", "MAX_TEXT", "Pool"]

MAX_ROWS = 300
"""Candidates outside gepa's pool that are kept; beyond it the oldest are counted only."""

MAX_TEXT = 20_000
"""Characters of a changed component that are kept."""

TEXT_BUDGET = 3_000_000
"""Characters of changed components kept over all candidates."""


@dataclass
class _Candidate:
    """What has been heard about one candidate."""

    candidate_id: str
    iteration: int
    operator: str
    parent_id: str = ""
    index: int | None = None
    validation: float | None = None
    fate: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)
    scores: int = 0
    total: float = 0.0
    before: float | None = None


@dataclass
class Pool:
    """Joins proposals, minibatch scores, acceptance and validation. Not thread-safe."""

    chosen: int | None = None
    dropped: int = 0
    dropped_texts: int = 0
    refusals: dict[tuple[str, str], int] = field(default_factory=dict)
    _by_id: dict[str, _Candidate] = field(default_factory=dict)
    _parents: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _minibatch: dict[tuple[int, str], tuple[int, float]] = field(default_factory=dict)
    _characters: int = 0

    def rollout(self, iteration: int, candidate_id: str, purpose: str, score: float) -> None:
        """Count one score of a minibatch."""
        if purpose == "parent":
            count, total = self._minibatch.get((iteration, candidate_id), (0, 0.0))
            self._minibatch[iteration, candidate_id] = (count + 1, total + score)
        elif purpose == "child" and candidate_id in self._by_id:
            candidate = self._by_id[candidate_id]
            candidate.scores += 1
            candidate.total += score
            count, total = self._minibatch.get((iteration, candidate.parent_id), (0, 0.0))
            candidate.before = total / count if count else candidate.before

    def proposed(self, event: events.CandidateProposed) -> None:
        """A child has been made."""
        if event.candidate_id in self._by_id:
            return
        texts = {name: cut(text, MAX_TEXT) for name, text in event.texts.items()}
        candidate = _Candidate(event.candidate_id, event.iteration, event.operator, event.parent_id, texts=texts)
        self._by_id[event.candidate_id] = candidate
        self._characters += sum(map(len, texts.values()))
        self._bound()

    def refused(self, event: events.CandidateRefused) -> None:
        """An operator has made no child."""
        key = (one_line(event.operator, 80), one_line(event.reason, 200))
        if key not in self.refusals and len(self.refusals) >= MAX_ROWS:
            key = (key[0], "other reasons")
        self.refusals[key] = self.refusals.get(key, 0) + 1

    def screened(self, event: events.CandidateScreened) -> None:
        """A child has been compared on a few examples."""
        if not event.passed and event.candidate_id in self._by_id:
            self._by_id[event.candidate_id].fate = f"screened out: {one_line(event.reason, 200)}"

    def accepted(self, event: events.CandidateAccepted) -> None:
        """A candidate has joined gepa's pool."""
        self._parents[event.index] = tuple(event.parents)

    def validated(self, event: events.ValidationFinished) -> None:
        """A candidate of the pool has been validated."""
        candidate = self._by_id.get(event.candidate_id)
        if candidate is None or candidate.index not in (None, event.index):
            # gepa's own merge, or a text that is in the pool already: gepa gives it an index of its own.
            operator = "seed" if event.index == 0 else "merge"
            key = event.candidate_id if candidate is None else f"{event.candidate_id}/{event.index}"
            texts = {name: cut(text, MAX_TEXT) for name, text in event.texts.items()}
            candidate = self._by_id[key] = _Candidate(event.candidate_id, event.iteration, operator, texts=texts)
            self._characters += sum(map(len, texts.values()))
        candidate.index = event.index
        candidate.validation = event.score

    def rows(self) -> tuple[CandidateRow, ...]:
        """Return the candidates, oldest first."""
        return tuple(self._row(candidate) for candidate in self._by_id.values())

    def _row(self, one: _Candidate) -> CandidateRow:
        chosen = one.index is not None and one.index == self.chosen
        fate = one.fate or ("in the pool" if one.index is not None else "not kept")
        return CandidateRow(
            candidate_id=one.candidate_id,
            index=one.index,
            iteration=one.iteration,
            parent_id=one.parent_id,
            parents=() if one.index is None else self._parents.get(one.index, ()),
            operator=one_line(one.operator, 80),
            minibatch=one.total / one.scores if one.scores else None,
            parent_minibatch=one.before,
            validation=one.validation,
            fate="chosen" if chosen else fate,
            chosen=chosen,
            texts=one.texts,
        )

    def _bound(self) -> None:
        outside = [key for key, one in self._by_id.items() if one.index is None]
        for key in outside[: max(0, len(outside) - MAX_ROWS)]:
            gone = self._by_id.pop(key)
            self._characters -= sum(map(len, gone.texts.values()))
            self.dropped += 1
        for one in self._by_id.values():
            if self._characters <= TEXT_BUDGET:
                break
            if one.texts:
                self._characters -= sum(map(len, one.texts.values()))
                one.texts = {}
                self.dropped_texts += 1
