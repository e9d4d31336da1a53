"""What a day may cost: asked before each call, and booked after it."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence

import dspy

from combee_dspy.costs import price_of
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.journal import Effect, Reader, RunLog
from combee_dspy.records import CallUsage
from combee_strategist.canary import Clock
from combee_strategist.live._options import Learning

__all__ = ["DAY", "DaySpentError", "SessionAllowance", "check_prices"]

DAY = 86_400.0
_SPENT = (
    "SELECT e.started, u.prompt_tokens + u.completion_tokens AS tokens, u.dollars"
    " FROM usage u JOIN effect e ON e.id = u.effect WHERE e.started IS NOT NULL"
)


class DaySpentError(Exception):
    """The day's budget has no room for the next call. The session goes on tomorrow."""


def check_prices(learning: Learning, lms: Sequence[dspy.BaseLM]) -> float:
    """Return the most dollars that a token may cost; 0 without a budget in dollars.

    Raises:
        ArgumentValueError: There is such a budget, and the price of a model is not known.
    """
    if learning.dollars is None:
        return 0.0
    rates = []
    for lm in lms:
        price = price_of(str(lm.model))
        if price is None:
            remedy = "Give Learning(tokens=…) instead."
            problem = f"cannot be kept: no price of {lm.model} is known"
            raise ArgumentValueError("Learning.dollars", learning.dollars, problem, remedy)
        rates.append(max(price.prompt, price.completion) / 1_000_000)
    return max(rates)


class SessionAllowance:
    """The budget of the day, for the calls of one session. Thread-safe.

    What readers cost is booked in the learner's journal too, call by call, so that one file says
    what a day has cost.
    """

    def __init__(
        self, learning: Learning, rate: float, clock: Clock, log: RunLog, session: int
    ) -> None:
        self._learning, self._rate, self._clock = learning, rate, clock
        self._log, self._session = log, session
        self._reserved, self._lock = 0, threading.Lock()
        self._tokens: dict[int, int] = defaultdict(int)
        self._dollars: dict[int, float] = defaultdict(float)
        self._calls = 0
        with Reader(log.journal.path) as reader:
            for started, tokens, dollars in reader.rows(_SPENT):
                self._book(int(started // DAY), tokens, dollars or 0.0)
            sql = "SELECT count(*) FROM effect WHERE step = ? AND purpose = 'reading'"
            self._calls = reader.rows(sql, (session,))[0][0]

    @property
    def left(self) -> int:
        """Tokens that are left of today."""
        day, learning = int(self._clock() // DAY), self._learning
        left = [10**12]
        if learning.tokens is not None:
            left.append(learning.tokens - self._tokens[day] - self._reserved)
        if learning.dollars is not None and self._rate:
            dollars = learning.dollars - self._dollars[day]
            left.append(int(dollars / self._rate) - self._reserved)
        return max(0, min(left))

    def reserve(self, tokens: int) -> None:
        """Set aside what a call may take.

        Raises:
            DaySpentError: The day has less left.
        """
        with self._lock:
            if tokens > self.left:
                raise DaySpentError(f"{self.left:,} tokens are left of today")
            self._reserved += tokens

    def settle(self, tokens: int, usage: Sequence[CallUsage]) -> None:
        """Give back what was set aside for a reader, and book what it has cost."""
        with self._lock:
            self._calls += 1
            key = f"reading/{self._session}/{self._calls}"
        now = self._clock()
        self._log.put(
            Effect(
                key,
                "call",
                {},
                "proposer",
                "reading",
                self._session,
                started=now,
                ended=now,
                usage=tuple(usage),
            )
        )
        self.give_back(tokens, usage)

    def give_back(self, tokens: int, usage: Sequence[CallUsage]) -> None:
        """Give back what was set aside, and count what a call has cost that stands elsewhere."""
        spent = sum(call.prompt_tokens + call.completion_tokens for call in usage)
        with self._lock:
            self._reserved -= tokens
            dollars = sum(call.dollars or 0.0 for call in usage)
            self._book(int(self._clock() // DAY), spent, dollars)

    def _book(self, day: int, tokens: int, dollars: float) -> None:
        self._tokens[day] += tokens
        self._dollars[day] += dollars
