"""What gives way when something more urgent arrives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from combee_dspy.rollouts.scheduling._job import Job

__all__ = ["Preemption", "to_recall"]

Preemption = Literal["drain", "drop", "rollback"]
"""See :class:`combee_dspy.rollouts.scheduling.Scheduling`."""


def to_recall(flying: Iterable[Job], lane: str, ranks: Mapping[str, int]) -> list[Job]:
    """Return the tasks in flight that give way to one of this lane, in the order in which to try.

    The least urgent comes first, and within a lane the latest: it has done the least.

    Args:
        flying: Tasks in flight, in the order of their dispatch.
        lane: The lane of the task that has arrived.
        ranks: Place of each lane, 0 for the most urgent.
    """
    own = ranks[lane]
    less = [
        job
        for job in flying
        if ranks[job.place.lane] > own and job.inner is not None and not (job.recalled or job.gone)
    ]
    less.reverse()
    less.sort(key=lambda job: -ranks[job.place.lane])
    return less
