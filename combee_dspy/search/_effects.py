"""The one way from a search to the world: every effect looked up, bought in a slot, committed, then
used.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import dspy

from combee_dspy.costs import metered
from combee_dspy.events import WarningRaised
from combee_dspy.hashing import canonical_json
from combee_dspy.journal import Effect, RunLog
from combee_dspy.lms import adapter_for
from combee_dspy.records import CallUsage, FailedCall, Role, Rollout, described
from combee_dspy.rollouts import (
    Answer,
    CallJob,
    Check,
    RolloutTimeoutError,
    decode_answer,
    decode_rollout,
    encode_answer,
    note_meter,
)
from combee_dspy.search._budget import Purse, at_most
from combee_dspy.search._buyer import Buyer
from combee_dspy.search._candidates import (
    Candidate,
    Compilation,
    EffectPlace,
    Row,
    SharedParts,
)
from combee_dspy.search._privacy import Texts
from combee_dspy.search._rolling import CALLS, ROLLOUTS, VALIDATION, Rolling, queued

__all__ = ["VALIDATION", "Effects", "silence"]

logger = logging.getLogger("combee_dspy")

T = TypeVar("T")


class Effects:
    """Buys effects, each once. Lives on the search's event loop.

    What is in flight is committed even where nobody waits for it any more: it
    has been paid for.

    Args:
        task: What is compiled.
        shared: Slots, cache and tariff. Borrowed.
        log: The run's part of the journal. Borrowed.
        purse: Grants what is bought.
        lms: LM by role; a role without one uses DSPy's own.
        decided: Returns what an earlier run decided in a place, or ``None``.
        texts: What is done to texts: what follows from an answer stands in files and prompts.
    """

    def __init__(
        self,
        task: Compilation,
        shared: SharedParts,
        log: RunLog,
        purse: Purse,
        *,
        lms: Mapping[Role, dspy.BaseLM | None],
        decided: Callable[[str], Any | None],
        texts: Texts,
    ) -> None:
        self.log = log
        self.purse = purse
        self.slots = shared.slots
        self.workers = shared.workers
        self.metric: Callable[..., Any] = task.settings.metric
        self.texts = texts
        self._task = task
        self._tariff = shared.tariff
        self._lms = lms
        self._decided = decided
        self._flying: dict[str, asyncio.Task[Any]] = {}
        self._warnings: set[str] = set()
        self.buyer = Buyer(shared.slots, log, purse, texts, self.warn)
        self._rolling = Rolling(task, shared, purse, self.buyer, texts, self.warn)
        self.programs = self._rolling.programs

    def key(self, key: str, place: EffectPlace) -> str:
        """Return the key of a rollout, or of what is said of one: another in each place where none
        is used twice.
        """
        if self._task.settings.cache is False:
            return f"{key}/{place.purpose}/{place.step}"
        return key

    def rollout(
        self,
        candidate: Candidate,
        row: Row,
        place: EffectPlace,
        *,
        lane: int = ROLLOUTS,
        replicate: int = 0,
        counted: bool = True,
    ) -> Awaitable[Rollout]:
        """Return a rollout that is under way, bought by now, or already there. Await it as often as
        needed.

        Args:
            candidate: Whose program.
            row: The example.
            place: What it is for.
            lane: How urgent it is among this search's effects.
            replicate: Which draw, where the same rollout is wanted several times.
            counted: Whether the budget counts it now; else when an update asks for it, which has
                room for it.

        Raises:
            BudgetReached: The budget leaves no room for it.
            InfrastructureError: The service kept failing.
        """
        key = self.key(row.rollout_key(candidate, replicate), place)
        if place.purpose != "heldout" and counted:
            self.purse.count(key, place.step)
        return self.once(
            key,
            partial(decode_rollout, row=row.fields),
            lambda: self._rolling.buy(key, candidate, row, place, lane, replicate),
        )

    def warn(self, text: str, *, step: int = -1) -> None:
        """Tell people what they should know, once: in the log, and in the journal."""
        if text not in self._warnings:
            self._warnings.add(text)
            logger.warning("%s", text)
            self.log.emit(WarningRaised(text), step=step)

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
        inputs = self.texts.values(inputs)
        # Another question in the same place is another call.
        text = canonical_json([signature.instructions, temperature, inputs])
        digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        key = f"call/{step}/{'/'.join(map(str, place))}/{role}/{digest}"
        component = str(place[0]) if place else ""
        effect = Effect(key, "call", {}, role, signature.__name__, step, component)
        lm = self._lms.get(role)
        seconds = self._task.settings.validation.rollout_seconds
        job = CallJob(
            signature, inputs, lm, adapter_for(lm), role, temperature, self._tariff, seconds
        )
        answer: Answer = await self.once(
            key, decode_answer, lambda: self._buy_call(effect, job, text)
        )
        return answer.outcome

    async def _buy_call(self, effect: Effect, job: CallJob, text: str) -> Answer:
        async def ask(check: Check | None) -> tuple[Answer, tuple[CallUsage, ...]]:
            answer = await self.slots.call(job, self._before_rollouts(effect.step), check)
            return answer, answer.usage

        answer, effect = await self.buyer.buy(
            effect, ask, lambda: at_most((job.lm or dspy.settings.lm,), (text,), self._tariff)
        )
        # Scrubbed once, here: whatever is made of an answer ends in files.
        value = self.texts.scrubbed(encode_answer(answer))
        failed = (
            self.texts.scrub(answer.outcome.error)
            if isinstance(answer.outcome, FailedCall)
            else None
        )
        stored = decode_answer(value) or answer
        await self.buyer.keep(
            replace(queued(effect, answer.queue_seconds), value=value, error=failed), stored
        )
        return stored

    async def work(
        self,
        key: str,
        place: EffectPlace,
        role: Role,
        kind: str,
        make: Callable[[], Any],
        late: Callable[[str], Any] | None = None,
    ) -> Any:
        """Carry out a user's own function in a worker thread as one effect; it may call LMs.

        Args:
            key: Its place in the run.
            place: What it is for.
            role: Whom its LM calls are made for.
            kind: The effect's kind.
            make: Returns JSON values.
            late: Returns what stands in where ``make`` takes longer than a rollout may; ``None``
                for no such limit.
        """
        effect = Effect(key, kind, {}, role, place.purpose, place.step, place.component)
        result: dict[str, Any] = await self.once(
            key, dict, lambda: self._worked(effect, role, make, late)
        )
        return result["value"]

    async def _worked(
        self, effect: Effect, role: Role, make: Callable[[], Any], late: Callable[[str], Any] | None
    ) -> dict[str, Any]:
        def metered_work() -> tuple[Any, tuple[CallUsage, ...]]:
            with metered(self._tariff, role) as meter:
                note_meter(meter)
                try:
                    outcome = self.texts.scrubbed(make())
                except Exception as error:  # noqa: BLE001 - raised again once its calls are in the books
                    outcome = error
                except BaseException as error:  # noqa: BLE001 - no exit of the user's code ends a worker
                    outcome = RuntimeError(described(error))
            return outcome, meter.usage()

        async def run(check: Check | None) -> tuple[Any, tuple[CallUsage, ...]]:
            seconds = None if late is None else self._task.settings.validation.rollout_seconds
            try:
                return await self.slots.run(
                    metered_work, self._before_rollouts(effect.step), check, seconds
                )
            except RolloutTimeoutError as error:
                if late is None:
                    raise
                self.warn(f"The metric's feedback was given up: {error}")
                return late(described(error)), error.usage

        answer, effect = await self.buyer.buy(effect, run)
        value = {"value": answer}
        await self.buyer.keep(replace(effect, value=value), value)
        return value

    async def decide(self, place: str, make: Callable[[], Any], *, step: int = -1) -> Any:
        """Return a decision that depends on the clock, the bill or the service: what was decided
        once stays decided.

        Args:
            place: What is decided, once in a run.
            make: Decides; returns JSON values.
            step: The update.
        """
        key = f"decision/{place}"
        if (entry := self.log.find(key)) is not None:
            return entry["value"]
        before = self._decided(key)
        value = make() if before is None else before["value"]
        await self.log.keep(
            Effect(key, "decision", {"value": value}, purpose=place.split("/")[0], step=step)
        )
        return value

    def past_decision(self, place: str) -> Any | None:
        """Return a decision that was taken before, by this run or the one that it replays; ``None``
        for none.
        """
        key = f"decision/{place}"
        entry = self.log.find(key) or self._decided(key)
        return None if entry is None else entry["value"]

    def once(
        self,
        key: str,
        decode: Callable[[Any], T | None],
        make: Callable[[], Coroutine[Any, Any, T]],
    ) -> Awaitable[T]:
        """Return an effect that is under way, or begin it; it goes on where whoever waits for it is
        cancelled.
        """
        task = self._flying.get(key)
        if task is None:
            task = self._flying[key] = asyncio.ensure_future(self._find(key, decode, make))
            task.add_done_callback(partial(self._landed, key))
        shared = asyncio.shield(task)
        shared.add_done_callback(silence)
        return shared

    def _landed(self, key: str, task: asyncio.Task[Any]) -> None:
        del self._flying[key]
        silence(task)

    async def _find(
        self,
        key: str,
        decode: Callable[[Any], T | None],
        make: Callable[[], Coroutine[Any, Any, T]],
    ) -> T:
        """Return what an effect returned before, as far as it can be had again; else buy it."""
        if key in self.buyer.unkept:
            earlier: T = self.buyer.unkept[key]
            return earlier
        value = self.log.find(key)
        before = None if value is None else decode(value)
        return await make() if before is None else before

    def _before_rollouts(self, step: int) -> tuple[int, int, int, int]:
        return CALLS, max(step, 0), 0, self._task.number

    async def drain(self, within: float | None = None) -> None:
        """Take back what waits for the budget or for a slot, and commit what is in flight.

        What has not ended within so many seconds is given up: what it has cost is kept, and no
        result.
        """
        with self.slots.refusing(self._task.number):
            while self._flying:
                self.purse.withdraw()
                self.buyer.start.withdraw()
                _, late = await asyncio.wait(self._flying.values(), timeout=within)
                for task in late:
                    task.cancel()
                within = None


def silence(future: asyncio.Future[Any]) -> None:
    """Take note of how a future has ended, so that nobody is warned of a failure that nobody waits
    for.
    """
    if not future.cancelled():
        future.exception()  # whoever awaits it hears of it all the same
