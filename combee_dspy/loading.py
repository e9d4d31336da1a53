"""Candidates of a run, from its journal: after a crash too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dspy
import orjson

from combee_dspy.artifacts import Artifact, Instruction
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.journal import Reader, journal_file
from combee_dspy.operators import visible
from combee_dspy.registry import Spec

__all__ = ["CandidateRecord", "candidates", "load_candidate"]

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
    """Return every candidate of a journal's runs, with lineage and scores, in the order in which they came to be.

    Works while a run goes on, and after it was killed.

    Args:
        place: The run's ``log_dir``, or its journal.

    Raises:
        ArgumentValueError: There is no journal, or it holds no candidates.
        JournalDamagedError: It cannot be read.
    """
    with Reader(journal_file(os.fspath(place))) as reader:
        made = reader.rows("SELECT run, name, step, data FROM event JOIN run ON run.id = run"
                           " WHERE kind = 'candidate' ORDER BY event.id")  # fmt: skip
        judged = reader.rows("SELECT run, data FROM event WHERE kind = 'validated' ORDER BY id")
    verdicts = {(row["run"], data["candidate"]): data for row in judged for data in (orjson.loads(row["data"]),)}
    found: dict[tuple[int, str], CandidateRecord] = {}
    for row in made:
        data = orjson.loads(row["data"])
        key = row["run"], data["candidate"]
        judgement = verdicts.get(key, {})
        record = CandidateRecord(
            data["candidate"], judgement.get("index"), row["step"], data["operator"], tuple(data["parents"]),
            judgement.get("score"), data["texts"], row["name"],
        )  # fmt: skip
        found.setdefault(key, record)
    if not found:
        remedy = "Give the log_dir of a run that has validated its student."
        raise ArgumentValueError("run", os.fspath(place), "holds no candidates", remedy)
    return tuple(found.values())


def load_candidate(
    student: dspy.Module,
    place: str | os.PathLike[str],
    id: int | str,  # noqa: A002 - what users call it
    *,
    run: str | None = None,
) -> dspy.Module:
    """Return a program with the texts and demonstrations of one candidate of a run.

    Works for every candidate that was proposed, accepted or not. Texts of a run
    are as trustworthy as its folder: a ``dspy.Flex`` part of a candidate is code.

    Args:
        student: The program that was given to the run. Not changed.
        place: The run's ``log_dir``, or its journal.
        id: Position among the validated candidates, or the content hash that ``combee candidates`` shows, or its
            beginning.
        run: The run's name, where a journal holds several.

    Raises:
        ArgumentTypeError: ``student`` is no program, or ``id`` neither a number nor a text.
        ArgumentValueError: There is no such run or candidate, or the candidate is another program's.
    """
    given: object = student
    if not isinstance(given, dspy.Module):
        raise ArgumentTypeError("student", given, "is no DSPy program", "Give the program that was given to the run.")
    record = _chosen(tuple(one for one in candidates(place) if run in (None, one.run)), id)
    artifact = _artifact(place, record.run)
    wanted, own = set(visible(record.texts)), set(artifact.components(student))
    if wanted != own:
        problem = f"has components {sorted(own)}, the candidate {sorted(wanted)}"
        raise ArgumentValueError("student", type(student).__name__, problem, "Give the program of that run.")
    return artifact.build(student, record.texts)


def _artifact(place: str | os.PathLike[str], run: str) -> Artifact:
    with Reader(journal_file(os.fspath(place))) as reader:
        row = reader.rows("SELECT description FROM run WHERE name = ? ORDER BY id DESC LIMIT 1", (run,))[0]
    spec = orjson.loads(row["description"])["specs"]["artifact"]
    if spec["name"] == Instruction.name:
        # Which operators there were decided what is hidden; to show a candidate they are not needed.
        return Instruction()
    return Spec.from_dict(spec).build()  # type: ignore[return-value]  # by kind


def _chosen(records: tuple[CandidateRecord, ...], wanted: Any) -> CandidateRecord:
    if isinstance(wanted, bool) or not isinstance(wanted, (int, str)):
        raise ArgumentTypeError("id", wanted, "is no candidate", "Give an index, or a content hash.")
    number = int(wanted) if isinstance(wanted, int) or wanted.isdecimal() else None
    found = [record for record in records if number is not None and record.index == number]
    if not found and isinstance(wanted, str):
        found = [record for record in records if wanted and record.id.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    several = len({record.run for record in records}) > 1
    names = [one.id if one.index is None else f"{one.index} ({one.id})" for one in records]
    listed = [f"{name} of run {one.run!r}" if several else name for name, one in zip(names, records, strict=True)]
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    problem = "names several candidates" if found else "names no candidate of this run"
    raise ArgumentValueError("id", wanted, problem, f"There is: {', '.join(listed[:_LISTED])}{more}.")
