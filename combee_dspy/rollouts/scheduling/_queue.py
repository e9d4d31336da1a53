"""All waiting tasks: urgent lanes first, and a share for every lane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from combee_dspy.rollouts.scheduling._job import Job
from combee_dspy.rollouts.scheduling._tenants import SharedLane, Tenants

__all__ = ["LaneQueues", "TaskQueue"]


class TaskQueue(Protocol):
    """Waiting tasks in the order in which they are to go. Not thread-safe."""

    def __len__(self) -> int:
        """Return how many tasks wait."""
        ...

    def push(self, job: Job) -> None:
        """Add a task."""
        ...

    def put_back(self, job: Job) -> None:
        """Add a task that had been taken out."""
        ...

    def take(
        self, room: int, slots: int, *, tokens: int | None = None, bucket: int | None = None, stalled: bool = False
    ) -> list[Job]:
        """Take out the next tasks.

        Args:
            room: How many at most.
            slots: Slots there are, busy or not: what shares are shares of.
            tokens: Tokens of all of them together; with it, all are of one length class. The first may be larger.
            bucket: The length class of a batch that these go on with; with it, the first has to fit too.
            stalled: Whether nothing else will happen unless a task goes now.
        """
        ...

    def ended(self, job: Job) -> None:
        """Hear that a task that was taken out is no longer in flight."""
        ...

    def discard(self, job: Job) -> bool:
        """Take a task out, wherever it stands; return whether it was there."""
        ...


class _Lane:
    __slots__ = ("deficit", "flying", "jobs", "share")

    def __init__(self, share: float, window: int, tenants: Tenants) -> None:
        self.jobs = SharedLane(window, tenants)
        self.share = share
        self.flying = 0
        self.deficit = 0.0


class LaneQueues:
    """Waiting tasks by lane; implements :class:`TaskQueue`.

    The next task is taken from

    1. the most urgent lane with fewer tasks in flight than its share of the slots, rounded down;
    2. else the lane whose share of dispatches, since it began to wait, is a whole
       task behind, where there is one (with few slots every share rounds to none);
    3. else the most urgent lane.

    So a lane that keeps waiting gets its share of the slots as they turn over,
    and with one slot its share of the dispatches, give or take one task a lane
    (after deficit round robin, Shreedhar and Varghese 1995, in units of one task).

    Within a lane, of several tenants the one with the fewest tasks in flight, over all lanes, is
    served next. A tenant that has its part of the slots already is passed over.

    Args:
        order: Lanes, the most urgent first.
        shares: Share of each lane; a lane that is not named has none, and gets what others leave.
        window: See :class:`~combee_dspy.rollouts.scheduling._batches.ComposedLane`.
        tenants: Who has how many tasks in flight; by default nobody shares this queue.
    """

    def __init__(
        self, order: Sequence[str], shares: Mapping[str, float], window: int, tenants: Tenants | None = None
    ) -> None:
        self._tenants = Tenants() if tenants is None else tenants
        self._lanes = {name: _Lane(shares.get(name, 0.0), window, self._tenants) for name in order}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def push(self, job: Job) -> None:
        """Add a task."""
        self._lanes[job.place.lane].jobs.push(job)
        self._size += 1

    def put_back(self, job: Job) -> None:
        """Add a task that had been taken out: it goes before the others of its lane."""
        self._lanes[job.place.lane].jobs.put_back(job)
        self._size += 1

    def take(
        self, room: int, slots: int, *, tokens: int | None = None, bucket: int | None = None, stalled: bool = False
    ) -> list[Job]:
        """Take out the next tasks; see :class:`TaskQueue`."""
        taken: list[Job] = []
        spent = 0
        while len(taken) < room and self._size:
            waiting = [(lane, job) for lane in self._lanes.values() if (job := lane.jobs.peek(slots)) is not None]
            if not waiting:
                break
            lane, job = self._choose(waiting, slots)
            cost = job.place.tokens or 0
            if tokens is not None and bucket is not None and (spent + cost > tokens or job.bucket != bucket):
                break
            bucket = job.bucket
            spent += cost
            lane.jobs.take(job)
            self._size -= 1
            lane.flying += 1
            self._tenants.taken(job)
            for other, _ in waiting:
                other.deficit += other.share
            lane.deficit = max(0.0, lane.deficit - 1.0) if len(lane.jobs) else 0.0
            taken.append(job)
        return taken

    @staticmethod
    def _choose(waiting: Sequence[tuple[_Lane, Job]], slots: int) -> tuple[_Lane, Job]:
        if len(waiting) == 1:
            return waiting[0]
        for lane, job in waiting:
            if lane.flying < int(lane.share * slots):
                return lane, job
        behind = max(waiting, key=lambda one: one[0].deficit)
        return behind if behind[0].deficit >= 1.0 else waiting[0]

    def ended(self, job: Job) -> None:
        """Hear that a task that was taken out is no longer in flight."""
        self._lanes[job.place.lane].flying -= 1
        self._tenants.ended(job)

    def discard(self, job: Job) -> bool:
        """Take a task out, wherever it stands; return whether it was there."""
        lane = self._lanes[job.place.lane]
        found = lane.jobs.discard(job)
        self._size -= found
        if not len(lane.jobs):
            lane.deficit = 0.0
        return found
