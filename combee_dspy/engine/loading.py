"""Candidates of a run that has ended, however it ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dspy

from combee_dspy.engine._private import flex_sources
from combee_dspy.engine.adapter import CombeeAdapter
from combee_dspy.engine.candidates import visible
from combee_dspy.engine.checkpoint import read_checkpoint
from combee_dspy.engine.lineage import FILE, read_lines
from combee_dspy.engine.pedigree import CandidateRecord, joined, with_checkpoint
from combee_dspy.engine.state import RunState
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError

__all__ = ["CandidateRecord", "candidates", "load_candidate"]

_LISTED = 20


def candidates(run: str | os.PathLike[str], *, trusted: frozenset[str] = frozenset()) -> tuple[CandidateRecord, ...]:
    """Return every candidate of a run, with lineage and scores, in the order in which they came to be.

    Reads ``candidates.jsonl``, and gepa's checkpoint for what it lacks, such
    as a run of ``dspy.GEPA``. Works while the run goes on, and after it was
    killed.

    Args:
        run: The run's ``log_dir``.
        trusted: Top-level packages whose classes the checkpoint may hold, besides those of DSPy and gepa.

    Raises:
        ArgumentValueError: There is no such run, or its checkpoint is not safe to read.
    """
    folder = Path(run)
    found = joined(read_lines(folder))
    state = read_checkpoint(folder, trusted) if not found or trusted else _checkpoint_if_safe(folder)
    try:
        found = with_checkpoint(found, state)
    except (TypeError, ValueError, IndexError) as error:
        problem, remedy = f"holds a checkpoint that is none of gepa's: {error}", "Give the log_dir of a run."
        raise ArgumentValueError("run", str(folder), problem, remedy) from error
    if not found:
        remedy = f"Give the log_dir of a run: it holds {FILE} or gepa_state.bin."
        raise ArgumentValueError("run", str(folder), "holds no candidates", remedy)
    return found


def load_candidate(student: dspy.Module, run: str | os.PathLike[str], id: int | str) -> dspy.Module:  # noqa: A002 - what users call it
    """Return a program with the texts and demonstrations of one candidate of a run.

    Works for every candidate that was proposed, accepted or not, after a crash
    too. Texts of a run are as trustworthy as its directory: a ``dspy.Flex``
    part of a candidate is code.

    Args:
        student: The program that was given to the run. Not changed.
        run: The run's ``log_dir``.
        id: Index in gepa's pool, or the content hash that ``combee candidates`` shows, or its beginning.

    Raises:
        ArgumentTypeError: ``student`` is no program, or ``id`` neither a number nor a text.
        ArgumentValueError: There is no such run or candidate, or the candidate is another program's.
    """
    given: object = student
    if not isinstance(given, dspy.Module):
        raise ArgumentTypeError("student", given, "is no DSPy program", "Give the program that was given to the run.")
    module = (getattr(type(student), "__module__", "") or "").split(".", 1)[0]
    record = _chosen(candidates(run, trusted=frozenset({module}) - sys.stdlib_module_names), id)
    components = [*(name for name, _ in student.named_predictors()), *flex_sources(student)]
    if set(visible(record.texts)) != set(components):
        problem = f"has components {components}, the candidate {visible(record.texts)}"
        raise ArgumentValueError("student", type(student).__name__, problem, "Give the program of that run.")
    adapter = CombeeAdapter(state=RunState(), student_module=student, metric_fn=_no_metric, feedback_map={})
    return adapter.build_program(dict(record.texts))


def _chosen(records: Sequence[CandidateRecord], wanted: object) -> CandidateRecord:
    if isinstance(wanted, bool) or not isinstance(wanted, (int, str)):
        raise ArgumentTypeError("id", wanted, "is no candidate", "Give an index, or a content hash.")
    named = [record for record in records if record.id]
    if isinstance(wanted, int):
        found = [record for record in named if record.index == wanted]
    else:
        found = [record for record in named if wanted and record.id.startswith(wanted)]
        # Ten digits could be the beginning of a hash; fewer than four are not worth typing for one.
        if wanted.isdecimal() and (not found or len(wanted) < 4):
            found = [record for record in named if record.index == int(wanted)]
    if len(found) == 1 and found[0].texts:
        return found[0]
    listed = [_listing(record) for record in named]
    more = f" and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    remedy = f"There is: {', '.join(listed[:_LISTED])}{more}."
    if not found:
        raise ArgumentValueError("id", wanted, "names no candidate of this run", remedy)
    problem = "names several candidates" if len(found) > 1 else "names a candidate whose texts were not kept in full"
    raise ArgumentValueError("id", wanted, problem, remedy)


def _listing(record: CandidateRecord) -> str:
    return record.id if record.index is None else f"{record.index} ({record.id})"


def _checkpoint_if_safe(folder: Path) -> dict[str, Any]:
    # The lines are enough: a checkpoint that holds a user's own classes is no reason to show nothing.
    try:
        return read_checkpoint(folder)
    except ArgumentValueError:
        return {}


def _no_metric(*_: object) -> float:
    raise RuntimeError("a program that is only loaded is not evaluated")
