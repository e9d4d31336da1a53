"""Buys one effect: granted, carried out in a slot, in the books, and on disk, whatever became of
it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from combee_dspy.costs import merged
from combee_dspy.events import AnswersLost, CostReserved
from combee_dspy.exceptions import InfrastructureError
from combee_dspy.journal import Effect, RunLog
from combee_dspy.records import CallUsage, described
from combee_dspy.rollouts import REPEATS, AbandonedError, Check, Repeats, Slots, unkept_reason
from combee_dspy.search._budget import BudgetReached, Purse
from combee_dspy.search._lost import Lost
from combee_dspy.search._privacy import Texts
from combee_dspy.search._start import Start

__all__ = ["Buyer"]

T = TypeVar("T")


class _PurseRepeats(Repeats):
    """Those of one effect, by what a purse says. From any thread.

    Attributes:
        count: How many calls were sent again, and are in no book yet.
        booked: What attempts that failed have cost, which is in the books.
        refused: Why the budget had no room for another; empty where it had.
        lost: Its calls that got no answer that could be read, together.
    """

    def __init__(
        self,
        purse: Purse,
        kind: str,
        key: str,
        keep: Callable[[tuple[CallUsage, ...], str], Awaitable[None]],
    ) -> None:
        self._purse, self._kind, self._key, self._keep = purse, kind, key, keep
        self.count = 0
        self.booked: tuple[CallUsage, ...] = ()
        self.refused = ""
        self.lost: Lost | None = None

    def allow(self, calls: int = 1) -> bool:
        self.refused = self._purse.refusal(self._kind, calls)
        self.count += 0 if self.refused else calls
        return not self.refused

    async def book(self, usage: tuple[CallUsage, ...], reason: str) -> bool:
        if usage:
            self._purse.book(usage, self.count)
            self.count, self.booked = 0, merged(self.booked, usage)
            await self._keep(usage, reason)
        return True

    def lose(self) -> None:
        lost = self._purse.lose(self._kind, self._key)
        if lost is not None:
            self.lost = lost if self.lost is None else self.lost.joined(lost)


class Buyer:
    """Buys effects. Lives on the search's loop.

    Attributes:
        over: Why nothing that is under way goes on, since its time is over; empty while there is
            time.
        unkept: By key, what the journal cannot give back as it was.
        start: What effects wait for before a trial has shown that the run can work.
    """

    def __init__(
        self,
        slots: Slots,
        log: RunLog,
        purse: Purse,
        texts: Texts,
        warn: Callable[[str], None],
    ) -> None:
        self.over = ""
        self.unkept: dict[str, Any] = {}
        self.start = Start()
        self._slots, self._log, self._purse, self._texts = slots, log, purse, texts
        self._warn = warn
        self._unkept = 0  # effects that are paid for and not on disk yet

    def has(self, key: str) -> bool:
        """Return whether an effect has ended, and what it returned is at hand."""
        return key in self.unkept or self._log.find(key) is not None

    async def buy(
        self,
        effect: Effect,
        work: Callable[[Check | None], Awaitable[tuple[T | Exception, tuple[CallUsage, ...]]]],
        bound: Callable[[], Mapping[str, float]] = dict,
    ) -> tuple[T, Effect]:
        """Grant an effect, carry it out and put its cost into the books; return its result, and
        when and for how much.

        ``work`` is given what is to be called when the effect has its slot, if anything is.
        ``bound`` returns what one of its LM calls may cost at most.

        Raises:
            BudgetReached: The budget leaves no room for it, or the time is over.
            Exception: What ``work`` raised, or returned in the place of a result.
        """
        try:
            return await self._paid(effect, work, bound)
        except (asyncio.CancelledError, InfrastructureError):
            if not self.over:
                raise
            raise BudgetReached(self.over) from None

    async def _paid(
        self,
        effect: Effect,
        work: Callable[[Check | None], Awaitable[tuple[T | Exception, tuple[CallUsage, ...]]]],
        bound: Callable[[], Mapping[str, float]],
    ) -> tuple[T, Effect]:
        if effect.kind != "probe":
            await self.start.wait(effect.kind)
        charged = effect.purpose != "heldout"
        kind = effect.kind if effect.kind == "rollout" else f"{effect.kind}/{effect.purpose}"
        granted = (
            await self._purse.grant(kind, bound() if self._purse.by_tokens else {})
            if charged
            else None
        )
        started = time.time()
        usage: tuple[CallUsage, ...] = ()
        result: T | Exception | AbandonedError
        failed = partial(self._keep_failed, effect, kind, started)
        repeats = _PurseRepeats(self._purse, kind, effect.key, failed)
        token = REPEATS.set(repeats if charged else REPEATS.get())
        try:
            result, usage = await work(partial(self._begin, effect.key, granted))
        except InfrastructureError as error:
            result, usage = error, error.usage
        except AbandonedError as abandoned:
            result, usage = abandoned, abandoned.usage
        finally:
            REPEATS.reset(token)
            if charged:
                self._purse.returned(kind, usage, repeats.count, repeats.booked)
            if repeats.lost is not None:
                lost = repeats.lost
                self._log.emit(AnswersLost(lost.key, lost.answers, lost.most, started))
        if not isinstance(result, (Exception, AbandonedError)):
            return result, replace(effect, started=started, ended=time.time(), usage=usage)
        # What came to nothing has cost something all the same; a resumed run tries again.
        reason = result.reason if isinstance(result, InfrastructureError) else described(result)
        if isinstance(result, AbandonedError):
            reason = f"given up while it was under way: {self.over or 'the run was ended'}"
        if usage or not repeats.booked:
            await failed(usage, reason)
        if repeats.refused:
            raise BudgetReached(repeats.refused) from result
        raise result

    async def _keep_failed(
        self, effect: Effect, kind: str, started: float, usage: tuple[CallUsage, ...], reason: str
    ) -> None:
        """Commit what an attempt at an effect, or all of it, has cost and come to nothing."""
        now = time.time_ns()
        failed = Effect(
            f"failed/{effect.key}/{now}",
            "failed",
            {"of": kind},
            purpose=effect.purpose,
            step=effect.step,
            error=self._texts.scrub(reason),
            failed_in="service",
            started=started,
            ended=now / 1e9,
            usage=usage,
        )
        await self._log.keep(self._texts.written(failed))

    async def _begin(self, key: str, granted: Mapping[str, float] | None) -> None:
        """Begin an effect that has its slot: what it was granted, if that is limited, is on disk
        before it is sent.
        """
        if self._unkept >= self._slots.capacity:
            await (
                self._log.written()
            )  # a disk that is slower than the service: what a kill may cost stays bounded
        self._log.check_room()
        if granted is not None:
            self._purse.in_time()
        if granted:
            await self._log.promise(CostReserved(key, granted))

    async def keep(self, effect: Effect, result: Any) -> None:
        """Commit an effect that has ended, with its result."""
        written = self._texts.written(effect)
        self._unkept += 1
        try:
            await self._log.keep(written)
        finally:
            self._unkept -= 1
        if written.value.get("partial"):
            if not self.unkept and (reason := unkept_reason(written.value)):
                text = (
                    f"This run cannot be resumed without buying again: {reason}. Register a codec"
                    " for it with combee_dspy.rollouts.add_codec."
                )
                self._warn(text)
            self.unkept[effect.key] = result
