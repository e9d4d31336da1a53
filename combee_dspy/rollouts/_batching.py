"""The queue of effects that wait for a slot: by urgency alone, or released in batches."""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from statistics import pvariance
from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from combee_dspy.strategies import parameters

Priority = tuple[int, ...]
"""Smaller goes first; the last number is that of the search."""

_SCORES_NEEDED, _SCORES = 8, 32


@parameters
class Batching:
    """When waiting jobs are released.

    Jobs are released when so many wait, when the oldest has waited so long, or when the latest
    scores are alike: whichever comes first. From then on they go by urgency, as slots become free:
    a service that answers a batch together gets the next one together. By default each job goes as
    soon as a slot is free. A service that takes single requests composes its own batches, and loses
    time whenever a job waits beside an idle slot.
    ``Batching(queue="target", seconds=0.2, variance=0.01)`` is for a service that cannot: it pads a
    batch to its longest job, or takes a fixed time for each batch.

    Args:
        queue: Release when so many jobs wait; ``"target"``: as many as the service takes at once.
        seconds: Release when the oldest job has waited so long; ``None``: however long.
        variance: Release when the population variance of the latest scores is below this: waiting
            for more tells no more. Needs eight scores. ``None``: whatever they are.
        patience: Release after so many seconds with nothing in flight, so that no run hangs.
    """

    queue: Annotated[int, Field(ge=1)] | Literal["target"] = 1
    seconds: Annotated[float, Field(ge=0)] | None = None
    variance: Annotated[float, Field(gt=0)] | None = None
    patience: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0

    def releases(
        self, queued: int, oldest: float, target: int, variance: float | None = None
    ) -> bool:
        """Return whether waiting jobs go now.

        Args:
            queued: Jobs that wait, at least 1.
            oldest: Seconds that the oldest of them has waited.
            target: Jobs that the service takes at once.
            variance: Population variance of the latest scores; ``None`` below eight of them.
        """
        if queued >= (target if self.queue == "target" else self.queue):
            return True
        if self.seconds is not None and oldest >= self.seconds:
            return True
        return self.variance is not None and variance is not None and variance < self.variance


class Turn(NamedTuple):
    """One effect that waits for a slot; sorts by urgency, then by arrival.

    Attributes:
        number: Its place in the order of submission.
        since: When it began to wait.
        future: Done once it has a slot, or is no longer wanted.
    """

    priority: Priority
    number: int
    since: float
    future: asyncio.Future[None]


class Queue:
    """Waiting turns: held until they are released, then the most urgent first."""

    def __init__(self, options: Batching) -> None:
        self._options = options
        self._held: list[Turn] = []  # in the order of their arrival
        self._released: list[Turn] = []  # a heap
        self._scores: deque[float] = deque(maxlen=_SCORES)

    def __len__(self) -> int:
        return len(self._held) + len(self._released)

    def waiting(self) -> tuple[Turn, ...]:
        """Return the turns that wait, in any order."""
        return (*self._held, *self._released)

    def push(self, turn: Turn) -> None:
        """Add a turn."""
        self._held.append(turn)

    def note_score(self, score: float) -> None:
        """Note the score of a rollout that has ended."""
        self._scores.append(score)

    def pop(self, free: int, target: int, now: float) -> Turn | float:
        """Return the next turn, or when to ask again: infinite for when something happens.

        Args:
            free: Slots that are free, at least 1.
            target: Slots in all.
            now: The time on the clock of the turns.
        """
        again = self._release_at(free, target, now)
        if again <= now:
            for turn in self._held:
                heapq.heappush(self._released, turn)
            self._held.clear()
        return heapq.heappop(self._released) if self._released else again

    def _release_at(self, free: int, target: int, now: float) -> float:
        """Return when held turns are released unless more arrive; ``now`` for at once."""
        while self._held and self._held[0].future.done():
            del self._held[0]
        if not self._held:
            return math.inf
        options, oldest = self._options, self._held[0].since
        if options.releases(len(self._held), now - oldest, target, self._variance()):
            return now
        due = math.inf if options.seconds is None else oldest + options.seconds
        # With nothing in flight, only a submission or the clock can change the answer.
        stalled = self._held[-1].since + options.patience if free >= target else math.inf
        return min(due, stalled)

    def _variance(self) -> float | None:
        if self._options.variance is None or len(self._scores) < _SCORES_NEEDED:
            return None
        return pvariance(self._scores)
