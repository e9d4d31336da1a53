"""Who descends from whom: a run's lines, joined into one record a candidate. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from combee_dspy.engine.candidates import candidate_id

__all__ = ["CandidateRecord", "joined", "with_checkpoint"]


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    """One candidate of a run, or one attempt at one that was refused.

    Attributes:
        id: Content hash, 16 hex digits; empty for a refused attempt, of which no text was kept.
        status: ``"seed"``, ``"accepted"`` (in gepa's pool), ``"rejected"`` (by gepa, after its
            minibatch), ``"refused"`` (before any rollout), ``"proposed"`` (the run ended before it
            was judged) or ``"superseded"`` (accepted after the last checkpoint of a killed run,
            whose resumption went another way).
        index: Its index in gepa's pool, where it has one.
        parents: Content hashes of its parents.
        operator: Who made it; ``"merge"`` for gepa's merge, empty for the seed and where it is not known.
        iteration: The iteration, from 1; 0 for the seed.
        score: Mean validation score, where it was validated.
        minibatch_score: Its sum of scores on the minibatch, where it is known.
        parent_score: The parent's on the same minibatch, where it is known.
        best: Whether the run chose it, or held it for the best on validation when it ended.
        reason: Why it was refused or rejected.
        texts: Text by component, empty where it is not known in full.
    """

    id: str
    status: str
    index: int | None = None
    parents: tuple[str, ...] = ()
    operator: str = ""
    iteration: int = 0
    score: float | None = None
    minibatch_score: float | None = None
    parent_score: float | None = None
    best: bool = False
    reason: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)


def joined(lines: Iterable[Mapping[str, Any]]) -> tuple[CandidateRecord, ...]:
    """Return the candidates that lines of a run tell of, in the order in which they came to be.

    Args:
        lines: From :func:`combee_dspy.engine.lineage.read_lines`. One that does not hold what it should is passed over.
    """
    pedigree = _Pedigree()
    for line in lines:
        tell = getattr(pedigree, f"on_{line.get('event')}", None)
        if tell is None:
            continue
        try:
            tell(line)
        except (KeyError, TypeError, ValueError):
            continue
    return pedigree.records()


def with_checkpoint(records: Sequence[CandidateRecord], state: Mapping[str, Any]) -> tuple[CandidateRecord, ...]:
    """Add the candidates of gepa's pool that the records lack.

    Args:
        records: From :func:`joined`.
        state: gepa's state, as plain data.
    """
    known = {record.id for record in records}
    taken = {record.index for record in records}
    pool = [_texts(candidate) for candidate in state.get("program_candidates") or ()]
    parents = list(state.get("parent_program_for_candidate") or ())
    scores = list(state.get("prog_candidate_val_subscores") or ())
    found = []
    for index, texts in enumerate(pool):
        identity = candidate_id(texts)
        if identity in known or index in taken:
            continue
        known.add(identity)
        above = [one for one in (parents[index] if index < len(parents) else ()) or () if isinstance(one, int)]
        given = list(dict(scores[index]).values()) if index < len(scores) else []
        found.append(
            CandidateRecord(
                identity,
                "accepted" if index else "seed",
                index,
                tuple(candidate_id(pool[one]) for one in above if 0 <= one < len(pool)),
                operator="merge" if len(above) > 1 else "",
                score=sum(given) / len(given) if given else None,
                texts=texts,
            )
        )
    return (*records, *found)


class _Pedigree:
    """What is known of the candidates so far."""

    def __init__(self) -> None:
        self._records: list[CandidateRecord] = []
        self._places: dict[str, int] = {}
        self._pool: dict[int, str] = {}
        self._proposed: list[str] = []
        self._rejected: list[Mapping[str, Any]] = []

    def records(self) -> tuple[CandidateRecord, ...]:
        return tuple(self._records)

    def on_started(self, line: Mapping[str, Any]) -> None:
        self._proposed, self._rejected = [], []
        texts = _checked(line)
        if line["id"] not in self._places:
            self._add(CandidateRecord(line["id"], "seed", texts=texts))

    def on_proposed(self, line: Mapping[str, Any]) -> None:
        identity, parent = str(line["id"]), str(line["parent"])
        self._proposed.append(identity)
        if identity in self._places:
            return
        above = self._records[self._places[parent]].texts if parent in self._places else {}
        texts = {**above, **_texts(line["texts"])}
        whole = texts if candidate_id(texts) == identity else {}
        operator, iteration = str(line["operator"]), int(line["iteration"])
        self._add(
            CandidateRecord(
                identity, "proposed", parents=(parent,), operator=operator, iteration=iteration, texts=whole
            )
        )

    def on_refused(self, line: Mapping[str, Any]) -> None:
        self._records.append(
            CandidateRecord(
                "",
                "refused",
                parents=(str(line["parent"]),),
                operator=str(line["operator"]),
                iteration=int(line["iteration"]),
                reason=str(line["reason"]),
            )
        )

    def on_screened(self, line: Mapping[str, Any]) -> None:
        if not line["passed"]:
            self._change(str(line["id"]), reason=str(line["reason"]))

    def on_rejected(self, line: Mapping[str, Any]) -> None:
        self._rejected.append(line)

    def on_validated(self, line: Mapping[str, Any]) -> None:
        identity, index, texts = str(line["id"]), int(line["index"]), _checked(line)
        before = self._pool.get(index)
        if before not in (None, identity):
            self._change(str(before), index=None, status="superseded")
        if identity not in self._places:
            self._add(CandidateRecord(identity, "accepted", iteration=int(line["iteration"])))
        if identity in self._proposed:
            self._proposed.remove(identity)
        self._pool[index] = identity
        status = "accepted" if index else "seed"
        self._change(identity, index=index, status=status, score=_number(line["score"]), texts=texts, reason="")
        if line["best"]:
            self._choose(identity)

    def on_accepted(self, line: Mapping[str, Any]) -> None:
        identity = self._pool[int(line["index"])]
        parents = tuple(self._pool[int(parent)] for parent in line["parents"])
        record = self._records[self._places[identity]]
        operator = record.operator or ("merge" if len(parents) > 1 else "")
        self._change(identity, parents=parents, operator=operator, minibatch_score=_number(line["score"]))

    def on_iteration(self, line: Mapping[str, Any]) -> None:
        # gepa does not say whom it rejects, but goes through them in the order in which they were proposed.
        if len(self._proposed) == len(self._rejected):
            for identity, rejected in zip(self._proposed, self._rejected, strict=True):
                if self._records[self._places[identity]].status == "proposed":
                    self._change(
                        identity,
                        status="rejected",
                        reason=str(rejected["reason"]),
                        minibatch_score=_number(rejected["score"]),
                        parent_score=_number(rejected["parent_score"]),
                    )
        self._proposed, self._rejected = [], []

    def on_finished(self, line: Mapping[str, Any]) -> None:
        self._choose(self._pool[int(line["index"])])

    def _add(self, record: CandidateRecord) -> None:
        self._places[record.id] = len(self._records)
        self._records.append(record)

    def _change(self, identity: str, **changes: Any) -> None:
        place = self._places[identity]
        self._records[place] = replace(self._records[place], **changes)

    def _choose(self, identity: str) -> None:
        for other, place in self._places.items():
            if self._records[place].best != (other == identity):
                self._change(other, best=other == identity)


def _checked(line: Mapping[str, Any]) -> dict[str, str]:
    texts = _texts(line["texts"])
    if candidate_id(texts) != line["id"]:
        raise ValueError("these are not the texts of this candidate")
    return texts


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(part, str) for pair in value.items() for part in pair):
        raise ValueError("a candidate is text by component")
    return dict(value)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError("a score is a finite number")
    return float(value)
