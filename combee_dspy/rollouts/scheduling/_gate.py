"""Decides how many tasks may go now: the limit, the flush rule, and what to do where one of them breaks."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from combee_dspy.rollouts.scheduling._flush import SCORES_NEEDED, AtOnce, FlushRule, FlushView, ask
from combee_dspy.rollouts.scheduling._limit import ConcurrencyLimit, Outcome

__all__ = ["GuardedLimit", "GuardedRule"]

logger = logging.getLogger("combee_dspy")

T = TypeVar("T")

_SCORES = 32


class GuardedLimit:
    """A limit that cannot stop a run: what it raises is logged once, and its last answer stands.

    Args:
        limit: The limit.
        workers: Workers of the inner session, which no limit exceeds.
    """

    def __init__(self, limit: ConcurrencyLimit, workers: int) -> None:
        self._limit = limit
        self._workers = workers
        self._slots = workers
        self._told = False

    def slots(self) -> int:
        """Return the tasks that may be in flight now, from 1 to the workers there are."""
        self._slots = max(1, min(self._guarded(self._limit.current, self._slots), self._workers))
        return self._slots

    def reason(self) -> str:
        """Return why it last changed, where it says so."""
        return self._guarded(lambda: str(getattr(self._limit, "reason", "")), "")

    def hold(self) -> float:
        """Return the seconds until the next dispatch."""
        return self._guarded(self._limit.hold, 0.0)

    def started(self, lane: str) -> None:
        """Pass on."""
        self._guarded(self._limit.started, None, lane)

    def finished(self, lane: str, seconds: float, outcome: Outcome) -> None:
        """Pass on."""
        self._guarded(self._limit.finished, None, lane, seconds, outcome)

    def rejected(self, retry_after: float | None) -> None:
        """Pass on."""
        self._guarded(self._limit.rejected, None, retry_after)

    def _guarded(self, action: Callable[..., T], otherwise: T, *args: Any) -> T:
        try:
            return action(*args)
        except Exception:  # it may be anybody's; where it is asked, nobody could hear what it raises
            if not self._told:
                self._told = True
                logger.warning("The concurrency limit %r failed; its last answer stands", self._limit, exc_info=True)
            return otherwise


class GuardedRule:
    """A flush rule that cannot stop a run: once it has raised, tasks go at once. Thread-safe.

    Args:
        rule: The rule.

    Attributes:
        at_once: Whether tasks go as soon as there is a slot.
    """

    def __init__(self, rule: FlushRule) -> None:
        self._rule = rule
        self._scores: deque[float] = deque(maxlen=_SCORES)
        # Workers tell scores while another thread asks.
        self._lock = threading.Lock()
        self.at_once = isinstance(rule, AtOnce)

    def scored(self, score: float) -> None:
        """Hear of a score."""
        if not self.at_once:
            with self._lock:
                self._scores.append(score)

    def decide(self, queued: int, oldest: float, free: int, target: int, *, stalled: bool) -> tuple[str | None, float]:
        """Return why to release, or ``None`` and the seconds after which to ask again (infinite for none)."""
        try:
            view = FlushView(queued, oldest, free, target, self._variance())
            reason = ask(self._rule, view)
            due = self._rule.due(view) if reason is None else None
        except Exception:  # it may be anybody's; where it is asked, nobody could hear what it raises
            logger.warning("The flush rule %r failed; tasks now go at once", self._rule, exc_info=True)
            self.at_once = True
            return "the flush rule failed", 0.0
        if reason is None and due is None and stalled:
            return "nothing else can happen", 0.0
        return reason, float("inf") if due is None else due

    def _variance(self) -> float | None:
        with self._lock:
            scores = tuple(self._scores)
        if len(scores) < SCORES_NEEDED:
            return None
        mean = sum(scores) / len(scores)
        return sum((score - mean) ** 2 for score in scores) / len(scores)
