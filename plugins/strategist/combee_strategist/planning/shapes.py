"""Which rollouts run side by side, and how many workers there are: what utilisation decides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Literal

from combee_dspy.events import CandidateProposed, ChildRefused
from combee_dspy.journal import Reader, RunHistory, journal_file
from combee_dspy.tracking import run_number
from combee_strategist.diagnosis import Curve

__all__ = ["HALF", "Growth", "Shape", "choose_shape", "count_in_flight", "grow_workers", "spans_of"]

HALF = 0.5
"""Utilisation of the slots below which several searches share them, and workers do not grow."""

_NEAR_COPIES = 0.2  # share of children: above, more workers would propose the same again

_NEAR_COPY = ("similarity ", "it repeats a candidate")  # how such refusals begin

ShapeName = Literal["candidate-parallel", "task-parallel", "hybrid"]


@dataclass(frozen=True, slots=True)
class Shape:
    """What runs side by side.

    Attributes:
        name: ``"candidate-parallel"``: the rollouts of one search. ``"hybrid"``: those of several
            searches, each of which runs many. ``"task-parallel"``: all searches at once, where all
            of them together leave slots free.
        at_once: Searches at a time, as ``compile_many(at_once=…)`` takes it.
        reason: Why, with its figures.
        rejected: The other shapes, each with why.
    """

    name: ShapeName
    at_once: int
    reason: str
    rejected: tuple[str, ...]


def choose_shape(utilisation: float, tasks: int) -> Shape:
    """Return the shape for a service that one search fills to this share.

    Below half, other searches take the idle slots, where there are any.

    Args:
        utilisation: Share of the slots that one search keeps busy, from 0 to 1.
        tasks: Similar programs to be learned over the service.
    """
    busy = f"one search keeps {utilisation:.0%} of the slots busy"
    if tasks == 1:
        rejected = "task-parallel and hybrid: lessons of two searches of one task do not add up"
        return Shape("candidate-parallel", 1, f"there is one task; {busy}", (rejected,))
    if utilisation >= HALF:
        reason = f"{busy}, {HALF:.0%} or more: {tasks} tasks go one after the other"
        rejected = "hybrid and task-parallel: two searches would wait for each other's slots"
        return Shape("candidate-parallel", 1, reason, (rejected,))
    room = max(2, int(1 / max(utilisation, 1e-9)))
    if room >= tasks:
        reason = f"{busy}, so all {tasks} tasks fit beside each other"
        return Shape(
            "task-parallel", tasks, reason, ("candidate-parallel: most slots would be idle",)
        )
    reason = f"{busy}, below {HALF:.0%}: {room} of {tasks} tasks fit at a time"
    rejected_two = (
        "candidate-parallel: most slots would be idle",
        "task-parallel: all tasks at once need more slots than there are",
    )
    return Shape("hybrid", room, reason, rejected_two)


@dataclass(frozen=True, slots=True)
class Growth:
    """How many workers the next wide search has.

    Attributes:
        workers: Their number.
        reasons: What was looked at, each with its figure.
    """

    workers: int
    reasons: tuple[str, ...]


def grow_workers(place: Path | str, workers: int, slots: int) -> Growth:
    """Return how many workers a wide search may have after one with ``workers``.

    Twice as many, and no more than the slots, where three things hold in its journal: rollouts
    filled the workers (half of them or more were busy while any ran), at most a fifth of the
    children were near copies, and the best validation score rose in the second half. Else as many
    as before.

    Args:
        place: The ``log_dir`` of the wide search, or its journal.
        workers: Rollouts that it might have in flight.
        slots: Calls that the service answers at once.

    Raises:
        ArgumentValueError: There is no journal, or it validated too little.
    """
    curve = Curve.of_run(place)
    with Reader(journal_file(place)) as reader:
        history = RunHistory(reader, run_number(reader, None))
        children = sum(bool(entry.event.parents) for entry in history.entries(CandidateProposed))
        reasons_refused = [entry.event.reason for entry in history.entries(ChildRefused)]
    copies = sum(reason.startswith(_NEAR_COPY) for reason in reasons_refused)
    _, covered, busy = curve.seconds or (0.0, 0.0, 0.0)
    filled = busy / covered / workers if covered else 0.0
    share = copies / (children + copies) if children + copies else 0.0
    rise = curve.late_rise()
    holds = (filled >= HALF, share <= _NEAR_COPIES, rise > 0)
    reasons = (
        f"rollouts kept {filled:.0%} of {workers} workers busy ({HALF:.0%} at least)",
        f"{share:.0%} of the children were near copies ({_NEAR_COPIES:.0%} at most)",
        f"the best validation score rose by {100 * rise:.1f} points in the second half",
    )
    return Growth(max(workers, min(2 * workers, slots)) if all(holds) else workers, reasons)


_SPANS = (
    "SELECT started, ended FROM effect"
    " WHERE run = ? AND kind = 'rollout' AND purpose <> 'heldout' ORDER BY id"
)


def spans_of(reader: Reader, run: int) -> list[tuple[float, float]]:
    """Return when each rollout of a search began and ended, in seconds."""
    return [(row[0], row[1]) for row in reader.rows(_SPANS, (run,))]


def count_in_flight(spans: Iterable[tuple[float, float]]) -> int:
    """Return how many of some spans (start, end) were under way at once, at most."""
    # An end at the moment of a start comes before it.
    moves = sorted(move for start, end in spans for move in ((start, 1), (end, -1)))
    return max(accumulate(step for _, step in moves), default=0)
