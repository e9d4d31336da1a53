"""Loads what a run has learned from its journal: candidates, programs and skills."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dspy

from combee_dspy.artifacts import Artifact, Instruction, Playbook
from combee_dspy.costs import serving
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError, JournalDamagedError
from combee_dspy.journal import Reader, RunHistory, journal_file
from combee_dspy.lessons import Book, State
from combee_dspy.operators import visible
from combee_dspy.registry import Spec
from combee_dspy.skills import SkillFolder
from combee_dspy.tracking._candidates import (
    CandidateRow,
    candidate_named,
    chosen_of,
    read_candidates,
)
from combee_dspy.tracking._lessons import books_of
from combee_dspy.tracking._queries import run_number

__all__ = ["CandidateRecord", "candidates", "load_candidate", "load_skill"]

_LISTED = 20


@dataclass(frozen=True, slots=True)
class CandidateRecord:
    """One candidate of a run.

    Attributes:
        id: Content hash, 16 hex digits.
        index: Position among the validated ones, else ``None``.
        update: The update that made it; −1 for the student.
        operator: What made it.
        parents: Content hashes.
        score: Mean validation score, else ``None``.
        texts: By component; empty where the run ended before they were kept.
        run: Name of its run in the journal.
    """

    id: str
    index: int | None
    update: int
    operator: str
    parents: tuple[str, ...]
    score: float | None
    texts: Mapping[str, str]
    run: str


def candidates(place: str | os.PathLike[str]) -> tuple[CandidateRecord, ...]:
    """Return every candidate of a journal's runs, with lineage and scores, in the order in which
    they came to be.

    Works while a run goes on, and after it was killed.

    Args:
        place: The run's ``log_dir``, or its journal.

    Raises:
        ArgumentValueError: There is no journal, or it holds no candidates.
        JournalDamagedError: It cannot be read.
    """
    with Reader(journal_file(os.fspath(place)), checked=True) as reader:
        names = {row["id"]: row["name"] for row in reader.rows("SELECT id, name FROM run")}
        rows = [row for row in read_candidates(RunHistory(reader)) if row.operator]
    if not rows:
        remedy = "Give the log_dir of a run that has validated its student."
        raise ArgumentValueError("run", os.fspath(place), "holds no candidates", remedy)
    return tuple(
        CandidateRecord(
            id=row.candidate,
            index=row.index,
            update=row.step,
            operator=row.operator,
            parents=row.parents,
            score=row.score,
            texts=row.texts,
            run=names.get(row.run, ""),
        )
        for row in rows
    )


def load_candidate(
    student: dspy.Module,
    place: str | os.PathLike[str],
    id: int | str,  # noqa: A002 - what users call it
    *,
    run: int | str | None = None,
    artifact: Artifact | None = None,
) -> dspy.Module:
    """Return a program with the texts and demonstrations of one candidate of a run.

    Works for every candidate that was proposed, accepted or not. Texts of a run
    are as trustworthy as its folder: a ``dspy.Flex`` part of a candidate is code.

    Args:
        student: The program that was given to the run. Not changed.
        place: The run's ``log_dir``, or its journal.
        id: ``"best"``, position among the validated candidates, or four characters or more of the
            content hash that ``combee candidates`` shows: as in every command.
        run: The run's name or number, where a journal holds several.
        artifact: The run's own, where it is or holds a strategy that no distribution publishes;
            by default what the journal names.

    Raises:
        ArgumentTypeError: ``student`` is no program, or ``id`` neither a number nor a text.
        ArgumentValueError: There is no such run or candidate, or the candidate is another
            program's, or ``artifact`` is not the run's.
        UnknownStrategyError: The artifact is or holds what no distribution publishes.
    """
    program: object = student
    if not isinstance(program, dspy.Module):
        remedy = "Give the program that was given to the run."
        raise ArgumentTypeError("student", program, "is no DSPy program", remedy)
    if isinstance(id, bool) or not isinstance(id, (int, str)):
        remedy = "Give 'best', an index, or a content hash."
        raise ArgumentTypeError("id", id, "is no candidate", remedy)
    with Reader(journal_file(os.fspath(place)), checked=True) as reader:
        number = None if run is None else run_number(reader, run)
        row = _find_candidate(RunHistory(reader, number), id)
        spec = RunHistory(reader, row.run).about.spec("artifact")
    if "name" not in spec:
        reason = "the run's description names no artifact"
        raise JournalDamagedError(os.fspath(place), reason)
    artifact = _build_artifact(spec, artifact)
    wanted, own = set(visible(row.texts)), set(artifact.components(student))
    if wanted != own:
        problem = f"has components {sorted(own)}, the candidate {sorted(wanted)}"
        remedy = "Give the program of that run."
        raise ArgumentValueError("student", type(student).__name__, problem, remedy)
    return serving(artifact.build(student, row.texts))


def _find_candidate(history: RunHistory, id: int | str) -> CandidateRow:  # noqa: A002 - as above
    rows = [row for row in read_candidates(history) if row.operator]
    row = candidate_named(rows, id)
    if row is None:
        names = [row.candidate if row.index is None else str(row.index) for row in rows[:_LISTED]]
        remedy = f"There is: {', '.join(['best', *names])}."
        raise ArgumentValueError("id", id, "names no candidate of this run", remedy)
    return row


def load_skill(
    place: str | os.PathLike[str],
    *,
    predictor: str = "",
    run: int | str | None = None,
    artifact: Artifact | None = None,
) -> SkillFolder:
    """Return what a run has learned about a predictor, as a skill that can be written.

    It begins with what the chosen candidate shows. Of recorded rollouts alone
    (:func:`~combee_dspy.learn_lessons`) it has the book and no instruction.

    Args:
        place: The run's ``log_dir``, or its journal.
        predictor: The component, where the program has several.
        run: The run's name or number, where a journal holds several.
        artifact: The run's own, as for :func:`load_candidate`.

    Raises:
        ArgumentValueError: There is no such run, it has learned nothing yet, ``predictor`` names
            none of its components, or ``artifact`` is not the run's.
        JournalDamagedError: It cannot be read.
        UnknownStrategyError: The artifact is or holds what no distribution publishes.
    """
    with Reader(journal_file(os.fspath(place)), checked=True) as reader:
        number = run_number(reader, run)
        history = RunHistory(reader, number)
        books, spec = books_of(history), history.about.spec("artifact")
        chosen = chosen_of(read_candidates(history))
    if not books:
        remedy = "Give the log_dir of a run that has learned something."
        raise ArgumentValueError("run", os.fspath(place), "holds no book of lessons", remedy)
    name = predictor or (next(iter(books)) if len(books) == 1 else "")
    if name not in books:
        remedy = f"Name one of {', '.join(sorted(books))}."
        raise ArgumentValueError("predictor", predictor, "is none of the run's books", remedy)
    artifact = _build_artifact(spec, artifact) if spec else Instruction()
    return _to_skill(books[name], artifact, chosen.texts.get(name, "") if chosen else "")


def _to_skill(book: Book, artifact: Artifact, text: str) -> SkillFolder:
    """Return a book as a skill that begins with the lessons of a text, and with its other lines."""
    lines = artifact.read(text)
    homes = [(line, book.find(line.id)) for line in lines.lessons]
    first = frozenset(home.id for line, home in homes if home is not None and line.own)
    book = Book((*book.lessons, *(line for line, home in homes if home is None)))
    if isinstance(artifact, Playbook):  # its other lines are headings
        return SkillFolder(book, "", first=first)
    gone: tuple[State, str] = ("retired", "")
    bare = artifact.serve(text, lines.with_states({line.id: gone for line in lines.lessons}))
    return SkillFolder(book, bare, first=first)


def _build_artifact(spec: Mapping[str, Any], artifact: Artifact | None) -> Artifact:
    """Return a run's artifact: the user's object, where it is the same, or one built by name."""
    if artifact is None:
        return artifact_of(spec)
    if Spec.of(artifact).to_dict() != spec:
        remedy = f"Give what the run was given: {spec!r:.300}."
        raise ArgumentValueError("artifact", artifact, "is another than the run's", remedy)
    return artifact


def artifact_of(spec: Mapping[str, Any]) -> Artifact:
    """Return what puts a candidate's texts into a program, from its spec as plain data."""
    if spec["name"] == Instruction.name:
        # Its operators decided what is hidden. To show a candidate they are not needed.
        return Instruction()
    return Spec.from_dict(spec).build()  # type: ignore[return-value]  # by kind
