"""The one way from a search to the world: every effect looked up, bought in a slot, committed, then
used.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
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
    RolloutJob,
    RolloutTimeoutError,
    decode_answer,
    decode_rollout,
    encode_answer,
    encode_rollout,
    is_late,
    lms_of,
    note_meter,
    rollout_with_texts,
    takes_trace,
)
from combee_dspy.search._budget import Purse, at_most
from combee_dspy.search._buyer import Buyer
from combee_dspy.search._candidates import (
    Candidate,
    Compilation,
    Place,
    Programs,
    Row,
    Shared,
    another_draw,
)
from combee_dspy.search._privacy import Texts, shown
from combee_dspy.search._scales import ScaleWarning

__all__ = ["VALIDATION", "Effects", "heard"]

logger = logging.getLogger("combee_dspy")

T = TypeVar("T")

CALLS, ROLLOUTS, VALIDATION = 0, 1, 2
"""Lanes, the most urgent first: what many rollouts wait for goes before what few wait for."""


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
        shared: Shared,
        log: RunLog,
        purse: Purse,
        *,
        lms: Mapping[Role, dspy.BaseLM | None],
        decided: Callable[[str], Any | None],
        texts: Texts,
    ) -> None:
        settings = task.settings
        self.log = log
        self.purse = purse
        self.slots = shared.slots
        self.workers = shared.workers
        self.metric: Callable[..., Any] = settings.metric
        self.programs = Programs(
            partial(settings.artifact.build, task.student), self.metric, settings.failure_score
        )
        self._failure_score = settings.failure_score
        self._scale = ScaleWarning(log, settings.perfect_score)
        self._memoize = settings.cache is not False
        self._sees_trace = takes_trace(self.metric)
        self._number = task.number
        self._cache = shared.cache
        self._tariff = shared.tariff
        self._lms = lms
        self._decided = decided
        self.texts = texts
        self._scrub = texts.scrub
        self._flying: dict[str, asyncio.Task[Any]] = {}
        self.buyer = Buyer(shared.slots, log, purse, texts)
        self._rollout_seconds: float | None = settings.validation.rollout_seconds
        self._told_late = False

    def key(self, key: str, place: Place) -> str:
        """Return the key of a rollout, or of what is said of one: another in each place where none
        is used twice.
        """
        return key if self._memoize else f"{key}/{place.purpose}/{place.step}"

    def rollout(
        self,
        candidate: Candidate,
        row: Row,
        place: Place,
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
        # A row is the same one in whichever split and update it stands.
        key = self.key(f"rollout/{candidate.id}/{row.hash[:16]}/{replicate}", place)
        if place.purpose != "heldout" and counted:
            self.purse.count(key, place.step)
        return self.once(
            key,
            partial(decode_rollout, row=row.fields),
            lambda: self._rolled(key, candidate, row, place, lane, replicate),
        )

    async def _rolled(
        self, key: str, candidate: Candidate, row: Row, place: Place, lane: int, replicate: int
    ) -> Rollout:
        program, cache = self.programs.of(candidate, replicate), self._cache
        effect = Effect(
            key,
            "rollout",
            {},
            "task",
            place.purpose,
            place.step,
            candidate=candidate.id,
            example=row.hash,
            split=row.split,
            replicate=replicate,
        )
        # What was kept with other settings of privacy holds more, or less, than this run may see.
        shared = (
            f"{self.programs.fingerprint(candidate)}/{row.hash}/{replicate}{self.texts.print}"
            if cache
            else ""
        )
        if (
            cache is not None
            and (cached := decode_rollout(cache.find(shared), row.fields)) is not None
        ):
            now = time.time()
            await self.buyer.keep(
                self._of_rollout(replace(effect, started=now, ended=now), cached, row), cached
            )
            return cached
        job = RolloutJob(
            program,
            row.example,
            row.hash,
            self.metric,
            self._failure_score,
            self._tariff,
            self._sees_trace,
            seconds=self._rollout_seconds,
        )

        urgency = lane, max(place.step, 0)
        if (
            self.purse.limits.seconds is not None
            and place.step < 0
            and place.purpose == "validation"
        ):
            # The student's validation: without it a run whose time is over has no result.
            urgency = ROLLOUTS, -1

        async def run(check: Check | None) -> tuple[Rollout | Exception, tuple[CallUsage, ...]]:
            priority = (*urgency, row.index, self._number)
            with dspy.context(lm=another_draw(dspy.settings.lm, replicate)):
                rollout = await self.slots.rollout(job, priority, check)
            self._scale.look(rollout.score)
            return rollout, rollout.usage

        texts = candidate.texts.values()
        rollout, effect = await self.buyer.buy(
            effect,
            run,
            lambda: at_most(lms_of(program), (*texts, shown(row.example, None)), self._tariff),
        )
        # Scrubbed before anything follows from it: feedback and errors end in prompts and files.
        if self.texts.redacts:
            rollout = rollout_with_texts(rollout, self._scrub)
        else:
            told = None if rollout.error is None else self._scrub(rollout.error)
            rollout = replace(rollout, feedback=self._scrub(rollout.feedback), error=told)
        effect = self._of_rollout(_queued(effect, rollout.queue_seconds), rollout, row)
        if (masked := self.texts.scrubbed(effect.value)) != effect.value:  # a model has said a key
            effect, rollout = (
                replace(effect, value=masked),
                decode_rollout(masked, row.fields) or rollout,
            )
        await self.buyer.keep(effect, rollout)
        row.check_unchanged()
        # What a service did, or a limit on time, says nothing of the rollout when another run asks
        # for it.
        if cache is not None and rollout.failed_in != "service" and not is_late(rollout):
            cache.keep(shared, effect.value)
        if is_late(rollout):
            self._tell_late(
                f"A rollout was given up in the {rollout.failed_in}, and counts as failed:"
                f" {rollout.error}"
            )
        return rollout

    def _tell_late(self, text: str) -> None:
        if not self._told_late:
            self._told_late = True
            logger.warning("%s", text)
            self.log.emit(WarningRaised(text))

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
        job = CallJob(signature, inputs, lm, adapter_for(lm), role, temperature, self._tariff)
        answer: Answer = await self.once(key, decode_answer, lambda: self._asked(effect, job, text))
        return answer.outcome

    async def _asked(self, effect: Effect, job: CallJob, text: str) -> Answer:
        async def ask(check: Check | None) -> tuple[Answer, tuple[CallUsage, ...]]:
            answer = await self.slots.call(job, self._before_rollouts(effect.step), check)
            return answer, answer.usage

        answer, effect = await self.buyer.buy(
            effect, ask, lambda: at_most((job.lm or dspy.settings.lm,), (text,), self._tariff)
        )
        # Scrubbed once, here: whatever is made of an answer ends in files.
        value = self.texts.scrubbed(encode_answer(answer))
        failed = (
            self._scrub(answer.outcome.error) if isinstance(answer.outcome, FailedCall) else None
        )
        found = decode_answer(value) or answer
        await self.buyer.keep(
            replace(_queued(effect, answer.queue_seconds), value=value, error=failed), found
        )
        return found

    async def work(
        self,
        key: str,
        place: Place,
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
        found: dict[str, Any] = await self.once(
            key, dict, lambda: self._worked(effect, role, make, late)
        )
        return found["value"]

    async def _worked(
        self, effect: Effect, role: Role, make: Callable[[], Any], late: Callable[[str], Any] | None
    ) -> dict[str, Any]:
        def metered_work() -> tuple[Any, tuple[CallUsage, ...]]:
            with metered(self._tariff, role) as meter:
                note_meter(meter)
                try:
                    made = self.texts.scrubbed(make())
                except Exception as error:  # noqa: BLE001 - raised again once its calls are in the books
                    made = error
                except BaseException as error:  # noqa: BLE001 - no exit of the user's code ends a worker
                    made = RuntimeError(described(error))
            return made, meter.usage()

        async def run(check: Check | None) -> tuple[Any, tuple[CallUsage, ...]]:
            seconds = None if late is None else self._rollout_seconds
            try:
                return await self.slots.run(
                    metered_work, self._before_rollouts(effect.step), check, seconds
                )
            except RolloutTimeoutError as error:
                if late is None:
                    raise
                self._tell_late(f"The metric's feedback was given up: {error}")
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
        if (known := self.log.find(key)) is not None:
            return known["value"]
        before = self._decided(key)
        value = make() if before is None else before["value"]
        await self.log.keep(
            Effect(key, "decision", {"value": value}, purpose=place.split("/")[0], step=step)
        )
        return value

    def known(self, place: str) -> Any | None:
        """Return a decision that was taken before, by this run or the one that it replays; ``None``
        for none.
        """
        key = f"decision/{place}"
        known = self.log.find(key) or self._decided(key)
        return None if known is None else known["value"]

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
            task = self._flying[key] = asyncio.ensure_future(self._found(key, decode, make))
            task.add_done_callback(partial(self._landed, key))
        shared = asyncio.shield(task)
        shared.add_done_callback(heard)
        return shared

    def _landed(self, key: str, task: asyncio.Task[Any]) -> None:
        del self._flying[key]
        heard(task)

    async def _found(
        self,
        key: str,
        decode: Callable[[Any], T | None],
        make: Callable[[], Coroutine[Any, Any, T]],
    ) -> T:
        """Return what an effect returned before, as far as it can be had again; else buy it."""
        if key in self.buyer.kept:
            kept: T = self.buyer.kept[key]
            return kept
        value = self.log.find(key)
        before = None if value is None else decode(value)
        return await make() if before is None else before

    def _of_rollout(self, effect: Effect, rollout: Rollout, row: Row) -> Effect:
        value = encode_rollout(rollout, row.fields)
        if row.split != "heldout":
            value["inputs"] = shown(self.texts.example(row.example))
        return replace(
            effect,
            value=value,
            score=rollout.score,
            error=rollout.error,
            failed_in=rollout.failed_in,
        )

    def _before_rollouts(self, step: int) -> tuple[int, int, int, int]:
        return CALLS, max(step, 0), 0, self._number

    async def drain(self, within: float | None = None) -> None:
        """Take back what waits for the budget or for a slot, and commit what is in flight.

        What has not ended within so many seconds is given up: what it has cost is kept, and no
        result.
        """
        with self.slots.refusing(self._number):
            while self._flying:
                self.purse.withdraw()
                self.buyer.start.withdraw()
                _, late = await asyncio.wait(self._flying.values(), timeout=within)
                for task in late:
                    task.cancel()
                within = None


def heard(future: asyncio.Future[Any]) -> None:
    """Take note of how a future has ended, so that nobody is warned of a failure that nobody waits
    for.
    """
    if not future.cancelled():
        future.exception()  # whoever awaits it hears of it all the same


def _queued(effect: Effect, seconds: float) -> Effect:
    return replace(effect, started=effect.started + seconds, queued=seconds)
