"""The one way from a search to the world: every effect looked up, bought in a slot, committed, then used."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import dspy

from combee_dspy.costs import Tariff, metered
from combee_dspy.exceptions import InfrastructureError
from combee_dspy.journal import Cache, Effect, RunLog
from combee_dspy.records import CallUsage, FailedCall, Role, Rollout
from combee_dspy.rollouts import (
    CallJob,
    RolloutJob,
    Slots,
    decode_answer,
    encode_answer,
    takes_trace,
)
from combee_dspy.search._budget import Purse
from combee_dspy.search._candidates import Candidate, Row
from combee_dspy.search._programs import Programs, another_draw
from combee_dspy.search._values import Place, call_key, changed, rollout_effect, rollout_of

__all__ = ["CALLS", "ROLLOUTS", "VALIDATION", "Effects", "Place"]

T = TypeVar("T")

CALLS, ROLLOUTS, VALIDATION = 0, 1, 2
"""Lanes, the most urgent first: what many rollouts wait for goes before what few wait for."""


class Effects:
    """Buys effects, each once. Lives on the search's event loop.

    What is in flight is committed even where nobody waits for it any more: it
    has been paid for.

    Args:
        log: The run's part of the journal. Borrowed.
        slots: Where effects are carried out. Borrowed, shared with other searches.
        programs: Makes programs of candidates.
        purse: Grants what is bought.
        metric: GEPA's metric.
        failure_score: Score of a rollout that failed.
        lms: LM by role; a role without one uses DSPy's own.
        adapter: How strategies' calls are written and read.
        tariff: What LM calls are charged by.
        cache: Rollouts shared with other runs. Borrowed.
        memoize: Whether a rollout that was asked for before is the same rollout.
        number: The search's own number among those that share the slots.
        decided: Returns what an earlier run decided in a place, or ``None``.
        scrub: Takes keys out of a text: what follows from an answer stands in files.
    """

    def __init__(  # noqa: PLR0913 - one wiring point
        self,
        log: RunLog,
        slots: Slots,
        programs: Programs,
        purse: Purse,
        *,
        metric: Callable[..., Any],
        failure_score: float,
        lms: Mapping[Role, dspy.BaseLM | None],
        adapter: dspy.Adapter,
        tariff: Tariff,
        cache: Cache | None = None,
        memoize: bool = True,
        number: int = 0,
        decided: Callable[[str], Any | None] = lambda _: None,
        scrub: Callable[[str], str] = lambda text: text,
    ) -> None:
        self.log = log
        self.slots = slots
        self.programs = programs
        self.purse = purse
        self.metric = metric
        self._failure_score = failure_score
        self._lms = lms
        self._adapter = adapter
        self._cache = cache
        self._memoize = memoize
        self._number = number
        self._tariff = tariff
        self._sees_trace = takes_trace(metric)
        self._decided = decided
        self._scrub = scrub
        # What the journal cannot give back as it was; the rest of what has ended is read there.
        self._kept: dict[str, Any] = {}
        self._flying: dict[str, asyncio.Task[Any]] = {}

    def rollout(
        self, candidate: Candidate, row: Row, place: Place, *, lane: int = ROLLOUTS, replicate: int = 0
    ) -> Awaitable[Rollout]:
        """Return a rollout that is under way, bought by now, or already there. Await it as often as needed.

        Args:
            candidate: Whose program.
            row: The example.
            place: What it is for.
            lane: How urgent it is among this search's effects.
            replicate: Which draw, where the same rollout is wanted several times.

        Raises:
            BudgetReached: The budget leaves no room for it.
            InfrastructureError: The service kept failing.
        """
        # A row is the same rollout in whichever split it stands; what counts against the budget is the search alone.
        key = f"rollout/{candidate.id}/{row.hash[:16]}/{replicate}"
        if not self._memoize:
            key = f"{key}/{place.purpose}/{place.step}"
        if place.purpose != "heldout":
            self.purse.count(key, place.step)
        return self._once(key, lambda: self._rolled(key, candidate, row, place, lane, replicate))

    async def _rolled(
        self, key: str, candidate: Candidate, row: Row, place: Place, lane: int, replicate: int
    ) -> Rollout:
        if (before := self._before(key, rollout_of)) is not None:
            return before
        program = self.programs.of(candidate, replicate)
        shared = None if self._cache is None else f"{self.programs.fingerprint(candidate)}/{row.hash}/{replicate}"
        if shared is not None and self._cache is not None:
            cached = self._cache.find(shared)
            if cached is not None and (found := rollout_of(cached)) is not None:
                await self.log.keep(rollout_effect(key, candidate, row, place, replicate, found, None, usage=()))
                return found
        if place.purpose != "heldout":
            await self.purse.grant("rollout", reserved=place.step < 0)
        started = time.time()
        usage: tuple[CallUsage, ...] = ()
        job = RolloutJob(
            program, row.example, row.hash, self.metric, self._failure_score, self._tariff, self._sees_trace
        )
        try:
            with dspy.context(lm=another_draw(dspy.settings.lm, replicate)):
                rollout = await self.slots.rollout(job, (lane, max(place.step, 0), row.index, self._number))
            # Scrubbed before anything follows from it: feedback and errors end in prompts and files.
            told = None if rollout.error is None else self._scrub(rollout.error)
            rollout = replace(rollout, feedback=self._scrub(rollout.feedback), error=told)
            usage = rollout.usage
        except InfrastructureError as error:
            usage = error.usage
            await self._paid_for_nothing(key, place, error)
            raise
        finally:
            if place.purpose != "heldout":
                self.purse.returned("rollout", usage)
        effect = rollout_effect(key, candidate, row, place, replicate, rollout, started, usage)
        await self._keep(effect, rollout)
        # What a service did says nothing of the rollout when another run asks for it.
        if shared is not None and self._cache is not None and rollout.failed_in != "service":
            self._cache.keep(shared, effect.value)
        return rollout

    async def call(
        self,
        signature: type[dspy.Signature],
        inputs: Mapping[str, Any],
        place: tuple[str | int, ...],
        role: Role,
        *,
        step: int,
        temperature: float | None = None,
    ) -> dspy.Prediction | FailedCall:
        """Ask an LM once; see :meth:`combee_dspy.strategies.StrategyContext.ask`.

        Raises:
            BudgetReached: The budget leaves no room for it.
        """
        key = call_key(signature, inputs, place, role, step, temperature)
        return await self._once(key, lambda: self._asked(key, signature, inputs, place, role, step, temperature))

    async def _asked(
        self,
        key: str,
        signature: type[dspy.Signature],
        inputs: Mapping[str, Any],
        place: tuple[str | int, ...],
        role: Role,
        step: int,
        temperature: float | None,
    ) -> dspy.Prediction | FailedCall:
        if (before := self._before(key, decode_answer)) is not None:
            return before.outcome
        await self.purse.grant("call")
        started = time.time()
        usage: tuple[CallUsage, ...] = ()
        job = CallJob(signature, inputs, self._lms.get(role), self._adapter, role, temperature, self._tariff)
        try:
            answer = await self.slots.call(job, (CALLS, max(step, 0), 0, self._number))
            usage = answer.usage
        except InfrastructureError as error:
            usage = error.usage
            await self._paid_for_nothing(key, Place(signature.__name__, step), error)
            raise
        finally:
            self.purse.returned("call", usage)
        # Scrubbed once, here: whatever is made of an answer ends in files.
        value = changed(encode_answer(answer), self._scrub)
        failed = self._scrub(answer.outcome.error) if isinstance(answer.outcome, FailedCall) else None
        effect = Effect(
            key, "call", value, role, signature.__name__, step, str(place[0]) if place else "",
            error=failed, started=started + answer.queue_seconds, ended=time.time(),
            queued=answer.queue_seconds, usage=usage,
        )  # fmt: skip
        found = decode_answer(value) or answer
        await self._keep(effect, found)
        return found.outcome

    async def _paid_for_nothing(self, key: str, place: Place, error: InfrastructureError) -> None:
        """Keep what attempts have cost that came to nothing; a resumed run tries again."""
        now, usage = time.time(), error.usage
        effect = Effect(
            f"failed/{key}/{time.time_ns()}", "failed", {}, purpose=place.purpose, step=place.step,
            error=self._scrub(error.reason), failed_in="service", started=now, ended=now, usage=usage,
        )  # fmt: skip
        await self.log.keep(effect)

    async def work(self, key: str, place: Place, role: Role, kind: str, make: Callable[[], Any]) -> Any:
        """Carry out a user's own function in a worker thread as one effect; it may call LMs.

        Args:
            key: Its place in the run.
            place: What it is for.
            role: Whom its LM calls are made for.
            kind: The effect's kind.
            make: Returns JSON values.
        """
        return await self._once(key, lambda: self._worked(key, place, role, kind, make))

    async def _worked(self, key: str, place: Place, role: Role, kind: str, make: Callable[[], Any]) -> Any:
        known = self.log.find(key)
        if known is not None:
            return known["value"]

        def metered_work() -> tuple[Any, tuple[CallUsage, ...]]:
            with metered(self._tariff, role) as meter:
                try:
                    value = changed(make(), self._scrub)
                except Exception as error:  # noqa: BLE001 - raised again once its calls are in the books
                    return error, meter.usage()
            return value, meter.usage()

        await self.purse.grant(kind)
        started = time.time()
        usage: tuple[CallUsage, ...] = ()
        try:
            value, usage = await self.slots.run(metered_work, (CALLS, max(place.step, 0), 0, self._number))
        finally:
            self.purse.returned(kind, usage)
        if isinstance(value, Exception):
            failure = InfrastructureError(1, 1, f"{type(value).__name__}: {value}", usage)
            await self._paid_for_nothing(key, place, failure)
            raise value
        effect = Effect(
            key, kind, {"value": value}, role, place.purpose, place.step, place.component, started=started,
            ended=time.time(), usage=usage,
        )  # fmt: skip
        await self.log.keep(effect)
        return value

    async def decide(self, place: str, make: Callable[[], Any], *, step: int = -1) -> Any:
        """Return a decision that depends on the clock, the bill or the service: what was decided once stays decided.

        Args:
            place: What is decided, once in a run.
            make: Decides; returns JSON values.
            step: The update.
        """
        key = f"decision/{place}"
        known = self.log.find(key)
        if known is not None:
            return known["value"]
        before = self._decided(key)
        value = make() if before is None else before["value"]
        await self.log.keep(Effect(key, "decision", {"value": value}, purpose=place.split("/")[0], step=step))
        return value

    def usage(self) -> tuple[CallUsage, ...]:
        """Return what all parts of the run have spent; every effect that was waited for is in it."""
        return self.log.usage()

    def known(self, place: str) -> Any | None:
        """Return a decision that was taken before, by this run or the one that it replays; ``None`` for none."""
        key = f"decision/{place}"
        known = self.log.find(key) or self._decided(key)
        return None if known is None else known["value"]

    def _once(self, key: str, make: Callable[[], Coroutine[Any, Any, T]]) -> Awaitable[T]:
        """Return an effect that is under way, or begin it; it goes on where whoever waits for it is cancelled."""
        task = self._flying.get(key)
        if task is None:
            task = self._flying[key] = asyncio.ensure_future(make())
            task.add_done_callback(partial(self._landed, key))
        return asyncio.shield(task)

    def _landed(self, key: str, task: asyncio.Task[Any]) -> None:
        del self._flying[key]
        if not task.cancelled():
            task.exception()  # whoever awaits it hears of it; where nobody does any more, nobody needs to

    def _before(self, key: str, decode: Callable[[Any], T | None]) -> T | None:
        """Return what an effect returned before, as far as it can be had again."""
        if key in self._kept:
            kept: T = self._kept[key]
            return kept
        known = self.log.find(key)
        return None if known is None else decode(known)

    async def _keep(self, effect: Effect, result: Any) -> None:
        await self.log.keep(effect)
        if effect.value.get("partial"):
            self._kept[effect.key] = result

    async def drain(self) -> None:
        """Take back what waits for a slot, and commit what is in flight."""
        while self._flying:
            self.slots.withdraw(self._number)
            self.purse.withdraw()
            await asyncio.wait(self._flying.values())
