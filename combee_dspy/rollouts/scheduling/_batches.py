"""One lane's tasks in an order that suits the server, and fair all the same."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import Any

from combee_dspy.rollouts.scheduling._job import Job

__all__ = ["ComposedLane"]

_Group = OrderedDict[int, Job]


class ComposedLane:
    """The waiting tasks of one lane. Not thread-safe.

    Tasks come out first in, first out, except that those with the prefix and
    the length class of the last one come first, then those with its prefix.
    An exception overtakes older tasks only within the window: a task is never
    overtaken by one that came ``window`` or more places after it, so it
    is overtaken fewer than ``window`` times. Every operation takes
    constant time, whatever the number of tasks.

    Args:
        window: How many places, from the oldest task on, may be looked at; 1 for strict order.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._ranks = 0
        self._all: _Group = OrderedDict()
        self._groups: dict[Any, _Group] = {}
        self._last: tuple[str, int] | None = None
        # What was taken back from the inner session is older than all that waits, and goes first.
        self._back: list[int] = []
        self._returned: dict[int, Job] = {}

    def __len__(self) -> int:
        return len(self._all) + len(self._returned)

    def push(self, job: Job) -> None:
        """Add a task at the end."""
        self._ranks += 1
        job.rank = self._ranks
        self._all[job.rank] = job
        prefix = job.place.prefix
        for name in (prefix, (prefix, job.bucket)):
            group = self._groups.get(name)
            if group is None:
                group = self._groups[name] = OrderedDict()
            group[job.rank] = job

    def put_back(self, job: Job) -> None:
        """Add a task that had been taken out, at its old place."""
        heapq.heappush(self._back, job.rank)
        self._returned[job.rank] = job

    def peek(self) -> Job:
        """Return the next task.

        Raises:
            IndexError: There is none.
        """
        while self._back:
            returned = self._returned.get(self._back[0])
            if returned is not None:
                return returned
            heapq.heappop(self._back)
        if not self._all:
            raise IndexError("the lane is empty")
        oldest = next(iter(self._all.values()))
        if self._last is not None:
            for name in (self._last, self._last[0]):
                group = self._groups.get(name)
                if group:
                    job = next(iter(group.values()))
                    if job.rank < oldest.rank + self._window:
                        return job
        return oldest

    def take(self, job: Job) -> None:
        """Take out the task that :meth:`peek` returned."""
        self._last = (job.place.prefix, job.bucket)
        self.discard(job)

    def discard(self, job: Job) -> bool:
        """Take a task out, wherever it stands; return whether it was there."""
        rank = job.rank
        if self._returned.pop(rank, None) is not None:
            return True
        if self._all.pop(rank, None) is None:
            return False
        prefix = job.place.prefix
        for name in (prefix, (prefix, job.bucket)):
            group = self._groups[name]
            del group[rank]
            if not group:
                del self._groups[name]
        return True
