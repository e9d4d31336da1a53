"""Several runs on one scheduler: who of them is served next."""

from __future__ import annotations

from collections.abc import Iterable

from combee_dspy.rollouts.scheduling._batches import ComposedLane
from combee_dspy.rollouts.scheduling._job import Job

__all__ = ["SharedLane", "Tenants"]


class Tenants:
    """Who has how many tasks in flight. Not thread-safe.

    Attributes:
        parts: Equal parts of the slots, of which a tenant gets one at most; 0 lets each take what is free.
    """

    def __init__(self) -> None:
        self.parts = 0
        self._flying: dict[str, int] = {}
        self._served: dict[str, int] = {}
        self._clock = 0

    def taken(self, job: Job) -> None:
        """Hear that a task goes to the inner session."""
        tenant = job.place.tenant
        self._clock += 1
        self._served[tenant] = self._clock
        self._flying[tenant] = self._flying.get(tenant, 0) + 1

    def ended(self, job: Job) -> None:
        """Hear that a task that was taken is no longer in flight."""
        tenant = job.place.tenant
        left = self._flying[tenant] - 1
        if left:
            self._flying[tenant] = left
        else:
            del self._flying[tenant]

    def next_of(self, tenants: Iterable[str], slots: int) -> str | None:
        """Return who is served next: the one with the fewest in flight, of equals the one served longest ago.

        Args:
            tenants: Who has tasks that wait.
            slots: Slots there are, busy or not.

        Returns:
            The tenant; ``None`` where each has its part already.
        """
        most = max(1, slots // self.parts) if self.parts else slots
        open_ones = [tenant for tenant in tenants if not self.parts or self._flying.get(tenant, 0) < most]
        return min(open_ones, key=self._turn, default=None)

    def _turn(self, tenant: str) -> tuple[int, int]:
        return self._flying.get(tenant, 0), self._served.get(tenant, 0)


class SharedLane:
    """The waiting tasks of one lane, by whose they are; each tenant's in the order of a :class:`ComposedLane`.

    With one tenant it is that lane. Not thread-safe.

    Args:
        window: See :class:`ComposedLane`.
        tenants: Shared by all lanes of a queue.
    """

    def __init__(self, window: int, tenants: Tenants) -> None:
        self._window = window
        self._tenants = tenants
        self._own: dict[str, ComposedLane] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def _lane_of(self, job: Job) -> ComposedLane:
        tenant = job.place.tenant
        lane = self._own.get(tenant)
        if lane is None:
            lane = self._own[tenant] = ComposedLane(self._window)
        return lane

    def push(self, job: Job) -> None:
        """Add a task at the end."""
        self._lane_of(job).push(job)
        self._size += 1

    def put_back(self, job: Job) -> None:
        """Add a task that had been taken out, at its old place."""
        self._lane_of(job).put_back(job)
        self._size += 1

    def peek(self, slots: int) -> Job | None:
        """Return the next task; ``None`` where nobody who waits may have more in flight."""
        if len(self._own) == 1 and not self._tenants.parts:
            return next(iter(self._own.values())).peek() if self._size else None
        tenant = self._tenants.next_of((name for name, lane in self._own.items() if len(lane)), slots)
        return None if tenant is None else self._own[tenant].peek()

    def take(self, job: Job) -> None:
        """Take out the task that :meth:`peek` returned."""
        self._lane_of(job).take(job)
        self._size -= 1

    def discard(self, job: Job) -> bool:
        """Take a task out, wherever it stands; return whether it was there."""
        found = self._lane_of(job).discard(job)
        self._size -= found
        return found
