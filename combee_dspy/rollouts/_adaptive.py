"""A concurrency limit that finds a service's capacity by itself."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.rollouts._adaptive_core import begin, step
from combee_dspy.rollouts._adaptive_state import Finished, Observation, Outcome, Rejected, Started, State

__all__ = ["CEILING", "START", "AdaptiveLimit", "growth_allowed"]

START = 8
"""Tasks in flight at the start: eight times a serial run."""

CEILING = 256
"""The most tasks in flight where nobody says: each is a thread and a connection."""


class AdaptiveLimit:
    """How many tasks may be in flight, from what becomes of them.

    Starts small and doubles in a round trip while there is more to do than the
    limit lets through, until the service rejects a request or tasks clearly
    take longer. From then on it stays at the level found, probes above it
    rarely, and goes down when rejections or a queue at the service say so (rules
    and sources: :mod:`combee_dspy.rollouts._adaptive_core`). It waits for
    ``Retry-After``, two minutes at most. No prior knowledge of the service is needed.

    Whoever knows the capacity gives ``start == ceiling``: then it only backs
    off, and returns to the ceiling as far as the service allows.

    Thread-safe. Decisions depend on time and on the order of arrival; they
    change when tasks run, never what they return.

    Args:
        start: Tasks in flight at first, at least 1.
        ceiling: The most there may ever be, at least ``start``.
        may_grow: Asked before the limit is raised, once per task that ends; must return at once and not
            raise. ``None`` for always.
        on_change: Called with the limit before, the limit after and the reason, after each change, in the
            thread that reported; no lock of this object is held. Must not raise.
        clock: Monotonic seconds.

    Raises:
        ArgumentValueError: ``start`` is below 1 or ``ceiling`` below ``start``.
    """

    def __init__(
        self,
        start: int = START,
        ceiling: int = CEILING,
        *,
        may_grow: Callable[[], bool] | None = None,
        on_change: Callable[[int, int, str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if start < 1:
            raise ArgumentValueError("start", start, "is below 1", "Give at least one task.")
        if ceiling < start:
            raise ArgumentValueError("ceiling", ceiling, f"is below start={start}", "Raise the one or lower the other.")
        self._may_grow = may_grow
        self._on_change = on_change
        self._clock = clock
        self._lock = threading.Lock()
        self._state = begin(start, ceiling)
        self._rejections = 0

    @property
    def state(self) -> State:
        """What is known of the service now."""
        return self._state

    @property
    def rejections(self) -> int:
        """How many rejected requests were reported."""
        return self._rejections

    def current(self) -> int:
        """Return how many tasks may be in flight now."""
        return self._state.limit

    def hold(self) -> float:
        """Return the seconds until the next dispatch is allowed, 0 normally."""
        return max(0.0, self._state.held_until - self._clock())

    def started(self, lane: str) -> None:
        """Hear that a task was dispatched."""
        with self._lock:
            self._state = step(self._state, Started(self._clock()))

    def finished(self, lane: str, seconds: float, outcome: Outcome) -> None:
        """Hear that a task ended.

        Args:
            lane: Kind of task. Seconds are compared within a lane only.
            seconds: How long it was in flight.
            outcome: ``"ok"``, ``"failed"`` (its seconds say nothing) or ``"cancelled"`` (it says nothing).
        """
        # Asked outside of the lock: it is foreign code.
        grow = self._may_grow is None or self._may_grow()
        self._observe(lambda now: Finished(now, lane, seconds, outcome, grow))

    def rejected(self, retry_after: float | None) -> None:
        """Hear that the service answered "too many requests" to a task in flight.

        To be called from the thread, or the async task, that runs it: this is how
        repeated rejections of one task are told from those of several.

        Args:
            retry_after: Seconds that the service asked to wait, ``None`` where it named none.
        """
        who = _who()
        self._observe(lambda now: Rejected(now, who, retry_after))

    def _observe(self, made: Callable[[float], Observation]) -> None:
        with self._lock:
            # The clock is read under the lock: times must not run backwards.
            observation = made(self._clock())
            before = self._state
            self._state = state = step(before, observation)
            self._rejections += isinstance(observation, Rejected)
        if self._on_change is not None and state.limit != before.limit and state.change is not None:
            self._on_change(before.limit, state.limit, state.change.reason)


def _who() -> int:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        task = None
    return threading.get_ident() if task is None else id(task)


def growth_allowed(
    *,
    utilisation: float | None = None,
    front_similarity: float | None = None,
    best_validation: Sequence[float] = (),
    least_utilisation: float = 0.8,
    most_similar: float = 0.9,
    patience: int = 3,
) -> bool:
    """Whether a run has use for more tasks at once: batches fill, diversity holds, validation improves.

    More in flight means larger batches and more candidates an iteration. Where
    candidates have become alike or validation stands still, they would buy more
    of the same. What is not known yet does not stand in the way.

    The defaults are choices, not measurements: a fifth of the workers idle,
    the diversity at which :class:`combee_dspy.diversity.Restart` starts anew (0.1),
    and a few iterations of standstill.

    Args:
        utilisation: Share of the workers' time that was spent working in the last iteration, 0 to 1.
        front_similarity: Mean pairwise similarity of the best candidates, 0 to 1.
        best_validation: Best mean validation score after each iteration, oldest first.
        least_utilisation: Below it batches do not fill.
        most_similar: At or above it diversity does not hold.
        patience: Iterations without a rise of the best score that are waited for, at least 1.

    Raises:
        ArgumentValueError: ``patience`` is below 1.
    """
    if patience < 1:
        raise ArgumentValueError("patience", patience, "is below 1", "Give at least one iteration.")
    if utilisation is not None and utilisation < least_utilisation:
        return False
    if front_similarity is not None and front_similarity >= most_similar:
        return False
    if len(best_validation) <= patience:
        return True
    return max(best_validation[-patience:]) > max(best_validation[:-patience])
