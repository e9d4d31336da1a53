"""The budget of a day: each call reserves its maximum cost first, and books what it has cost."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence

import dspy

from combee_dspy.costs import price_of
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.journal import Effect, Reader, RunLog
from combee_dspy.records import CallUsage, Role
from combee_strategist.canary import Clock
from combee_strategist.live._options import DAY, LEAST_TOKENS, Learning

__all__ = ["SPENT", "DayBudget", "DaySpentError", "check_prices"]

SPENT = (
    "SELECT e.started, u.prompt_tokens + u.completion_tokens AS tokens, u.dollars"
    " FROM usage u JOIN effect e ON e.id = u.effect WHERE e.started IS NOT NULL"
)


class DaySpentError(Exception):
    """The day's budget has no room for the next call. The session goes on tomorrow."""


def check_prices(learning: Learning, lms: Sequence[dspy.BaseLM]) -> float:
    """Return the most dollars that a token may cost; 0 without a budget in dollars.

    Raises:
        ArgumentValueError: There is such a budget, and the price of a model is not known, or no
            session can be paid with it.
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
    least = LEAST_TOKENS * max(rates)
    if learning.dollars < least:
        problem = f"pays no session, which needs {LEAST_TOKENS:,} tokens"
        remedy = f"Give {least:.2f} at least."
        raise ArgumentValueError("Learning.dollars", learning.dollars, problem, remedy)
    return max(rates)


class DayBudget:
    """The budget of each day, for all calls of one learner. Thread-safe.

    Args:
        learning: The limits.
        rate: The most dollars that a token may cost.
        clock: Says which day it is.
        log: The learner's journal, which says what each day has cost. Borrowed.
    """

    def __init__(self, learning: Learning, rate: float, clock: Clock, log: RunLog) -> None:
        self._learning, self._rate, self._clock, self._log = learning, rate, clock, log
        self._reserved, self._lock = 0, threading.Lock()
        self._tokens: dict[int, int] = defaultdict(int)
        self._dollars: dict[int, float] = defaultdict(float)
        with Reader(log.journal.path) as reader:
            for started, tokens, dollars in reader.rows(SPENT):
                self._book(int(started // DAY), tokens, dollars or 0.0)
            self._calls = reader.rows("SELECT count(*) FROM effect WHERE kind = 'call'")[0][0]

    @property
    def left(self) -> int:
        """Tokens that are left of today."""
        day = int(self._clock() // DAY)
        spent, dollars = self._tokens.get(day, 0), self._dollars.get(day, 0.0)
        return max(0, self._room(spent, dollars) - self._reserved)

    def _room(self, tokens: int, dollars: float) -> int:
        """Return the tokens that a day has left where so much was spent."""
        learning, left = self._learning, [10**12]
        if learning.tokens is not None:
            left.append(learning.tokens - tokens)
        if learning.dollars is not None and self._rate:
            left.append(int((learning.dollars - dollars) / self._rate))
        return min(left)

    def reserve(self, tokens: int) -> None:
        """Set aside what a call may take.

        Raises:
            DaySpentError: The day has less left.
        """
        with self._lock:
            if tokens > (most := self._room(0, 0.0)):
                raise DaySpentError(f"a call may take {tokens:,} tokens, and a day has {most:,}")
            if tokens > self.left:
                raise DaySpentError(f"{self.left:,} tokens are left of today")
            self._reserved += tokens

    def settle(self, tokens: int, usage: Sequence[CallUsage], purpose: str = "reading") -> None:
        """Give back what was set aside for a call, and book what it has cost in the journal."""
        with self._lock:
            self._calls += 1
            key = f"{purpose}/{self._calls}"
        now = self._clock()
        role: Role = "proposer" if purpose == "reading" else "task"
        self._log.put(
            Effect(key, "call", {}, role, purpose, started=now, ended=now, usage=tuple(usage))
        )
        self.give_back(tokens, usage)

    def give_back(self, tokens: int, usage: Sequence[CallUsage]) -> None:
        """Give back what was set aside, and count what a call has cost that is booked elsewhere."""
        spent = sum(call.prompt_tokens + call.completion_tokens for call in usage)
        with self._lock:
            self._reserved -= tokens
            dollars = sum(call.dollars or 0.0 for call in usage)
            self._book(int(self._clock() // DAY), spent, dollars)

    def _book(self, day: int, tokens: int, dollars: float) -> None:
        self._tokens[day] += tokens
        self._dollars[day] += dollars
