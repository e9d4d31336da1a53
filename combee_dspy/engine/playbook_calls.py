"""The LM calls of one minibatch: each is made as soon as what it reads is there."""

from __future__ import annotations

import contextvars
import functools
import threading
from collections.abc import Sequence
from concurrent.futures import Future

from combee_dspy.artifacts import Answered, CuratedShard, Curator, Insight, Reflector
from combee_dspy.records import Rollout
from combee_dspy.rollouts import ExecutorSession, Place, placed

__all__ = ["MinibatchCalls"]


class MinibatchCalls:
    """Reflections and curator calls, each begun once: by whoever comes first with what it reads.

    Which shard reads what was planned before; only when a call is made depends on what is there.
    Thread-safe, but for :meth:`curate`, :meth:`answers` and :meth:`curated`, which are one thread's.

    Args:
        reflector: Asks about a trajectory.
        session: Where calls run.
        iteration: The iteration that learns from the minibatch.
    """

    def __init__(self, reflector: Reflector, session: ExecutorSession, iteration: int = 0) -> None:
        self._reflector = reflector
        self._session = session
        self._iteration = iteration
        # What ends in a worker starts the next call there, in the settings of whoever made this.
        self._context = contextvars.copy_context()
        self._lock = threading.RLock()
        self._closed = False
        self._reflected: dict[int, Future[Answered]] = {}
        self._curator: Curator | None = None
        self._shards: tuple[tuple[int, ...], ...] = ()
        self._missing: list[set[int]] = []
        self._curated: dict[int, Future[tuple[CuratedShard, ...]]] = {}

    def start(self, position: int, rollout: Rollout) -> None:
        """Reflect on a rollout, unless that has begun."""
        with self._lock:
            if self._closed or position in self._reflected:
                return
            with placed(self._place(f"trajectory {position}")):
                future = self._session.submit(self._reflector.ask, position, rollout)
            self._reflected[position] = future
        future.add_done_callback(functools.partial(self._ended, position))

    def curate(self, curator: Curator, shards: Sequence[tuple[int, ...]]) -> None:
        """Ask about each shard once all of its trajectories have been reflected on; once.

        Args:
            curator: Asks.
            shards: Positions that each reads.
        """
        with self._lock:
            self._curator, self._shards = curator, tuple(shards)
            done = {position for position, future in self._reflected.items() if future.done()}
            self._missing = [set(shard) - done for shard in self._shards]
            for number, missing in enumerate(self._missing):
                if not missing:
                    self._ask(number)

    @property
    def shards(self) -> tuple[tuple[int, ...], ...]:
        """The positions that each shard reads."""
        return self._shards

    def answers(self, rollouts: Sequence[Rollout]) -> list[Answered]:
        """Return one answer per rollout, in order, once all of them are there."""
        for position, rollout in enumerate(rollouts):
            self.start(position, rollout)
        return [self._reflected[position].result() for position in range(len(rollouts))]

    def insights(self, shard: Sequence[int]) -> list[Insight]:
        """Return what the trajectories of a shard have taught; all of them have been reflected on."""
        found = ((position, self._reflected[position].result().insight) for position in shard)
        return [(position, insight) for position, insight in found if insight]

    def curated(self) -> list[CuratedShard]:
        """Return every curator call's answer in the plan's order, once all of them are there."""
        for number in range(len(self._shards)):
            self._ask(number)
        return [one for number in range(len(self._shards)) for one in self._curated[number].result()]

    def close(self) -> None:
        """Buy nothing any more that has not started."""
        with self._lock:
            self._closed = True
            futures: list[Future[Answered] | Future[tuple[CuratedShard, ...]]] = []
            futures += self._reflected.values()
            futures += self._curated.values()
        for future in futures:
            future.cancel()

    def _ended(self, position: int, future: Future[Answered]) -> None:
        if future.cancelled() or future.exception() is not None:
            # Whoever waits for it hears of it.
            return
        self._context.copy().run(self._arrived, position)

    def _arrived(self, position: int) -> None:
        with self._lock:
            for number, missing in enumerate(self._missing):
                if position in missing:
                    missing.discard(position)
                    if not missing:
                        self._ask(number)

    def _ask(self, number: int) -> None:
        with self._lock:
            if self._closed or number in self._curated or self._curator is None:
                return
            insights = self.insights(self._shards[number])
            with placed(self._place(f"shard {number}")):
                self._curated[number] = self._session.submit(self._curator.ask, insights)

    def _place(self, what: str) -> Place:
        return Place("reflection", f"{self._iteration}/{what}", prefix=what.split()[0], iteration=self._iteration)
