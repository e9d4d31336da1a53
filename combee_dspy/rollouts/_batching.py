"""Where effects wait for a slot: by urgency alone, or in batches."""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
from collections import deque
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, WithJsonSchema

from combee_dspy.rollouts._flush import FlushRule, FlushView, at_once, flush_rule
from combee_dspy.strategies import parameters

logger = logging.getLogger("combee_dspy")

Priority = tuple[int, ...]
"""Smaller goes first."""

_SCORES_NEEDED, _SCORES = 8, 32

_Rule = Annotated[FlushRule, BeforeValidator(flush_rule), WithJsonSchema({"type": "string"})]


@parameters
class Batching:
    """When waiting jobs are released, and in what company.

    Within one urgency, jobs of one program (or of one kind of call) and of one length class go one after another,
    so that a server can share their prefix and need not pad.

    Args:
        flush: When what waits is released: a rule, or its text, such as ``"queue_at_least(64) | waited(0.2)"``.
        preempt: What happens when a more urgent job arrives while a released batch waits for slots: ``"drain"``
            lets the batch go first, ``"rollback"`` puts back what of it has not started.
        tokens: Tokens of one released batch, all of one length class (a power of two); what does not fit waits for
            the next. ``None`` for no such bound.
        patience: Seconds with nothing in flight after which what a rule holds back goes all the same, so that no
            run hangs.
    """

    flush: _Rule = Field(default="at_once()", validate_default=True)
    preempt: Literal["drain", "rollback"] = "drain"
    tokens: Annotated[int, Field(ge=1)] | None = None
    patience: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0

    def plain(self) -> dict[str, Any]:
        """Return JSON values that the constructor takes."""
        return {"flush": str(self.flush), "preempt": self.preempt, "tokens": self.tokens, "patience": self.patience}


class Turn(NamedTuple):
    """One effect that waits for a slot; sorts by urgency, then by company, then by arrival.

    Attributes:
        priority: How urgent it is.
        group: What jobs that share a prompt's beginning have in common, and their length class; 0, 0 where that
            does not count.
        number: Its place in the order of submission.
        since: When it began to wait.
        tokens: About how long its prompts are.
        future: Done once it has a slot, or is no longer wanted.
    """

    priority: Priority
    group: tuple[int, int]
    number: int
    since: float
    tokens: int
    future: asyncio.Future[None]


class Queue:
    """Waiting turns: the most urgent goes as soon as there is a slot."""

    def __init__(self) -> None:
        self._heap: list[Turn] = []

    def __len__(self) -> int:
        """Return how many wait, perhaps with some that are no longer wanted."""
        return len(self._heap)

    def waiting(self) -> tuple[Turn, ...]:
        """Return those that wait, in no stated order."""
        return tuple(self._heap)

    def push(self, turn: Turn) -> None:
        """Add a turn."""
        heapq.heappush(self._heap, turn)

    def pop(self, free: int, target: int, now: float) -> Turn | float:
        """Return the next turn; or the time at which to ask again, infinite for when something happens."""
        return heapq.heappop(self._heap) if self._heap else math.inf

    def heard(self, score: float) -> None:
        """Hear of a rollout's score."""


class Batches(Queue):
    """Waiting turns that a rule releases; from then on they go by their urgency."""

    def __init__(self, options: Batching) -> None:
        self._options = options
        self._rule = options.flush
        self._held: list[Turn] = []
        self._released: deque[Turn] = deque()
        self._scores: deque[float] = deque(maxlen=_SCORES)
        self._touched = -math.inf

    def __len__(self) -> int:
        return len(self._held) + len(self._released)

    def waiting(self) -> tuple[Turn, ...]:
        """Return those that wait."""
        return (*self._held, *self._released)

    def heard(self, score: float) -> None:
        """Take a score into the variance."""
        self._scores.append(score)

    def push(self, turn: Turn) -> None:
        """Add a turn; it may send back a batch that is less urgent."""
        self._held.append(turn)
        self._touched = turn.since
        if self._options.preempt == "rollback" and self._released and turn.priority < self._released[0].priority:
            self._held.extend(self._released)
            self._released.clear()

    def pop(self, free: int, target: int, now: float) -> Turn | float:
        """Return the next released turn, releasing a batch where the rule says so."""
        if not self._released:
            self._held = [turn for turn in self._held if not turn.future.done()]
            if not self._held:
                return math.inf
            if (again := self._again(free, target, now)) > now:
                return again
            self._release()
        return self._released.popleft()

    def _again(self, free: int, target: int, now: float) -> float:
        """Return when to ask again; ``now`` or before to release."""
        oldest = min(turn.since for turn in self._held)
        view = FlushView(len(self._held), now - oldest, free, target, self._variance())
        try:
            if self._rule.check(view):
                return now
            due = self._rule.due(view)
        except Exception:  # it may be anybody's; where it is asked, nobody could hear what it raises
            logger.warning("The flush rule %s failed; jobs now go at once", self._rule, exc_info=True)
            self._rule = at_once()
            return now
        # With nothing in flight, nothing but a submission or the clock can change the answer.
        stalled = self._touched + self._options.patience if free >= target else math.inf
        return min(math.inf if due is None else now + due, stalled)

    def _release(self) -> None:
        bound = self._options.tokens
        spent, rest = 0, []
        for turn in sorted(self._held):
            first = self._released[0] if self._released else turn
            if bound is None or turn is first or (turn.group[1] == first.group[1] and spent + turn.tokens <= bound):
                self._released.append(turn)
                spent += turn.tokens
            else:
                rest.append(turn)
        self._held = rest

    def _variance(self) -> float | None:
        scores = self._scores
        if len(scores) < _SCORES_NEEDED:
            return None
        mean = sum(scores) / len(scores)
        return sum((score - mean) ** 2 for score in scores) / len(scores)
