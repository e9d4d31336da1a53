"""The one way from a search to the world: every effect looked up, bought in a slot, committed, then used."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import dspy

from combee_dspy.costs import Tariff, metered
from combee_dspy.journal import Cache, Effect, RunLog
from combee_dspy.records import CallUsage, FailedCall, Role, Rollout
from combee_dspy.rollouts import (
    CallJob,
    RolloutJob,
    Slots,
    decode_answer,
    decode_rollout,
    encode_answer,
    encode_rollout,
    takes_trace,
)
from combee_dspy.search._budget import Purse
from combee_dspy.search._candidates import Candidate, Row
from combee_dspy.search._programs import Programs, another_draw

__all__ = ["CALLS", "ROLLOUTS", "VALIDATION", "Effects", "Place"]

T = TypeVar("T")

CALLS, ROLLOUTS, VALIDATION = 0, 1, 2
"""Lanes, the most urgent first: what many rollouts wait for goes before what few wait for."""

_SHOWN = 2_000


@dataclass(frozen=True, slots=True)
class Place:
    """What an effect is for.

    Attributes:
        purpose: See :class:`combee_dspy.journal.Effect`.
        step: The update; −1 before the first.
        component: The component it is about, else empty.
    """

    purpose: str
    step: int = -1
    component: str = ""


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
        self._rollouts: dict[str, asyncio.Task[Rollout]] = {}
        self._counted: set[str] = set()
        self._flying: set[asyncio.Task[Any]] = set()

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
        key = f"rollout/{candidate.id}/{row.split}/{row.hash[:16]}/{replicate}"
        if not self._memoize:
            key = f"{key}/{place.purpose}/{place.step}"
        task = self._rollouts.get(key)
        if task is None:
            if place.purpose != "heldout" and key not in self._counted:
                # The held-out set is read after the search, beyond its budget.
                self._counted.add(key)
                self.purse.count(place.step)
            task = self._rollouts[key] = self._keep_running(self._rolled(key, candidate, row, place, lane, replicate))
        return asyncio.shield(task)

    def forget(self, candidate: Candidate) -> None:
        """Let go of the finished rollouts of a candidate; a later look finds their values in the journal."""
        start = f"rollout/{candidate.id}/"
        for key in [key for key, task in self._rollouts.items() if key.startswith(start) and task.done()]:
            del self._rollouts[key]

    async def _rolled(
        self, key: str, candidate: Candidate, row: Row, place: Place, lane: int, replicate: int
    ) -> Rollout:
        known = self.log.find(key)
        if known is not None and (found := decode_rollout(known)) is not None:
            return found
        program = self.programs.of(candidate, replicate)
        shared = None if self._cache is None else f"{self.programs.fingerprint(candidate)}/{row.hash}/{replicate}"
        if shared is not None and self._cache is not None:
            cached = self._cache.find(shared)
            if cached is not None and (found := decode_rollout(cached)) is not None:
                await self.log.keep(self._effect(key, candidate, row, place, replicate, found, 0.0, usage=()))
                return found
        self.purse.send("rollout")
        started = time.time()
        usage: tuple[CallUsage, ...] = ()
        job = RolloutJob(
            program, row.example, row.hash, self.metric, self._failure_score, self._tariff, self._sees_trace
        )
        try:
            with dspy.context(lm=another_draw(dspy.settings.lm, replicate)):
                rollout = await self.slots.rollout(job, (lane, max(place.step, 0), row.index, self._number))
            usage = rollout.usage
        finally:
            self.purse.returned("rollout", usage)
        effect = self._effect(key, candidate, row, place, replicate, rollout, started, usage=usage)
        await self.log.keep(effect)
        if shared is not None and self._cache is not None:
            self._cache.keep(shared, effect.value)
        return rollout

    def _effect(  # noqa: PLR0913 - the columns of one row
        self,
        key: str,
        candidate: Candidate,
        row: Row,
        place: Place,
        replicate: int,
        rollout: Rollout,
        started: float,
        usage: tuple[CallUsage, ...],
    ) -> Effect:
        value = encode_rollout(rollout)
        if row.split != "heldout":
            value["inputs"] = _shown(row.example)
        ended = time.time()
        return Effect(
            key,
            "rollout",
            value,
            role="task",
            purpose=place.purpose,
            step=place.step,
            candidate=candidate.id,
            example=row.hash,
            split=row.split,
            replicate=replicate,
            score=rollout.score,
            error=rollout.error,
            failed_in=rollout.failed_in,
            started=(started or ended) + rollout.queue_seconds,
            ended=ended,
            queued=rollout.queue_seconds,
            usage=usage,
        )

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
        where = "/".join(map(str, place))
        key = f"call/{step}/{where}/{role}/{_digest(signature, inputs, temperature)}"
        known = self.log.find(key)
        if known is not None and (found := decode_answer(known)) is not None:
            return found.outcome
        asked = self._asked(key, signature, inputs, place, role, step, temperature)
        return await asyncio.shield(self._keep_running(asked))

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
        self.purse.send("call")
        started = time.time()
        usage: tuple[CallUsage, ...] = ()
        job = CallJob(signature, inputs, self._lms.get(role), self._adapter, role, temperature, self._tariff)
        try:
            answer = await self.slots.call(job, (CALLS, max(step, 0), 0, self._number))
            usage = answer.usage
        finally:
            self.purse.returned("call", usage)
        # Scrubbed once, here: whatever is made of an answer ends in files.
        value = _strings(encode_answer(answer), self._scrub)
        error = answer.outcome.error if isinstance(answer.outcome, FailedCall) else None
        effect = Effect(
            key, "call", value, role, signature.__name__, step, str(place[0]) if place else "",
            error=error and self._scrub(error), started=started + answer.queue_seconds, ended=time.time(),
            queued=answer.queue_seconds, usage=usage,
        )  # fmt: skip
        await self.log.keep(effect)
        found = decode_answer(value)
        return answer.outcome if found is None else found.outcome

    async def work(self, key: str, place: Place, role: Role, kind: str, make: Callable[[], Any]) -> Any:
        """Carry out a user's own function in a worker thread as one effect; it may call LMs.

        Args:
            key: Its place in the run.
            place: What it is for.
            role: Whom its LM calls are made for.
            kind: The effect's kind.
            make: Returns JSON values.
        """
        known = self.log.find(key)
        if known is not None:
            return known["value"]
        return await asyncio.shield(self._keep_running(self._worked(key, place, role, kind, make)))

    async def _worked(self, key: str, place: Place, role: Role, kind: str, make: Callable[[], Any]) -> Any:
        def metered_work() -> tuple[Any, tuple[CallUsage, ...]]:
            with metered(self._tariff, role) as meter:
                value = make()
            return value, meter.usage()

        self.purse.send(kind)
        started = time.time()
        usage: tuple[CallUsage, ...] = ()
        try:
            value, usage = await self.slots.run(metered_work, (CALLS, max(place.step, 0), 0, self._number))
        finally:
            self.purse.returned(kind, usage)
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
        """Return a decision of an earlier part of this run, or ``None`` where there is none."""
        known = self.log.find(f"decision/{place}")
        return None if known is None else known["value"]

    def _keep_running(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.ensure_future(work)
        self._flying.add(task)
        task.add_done_callback(self._landed)
        return task

    def _landed(self, task: asyncio.Task[Any]) -> None:
        self._flying.discard(task)
        if not task.cancelled():
            task.exception()  # whoever awaits it hears of it; where nobody does any more, nobody needs to

    async def drain(self) -> None:
        """Take back what waits for a slot, and commit what is in flight."""
        while self._flying:
            self.slots.withdraw(self._number)
            await asyncio.wait(self._flying)


def _shown(example: dspy.Example) -> str:
    fields = example.inputs().toDict() if len(example) else {}
    text = json.dumps(fields, default=str, ensure_ascii=False)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def _digest(signature: type[dspy.Signature], inputs: Mapping[str, Any], temperature: float | None) -> str:
    text = "\0".join(
        (signature.instructions, repr(temperature), *(f"{name}\0{inputs[name]!r}" for name in sorted(inputs)))
    )
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _strings(value: Any, change: Callable[[str], str]) -> Any:
    if type(value) is str:
        return change(value)
    if type(value) is list:
        return [_strings(one, change) for one in value]
    if type(value) is dict:
        return {key: _strings(one, change) for key, one in value.items()}
    return value
