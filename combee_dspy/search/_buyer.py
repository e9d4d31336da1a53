"""Buys one effect: reserves its cost, sends it, books what it cost, and commits the result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from combee_dspy.costs import merged
from combee_dspy.events import AnswersLost, CostReserved
from combee_dspy.exceptions import InfrastructureError
from combee_dspy.journal import Effect, RunLog
from combee_dspy.records import CallUsage, described
from combee_dspy.rollouts import REPEATS, AbandonedError, Check, Repeats, Slots, unkept_reason
from combee_dspy.search._amounts import LargestCall
from combee_dspy.search._budget import Purse
from combee_dspy.search._privacy import Texts
from combee_dspy.search._time_budget import BudgetReached
from combee_dspy.stopping import Limits

# Effects that may begin beside the checks of a run: what a wrong key or a metric that raises may
# cost.
_FEW = 8
# Purposes of effects without which a text does not count: what is kept back is for them.
_OF_VALIDATION = frozenset({"validation", "screen", "calibration"})


class Paid(Protocol):
    """What an effect returns: a rollout, an answer, or what a function of the user's returned."""

    @property
    def usage(self) -> tuple[CallUsage, ...]:
        """Its LM calls, but for those of attempts that the books have already."""


P = TypeVar("P", bound=Paid)


class WorkError(Exception):
    """A function of the user's raised an error, after LM calls that have to be paid."""

    def __init__(self, error: Exception, usage: tuple[CallUsage, ...]) -> None:
        super().__init__(str(error))
        self.error, self.usage = error, usage


class Start:
    """Holds effects back while the checks of a run go on. Lives on the search's loop."""

    def __init__(self) -> None:
        self._few = 0
        self._begun = 0
        self._opened: asyncio.Future[None] | None = None

    def hold(self, capacity: int) -> None:
        """Let few effects begin from now on, of as many as may be in flight at once."""
        # The two rows of the checks always may.
        self._few = max(2, min(_FEW, capacity))
        self._opened = asyncio.get_running_loop().create_future()

    def open(self) -> None:
        """Let all effects begin."""
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(None)
        self._opened = None

    def withdraw(self) -> None:
        """Cancel what waits to begin."""
        if self._opened is not None:
            self._opened.cancel()

    async def wait(self) -> None:
        """Wait until one more effect may begin."""
        self._begun += 1
        if self._opened is not None and self._begun > self._few:
            await asyncio.shield(self._opened)


@dataclass(eq=False)
class Buyer:
    """Buys effects. Lives on the search's loop.

    Attributes:
        over: Why what is under way is given up, once the time is over; empty before.
        in_memory: Results that the journal cannot give back as they were, by key.
        slots: Give each its turn.
        start: Holds effects back until a trial has shown that the run can work.
        texts: Scrubs texts, and says how they are written.
        warn: Warns people, once.
    """

    slots: Slots
    log: RunLog
    purse: Purse
    texts: Texts
    warn: Callable[[str], None]

    def __post_init__(self) -> None:
        self.over = ""
        self.in_memory: dict[str, Any] = {}
        self.start = Start()
        self._unlimited = Purse(Limits())
        self._uncommitted = 0

    def has(self, key: str) -> bool:
        """Return whether the result of an effect is at hand."""
        return key in self.in_memory or self.log.find(key) is not None

    async def buy(
        self,
        effect: Effect,
        send: Callable[[Check], Awaitable[P]],
        bound: Callable[[], LargestCall | None] = lambda: None,
    ) -> tuple[P, Effect]:
        """Reserve an effect's cost, send it and book what it has cost.

        Args:
            effect: Its row in the journal, so far.
            send: Carries it out in a slot; awaits the check once it has one, before anything is
                sent.
            bound: Returns what one of its LM calls takes at most, where that is known.

        Returns:
            The result, and the row with its times and cost. :meth:`commit` it before use.

        Raises:
            BudgetReached: The budget leaves no room for it, or the time is over.
            InfrastructureError: The service kept failing.
            WorkError: The user's function raised.
        """
        try:
            return await self._carry_out(effect, send, bound)
        except (asyncio.CancelledError, InfrastructureError):
            if self.over:
                raise BudgetReached(self.over) from None
            raise

    async def _carry_out(
        self,
        effect: Effect,
        send: Callable[[Check], Awaitable[P]],
        bound: Callable[[], LargestCall | None],
    ) -> tuple[P, Effect]:
        # The probe opens the start, and feedback follows a rollout that has begun.
        if effect.kind not in ("probe", "feedback"):
            await self.start.wait()
        # The budget is the search's; the held-out set is read beyond it.
        purse = self._unlimited if effect.purpose == "heldout" else self.purse
        kind = effect.kind if effect.kind == "rollout" else f"{effect.kind}/{effect.purpose}"
        largest = bound() if purse.by_tokens else None
        # Without the first update's rollouts there is nothing to validate.
        is_due = effect.purpose in _OF_VALIDATION or (effect.purpose, effect.step) == ("train", 0)
        most = await purse.reserve_cost(kind, largest, is_due=is_due)
        reserved = time.time()
        effect = replace(effect, started=reserved)
        attempts = _Attempts(purse, effect, kind, self._commit_failed)
        has_slot = False

        async def check() -> None:
            nonlocal effect, has_slot
            has_slot = True
            if self._uncommitted >= self.slots.capacity:
                # A disk slower than the service: what a kill may cost stays bounded.
                await self.log.written()
            self.log.check_room()
            purse.check_time()
            if most:
                await self.log.promise(CostReserved(effect.key, most))
            effect = replace(effect, started=time.time(), queued=time.time() - reserved)

        token = REPEATS.set(attempts)
        cost: tuple[CallUsage, ...] | None = None
        try:
            result = await send(check)
            cost = attempts.end(result.usage)
        except (InfrastructureError, AbandonedError, WorkError) as error:
            # It has cost something all the same. A run that goes on tries again.
            if has_slot:
                await self._commit_failed(effect, kind, error.usage, self._reason(error))
            cost = attempts.end(error.usage) or None
            if attempts.refused:
                raise BudgetReached(attempts.refused) from error
            raise
        finally:
            REPEATS.reset(token)
            purse.settle(kind, cost, largest)
            if attempts.lost:
                answers = AnswersLost(effect.key, attempts.lost, attempts.most, effect.started)
                self.log.emit(answers)
        return result, replace(effect, ended=time.time(), usage=result.usage)

    def _reason(self, error: InfrastructureError | AbandonedError | WorkError) -> str:
        if isinstance(error, InfrastructureError):
            return error.reason
        if isinstance(error, WorkError):
            return described(error.error)
        return f"given up while it was under way: {self.over or 'the run was ended'}"

    async def _commit_failed(
        self,
        effect: Effect,
        kind: str,
        usage: tuple[CallUsage, ...],
        reason: str,
        *,
        goes_on: bool = False,
    ) -> None:
        """Commit what a failed attempt at an effect has cost; whether another attempt follows."""
        now = time.time_ns()
        failed = Effect(
            f"failed/{effect.key}/{now}",
            "failed",
            {"of": kind, "goes_on": True} if goes_on else {"of": kind},
            purpose=effect.purpose,
            step=effect.step,
            error=self.texts.scrub(reason),
            failed_in="service",
            started=effect.started,
            ended=now / 1e9,
            usage=usage,
        )
        await self.log.keep(self.texts.written(failed))

    async def commit(self, effect: Effect, result: Any) -> None:
        """Commit an effect that has ended, with its result."""
        written = self.texts.written(effect)
        self._uncommitted += 1
        try:
            await self.log.keep(written)
        finally:
            self._uncommitted -= 1
        if written.value.get("partial"):
            if not self.in_memory and (reason := unkept_reason(written.value)):
                self.warn(
                    f"This run cannot be resumed without buying again: {reason}. Register a codec"
                    " for it with combee_dspy.rollouts.add_codec."
                )
            self.in_memory[effect.key] = result


@dataclass(eq=False)
class _Attempts(Repeats):
    """The attempts at one effect; its methods are called from any thread.

    Attributes:
        cost: What the attempts that ended have cost.
        refused: Why the budget had no room for another; empty where it had.
        lost: How many calls got no answer that could be read.
        most: What these may have cost, of what is limited.
    """

    purse: Purse
    effect: Effect
    kind: str
    commit: Callable[..., Awaitable[None]]
    cost: tuple[CallUsage, ...] = ()
    refused: str = ""
    lost: int = 0
    most: dict[str, float] = field(default_factory=dict)
    _sent_again: int = 0  # calls that are not booked yet

    def allow(self, calls: int = 1) -> bool:
        """Return whether the budget has room for so many calls that failed."""
        self.refused = self.purse.send_again(self.kind, calls)
        self._sent_again += 0 if self.refused else calls
        return not self.refused

    async def book(self, usage: tuple[CallUsage, ...], reason: str) -> bool:
        """Book an attempt that failed, before the next one."""
        if usage:
            self.end(usage)
            await self.commit(self.effect, self.kind, usage, reason, goes_on=True)
        return True

    def end(self, usage: tuple[CallUsage, ...]) -> tuple[CallUsage, ...]:
        """Book what an attempt has cost; return the cost of all."""
        self.purse.book(usage, self._sent_again)
        self._sent_again, self.cost = 0, merged(self.cost, usage)
        return self.cost

    def lose(self) -> None:
        """Count a call whose answer is lost."""
        if most := self.purse.lose(self.kind):
            self.lost += 1
            for name, amount in most.items():
                self.most[name] = self.most.get(name, 0.0) + amount
