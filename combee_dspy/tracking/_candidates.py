"""The candidates of a journal: their texts, their parents, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from combee_dspy.events import (
    CandidateProposed,
    CandidateScreened,
    CandidateSelected,
    CandidateValidated,
)
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.journal import RunHistory

_KINDS: tuple[
    type[CandidateProposed | CandidateScreened | CandidateValidated | CandidateSelected], ...
] = (CandidateProposed, CandidateScreened, CandidateValidated, CandidateSelected)
_ENDS = (
    "SELECT run, candidate, max(ended) FROM effect WHERE (?1 IS NULL OR run = ?1)"
    " AND kind = 'rollout' AND purpose = 'validation' GROUP BY 1, 2"
)
_SHORTEST = 4
_LISTED = 20


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """One candidate. Its fields are the columns of ``combee candidates --json``.

    Attributes:
        run: The run's number.
        candidate: Its content hash.
        index: Its position among the validated ones; 0 is the student, ``None`` not validated.
        step: The update that made it; −1 for the student.
        operator: What made it; empty where the run ended before that was written.
        parents: Content hashes of its parents.
        components: The components that differ from the first parent.
        score: Its mean score on validation; ``None`` without one.
        rows: Validation rows that were scored.
        validated_at: Unix time at which its last validation rollout ended.
        screened: How it did on rows of its minibatch.
        selected: Why the run returned it; empty for all others.
        texts: Its texts by component.
    """

    run: int
    candidate: str
    index: int | None = None
    step: int = -1
    operator: str = ""
    parents: tuple[str, ...] = ()
    components: tuple[str, ...] = ()
    score: float | None = None
    rows: int = 0
    validated_at: float | None = None
    screened: CandidateScreened | None = None
    selected: str = ""
    texts: dict[str, str] = field(default_factory=dict)


def read_candidates(history: RunHistory) -> list[CandidateRow]:
    """Return the candidates of one run, or of all, run by run in the order in which they were made.

    Raises:
        JournalDamagedError: An event cannot be read.
    """
    # The event comes in the order of updates, often long after the last row was scored.
    ended = history.reader.rows(_ENDS, (history.run,))
    ends = {(run, candidate): at for run, candidate, at in ended}
    rows: dict[tuple[int, str], CandidateRow] = {}
    # A run that went on with a larger budget has chosen again: the last choice counts.
    choices: dict[int, CandidateSelected] = {}
    for entry in history.entries(*_KINDS):
        event, place = entry.event, (entry.run, entry.event.candidate)
        row = rows.get(place) or CandidateRow(*place, step=entry.step)
        match event:
            case CandidateProposed() if not row.texts:
                row = replace(
                    row,
                    operator=event.operator,
                    parents=event.parents,
                    components=event.components,
                    texts=dict(event.texts),
                )
            case CandidateScreened():
                row = replace(row, screened=event)
            case CandidateValidated(index=index, score=score, rows=scored):
                at = ends.get(place) or entry.at
                row = replace(row, index=index, score=score, rows=scored, validated_at=at)
            case CandidateSelected():
                choices[entry.run] = event
        rows[place] = row
    for number, choice in choices.items():
        place = number, choice.candidate
        rows[place] = replace(rows[place], selected=choice.reason)
    return sorted(rows.values(), key=lambda row: row.run)


def stand_ins(candidates: Sequence[CandidateRow], candidate: CandidateRow) -> tuple[str, ...]:
    """Return a candidate, then those whose rollouts stand for its own where it has none: a test of
    lines runs the rows alone that read something else, and keeps the others'.
    """
    rows, names = {row.candidate: row for row in candidates}, [candidate.candidate]
    while (row := rows.get(names[-1])) and row.operator == "test" and row.parents[0] not in names:
        names.append(row.parents[0])
    return tuple(names)


def chosen_of(candidates: Sequence[CandidateRow]) -> CandidateRow | None:
    """Return the candidate that a run chose, else the best so far, else the student.

    ``None`` where there is no candidate.
    """
    selected = [row for row in candidates if row.selected]
    scored = sorted(
        (row for row in candidates if row.score is not None), key=lambda row: row.score or 0.0
    )
    best = selected or scored or candidates[:1]
    return best[-1] if best else None


def lineage_of(chosen: CandidateRow, candidates: Sequence[CandidateRow]) -> list[CandidateRow]:
    """Return a candidate and its ancestors, parents before children."""
    names = {chosen.candidate}
    for row in reversed(candidates):
        if row.candidate in names:
            names.update(row.parents)
    return [row for row in candidates if row.candidate in names]


def gains_of(candidates: Sequence[CandidateRow]) -> dict[str, float]:
    """Return by candidate what validation gained over its best parent, where both have a score."""
    scores = {row.candidate: row.score for row in candidates if row.score is not None}
    gains = {}
    for row in candidates:
        before = [scores[parent] for parent in row.parents if parent in scores]
        if row.score is not None and before:
            gains[row.candidate] = row.score - max(before)
    return gains


def candidate_named(candidates: Sequence[CandidateRow], wanted: str | int) -> CandidateRow | None:
    """Return the candidate that a name stands for, by the rules of every command.

    Args:
        candidates: Of one run, or of several.
        wanted: ``"best"`` for the one that was chosen, or the best so far; its index, the position
            among the validated ones; or the first four characters or more of its content hash.

    Returns:
        ``None`` where there is none.

    Raises:
        ArgumentValueError: Several have that name.
    """
    name = str(wanted)
    if name == "best":
        scored = [row for row in candidates if row.score is not None]
        runs = dict.fromkeys(row.run for row in scored or candidates)
        choices = (chosen_of([row for row in candidates if row.run == run]) for run in runs)
        matches = [row for row in choices if row is not None]
    else:
        matches = [row for row in candidates if name.isdecimal() and row.index == int(name)]
        if not matches and len(name) >= _SHORTEST:
            matches = [row for row in candidates if row.candidate.startswith(name)]
    if len(matches) > 1:
        names = [f"{row.candidate} of run {row.run}" for row in matches[:_LISTED]]
        remedy = f"Say of which run, or more of it: {', '.join(names)}."
        raise ArgumentValueError("id", wanted, "names several candidates", remedy)
    return matches[0] if matches else None
