"""Tells of rollouts, each once, before anything is made of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from combee_dspy.events import ErrorRaised, Event, RolloutFinished
from combee_dspy.records import Rollout

__all__ = ["About", "Announcer", "Said"]

_TRAINING = ("parent", "child", "screen")


@dataclass(frozen=True, slots=True)
class About:
    """What is told of a rollout (see :class:`~combee_dspy.events.RolloutFinished`).

    Attributes:
        identity: The candidate's content hash.
        purpose: What it was for; ``"speculative"`` for one that nobody asked for in the end.
        iteration: The iteration.
        cached: Whether it cost nothing.
        replicate: Which draw it is.
        split: Where the example stands; by default as the purpose says.
    """

    identity: str
    purpose: str
    iteration: int
    cached: bool = False
    replicate: int = 0
    split: str | None = None


class Said:
    """Whether a rollout that was asked for has been told of."""

    __slots__ = ("done",)

    def __init__(self, *, done: bool = False) -> None:
        self.done = done


class Announcer:
    """Tells of rollouts under ids of their own. Thread-safe.

    A rollout that is used while others of its batch still run is told of before that, by the
    worker that has ended it: a journal holds whatever has been built on.

    Args:
        emit: Hears of each rollout.
    """

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self._lock = threading.Lock()
        self._serial = 0
        self._ending: BaseException | None = None

    def once(self, said: Said, rollout: Rollout, about: About) -> None:
        """Tell of a rollout, unless that was done."""
        with self._lock:
            if not said.done:
                said.done = True
                self._tell(rollout, about)

    def once_early(self, said: Said, rollout: Rollout, about: About) -> None:
        """Do the same in a worker; what a listener raises is kept for :meth:`raise_ending`."""
        try:
            self.once(said, rollout, about)
        except BaseException as ending:  # noqa: BLE001 - it belongs to the run's thread, which asks for it
            with self._lock:
                self._ending = self._ending or ending

    def raise_ending(self) -> None:
        """Raise what a listener raised in a worker, once.

        Raises:
            BaseException: That.
        """
        with self._lock:
            ending, self._ending = self._ending, None
        if ending is not None:
            raise ending

    def tell(self, rollout: Rollout, about: About) -> None:
        """Tell of a rollout."""
        with self._lock:
            self._tell(rollout, about)

    def _tell(self, rollout: Rollout, about: About) -> None:
        self._serial += 1
        self._emit(
            RolloutFinished(
                iteration=about.iteration,
                rollout=rollout,
                rollout_id=f"{self._serial:08d}",
                candidate_id=about.identity,
                split=about.split or ("train" if about.purpose in _TRAINING else about.purpose),
                purpose=about.purpose,
                cached=about.cached,
                replicate=about.replicate,
            )
        )
        if rollout.failed_in == "service" and not about.cached:
            error = rollout.error or ""
            self._emit(ErrorRaised(iteration=about.iteration, where="rollout", error=error, fatal=False))
