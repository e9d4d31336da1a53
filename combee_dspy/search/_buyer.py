"""Buys one effect: granted, carried out in a slot, in the books, and on disk, whatever became of
it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from combee_dspy.events import CostReserved, WarningRaised
from combee_dspy.exceptions import InfrastructureError
from combee_dspy.journal import Effect, RunLog
from combee_dspy.records import CallUsage, described
from combee_dspy.rollouts import MAY_REPEAT, AbandonedError, Check, Slots, unkept_reason
from combee_dspy.search._budget import BudgetReached, Purse, Repeats
from combee_dspy.search._privacy import Texts
from combee_dspy.search._spent import not_known
from combee_dspy.search._start import Start

__all__ = ["Buyer"]

logger = logging.getLogger("combee_dspy")

T = TypeVar("T")


class Buyer:
    """Buys effects. Lives on the search's loop.

    Attributes:
        over: Why nothing that is under way goes on, since its time is over; empty while there is
            time.
        kept: By key, what the journal cannot give back as it was.
        start: What effects wait for before a trial has shown that the run can work.
    """

    def __init__(self, slots: Slots, log: RunLog, purse: Purse, texts: Texts) -> None:
        self.over = ""
        self.kept: dict[str, Any] = {}
        self.start = Start()
        self._slots, self._log, self._purse, self._texts = slots, log, purse, texts
        self._unkept = 0  # effects that are paid for and not on disk yet

    async def buy(
        self,
        effect: Effect,
        work: Callable[[Check | None], Awaitable[tuple[T | Exception, tuple[CallUsage, ...]]]],
        told: Callable[[], Mapping[str, float]] = dict,
    ) -> tuple[T, Effect]:
        """Grant an effect, carry it out and put its cost into the books; return its result, and
        when and for how much.

        ``work`` is given what is to be called when the effect has its slot, if anything is.
        ``told`` returns what one of its LM calls may cost at most.

        Raises:
            BudgetReached: The budget leaves no room for it, or the time is over.
            Exception: What ``work`` raised, or returned in the place of a result.
        """
        try:
            return await self._paid(effect, work, told)
        except (asyncio.CancelledError, InfrastructureError):
            if not self.over:
                raise
            raise BudgetReached(self.over) from None

    async def _paid(
        self,
        effect: Effect,
        work: Callable[[Check | None], Awaitable[tuple[T | Exception, tuple[CallUsage, ...]]]],
        told: Callable[[], Mapping[str, float]],
    ) -> tuple[T, Effect]:
        if effect.kind != "probe":
            await self.start.wait(effect.kind)
        charged = effect.purpose != "heldout"
        kind = effect.kind if effect.kind == "rollout" else f"{effect.kind}/{effect.purpose}"
        granted = (
            await self._purse.grant(kind, told() if self._purse.by_tokens else {})
            if charged
            else None
        )
        started = time.time()
        usage: tuple[CallUsage, ...] = ()
        unknown: Mapping[str, float] = {}
        result: T | Exception | AbandonedError
        repeats = Repeats(self._purse)
        token = MAY_REPEAT.set(repeats.allow if charged else MAY_REPEAT.get())
        try:
            result, usage = await work(partial(self._begin, effect.key, granted))
        except InfrastructureError as error:
            result, usage = error, error.usage
        except AbandonedError as abandoned:
            result, usage = abandoned, abandoned.usage
            unknown = not_known(granted or {}, usage)
            self._purse.spent.lose(unknown)
        finally:
            MAY_REPEAT.reset(token)
            if charged:
                self._purse.returned(kind, usage, repeats.count)
        ended = time.time()
        if not isinstance(result, (Exception, AbandonedError)):
            return result, replace(effect, started=started, ended=ended, usage=usage)
        # What came to nothing has cost something all the same; a resumed run tries again.
        reason = result.reason if isinstance(result, InfrastructureError) else described(result)
        if isinstance(result, AbandonedError):
            reason = f"given up while it was under way: {self.over or 'the run was ended'}"
        failed = Effect(
            f"failed/{effect.key}/{time.time_ns()}",
            "failed",
            {"of": kind, "unknown": dict(unknown)},
            purpose=effect.purpose,
            step=effect.step,
            error=self._texts.scrub(reason),
            failed_in="service",
            started=started,
            ended=ended,
            usage=usage,
        )
        await self._log.keep(self._texts.written(failed))
        if repeats.refused:
            spent, limit = self._purse.spent.calls, self._purse.limits.calls
            text = f"{spent} of {limit} calls are spent, and one that failed would pass the limit"
            raise BudgetReached(text) from result
        raise result

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
            if not self.kept and (reason := unkept_reason(written.value)):
                text = (
                    f"This run cannot be resumed without buying again: {reason}. Register a codec"
                    " for it with combee_dspy.rollouts.add_codec."
                )
                logger.warning("%s", text)
                self._log.emit(WarningRaised(text))
            self.kept[effect.key] = result
