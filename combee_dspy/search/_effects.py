"""The one way from a search to the world: an effect is looked up, else done, committed, then used.

What happens to a rollout, from request to row:

1. :meth:`Effects.rollout` counts it, and :meth:`Effects.once` looks it up: under way, in memory, in
   the journal. What is there is not bought.
2. ``_rollouts`` looks in the cache that runs share, else makes the job.
3. ``_buyer`` reserves its maximum cost in the budget (``_budget``), which may have it wait, or end
   the run.
4. Slots (``combee_dspy.rollouts``) give it its turn. Just before it is sent, its reservation is
   committed: a kill from here on leaves a trace.
5. On a 429 or an error that may pass, slots wait and send it again, if the budget has room for
   more calls. A whole attempt that failed is booked and committed as a row ``failed`` first.
6. The end: its cost is booked, the rest of the reservation is given back, its texts are scrubbed,
   and its row is committed. Then whoever asked gets it.

A kill before 6 leaves the reservation alone: the next part of the run counts the mean of its kind,
and buys the rollout again. A kill after 6 leaves the row, which step 1 finds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import dspy

from combee_dspy.events import WarningRaised
from combee_dspy.hashing import canonical_json
from combee_dspy.journal import Effect, RunLog
from combee_dspy.lms import adapter_for
from combee_dspy.records import FailedCall, Role, Rollout
from combee_dspy.rollouts import CallJob, decode_answer, decode_rollout
from combee_dspy.search._budget import Purse
from combee_dspy.search._buyer import Buyer, WorkError
from combee_dspy.search._calls import UserWork, buy_call, buy_work, call_effect
from combee_dspy.search._candidates import (
    CALLS,
    ROLLOUTS,
    Candidate,
    Compilation,
    EffectPlace,
    Row,
    SharedParts,
)
from combee_dspy.search._privacy import Texts
from combee_dspy.search._rollouts import RolloutBuyer
from combee_dspy.search._time_budget import BudgetReached

logger = logging.getLogger("combee_dspy")

T = TypeVar("T")


@dataclass(eq=False)
class Effects:
    """Buys effects, each once. Lives on the search's event loop.

    What is in flight is committed even where nobody waits for it any more: it is paid for.

    Attributes:
        task: What is compiled.
        shared: Slots, cache and tariff. Borrowed.
        log: The run's part of the journal. Borrowed.
        purse: The budget.
        lms: LM by role; a role without one uses DSPy's own.
        decided: Returns what an earlier run decided in a place, or ``None``.
        texts: Scrubs texts before anything follows from them.
        warnings: What people were warned of.
        refused: Whether a limit has refused an effect.
    """

    task: Compilation
    shared: SharedParts
    log: RunLog
    purse: Purse
    lms: Mapping[Role, dspy.BaseLM | None]
    decided: Callable[[str], Any | None]
    texts: Texts

    def __post_init__(self) -> None:
        self.emit, self.slots = self.log.emit, self.shared.slots
        self.metric: Callable[..., Any] = self.task.settings.metric
        self._seconds = self.task.settings.validation.rollout_seconds
        self._under_way: dict[str, asyncio.Task[Any]] = {}
        self.warnings: set[str] = set()
        self.refused = False
        self.buyer = Buyer(self.slots, self.log, self.purse, self.texts, self.warn)
        self._rollouts = RolloutBuyer(self.task, self.shared, self.buyer)
        self.programs = self._rollouts.programs

    def key(self, key: str, place: EffectPlace) -> str:
        """Return the key of a rollout, or of feedback on one: in each place one without a cache."""
        if self.task.settings.cache is False:
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
        """Return a rollout, bought unless it is there or under way. Await it as often as needed.

        Args:
            candidate: Whose program.
            row: The example.
            place: What it is for.
            lane: How urgent it is among this search's effects.
            replicate: Which draw, where the same rollout is wanted several times.
            counted: Whether the budget counts it now; else when an update asks for it.

        Raises:
            BudgetReached: The budget leaves no room for it.
            InfrastructureError: The service kept failing.
        """
        key = self.key(row.rollout_key(candidate, replicate), place)
        if place.purpose != "heldout" and counted:
            self.purse.count(key, place.step)
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
        return self.once(
            key,
            partial(decode_rollout, row=row.fields),
            lambda: self._rollouts.buy(effect, candidate, row, lane),
        )

    def warn(self, text: str, *, step: int = -1) -> None:
        """Warn people in the log and in the journal, once."""
        if text not in self.warnings:
            self.warnings.add(text)
            logger.warning("%s", text)
            self.emit(WarningRaised(text, logged=True), step=step)

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
        question = canonical_json([signature.instructions, temperature, inputs])
        effect = call_effect(signature, place, role, question, step)
        lm = self.lms.get(role)
        job = CallJob(
            signature,
            inputs,
            lm,
            adapter_for(lm),
            role,
            temperature,
            self.shared.tariff,
            self._seconds,
        )
        priority = self._before_rollouts(step)
        answer = await self.once(
            effect.key, decode_answer, lambda: buy_call(self.buyer, effect, job, question, priority)
        )
        return answer.outcome

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
        seconds = None if late is None else self._seconds
        work = UserWork(make, role, self.shared.tariff, seconds, late)
        priority = self._before_rollouts(place.step)
        try:
            result: dict[str, Any] = await self.once(
                key, dict, lambda: buy_work(self.buyer, effect, work, priority)
            )
        except WorkError as failure:
            raise failure.error from None
        return result["value"]

    async def decide(self, place: str, make: Callable[[], Any], *, step: int = -1) -> Any:
        """Decide once what depends on the clock, the bill or the service; return the decision.

        Args:
            place: What is decided, once in a run.
            make: Decides; returns JSON values.
            step: The update.
        """
        key = f"decision/{place}"
        if (entry := self.log.find(key)) is not None:
            return entry["value"]
        before = self.decided(key)
        value = make() if before is None else before["value"]
        await self.log.keep(
            Effect(key, "decision", {"value": value}, purpose=place.split("/")[0], step=step)
        )
        return value

    def past_decision(self, place: str) -> Any | None:
        """Return a decision of this run, or of the one that it replays; ``None`` for none."""
        key = f"decision/{place}"
        entry = self.log.find(key) or self.decided(key)
        return None if entry is None else entry["value"]

    def once(
        self,
        key: str,
        decode: Callable[[Any], T | None],
        make: Callable[[], Coroutine[Any, Any, T]],
    ) -> Awaitable[T]:
        """Return an effect that is under way, or look it up and else begin it.

        It goes on where whoever waits for it is cancelled.
        """
        task = self._under_way.get(key)
        if task is None:
            task = self._under_way[key] = asyncio.ensure_future(self._find(key, decode, make))
            task.add_done_callback(partial(self._landed, key))
        shared = asyncio.shield(task)
        shared.add_done_callback(silence)
        return shared

    def _landed(self, key: str, task: asyncio.Task[Any]) -> None:
        del self._under_way[key]
        if not task.cancelled():
            self.refused |= isinstance(task.exception(), BudgetReached)

    async def _find(
        self,
        key: str,
        decode: Callable[[Any], T | None],
        make: Callable[[], Coroutine[Any, Any, T]],
    ) -> T:
        if key in self.buyer.in_memory:
            result: T | None = self.buyer.in_memory[key]
        else:
            value = self.log.find(key)
            result = None if value is None else decode(value)
        return await make() if result is None else result

    def _before_rollouts(self, step: int) -> tuple[int, int, int, int]:
        return CALLS, max(step, 0), 0, self.task.number

    async def drain(self, within: float | None = None) -> None:
        """Cancel what waits for the budget or for a slot, and commit what is in flight.

        What has not ended within so many seconds is given up: its cost is kept, and no result.
        """
        with self.slots.refusing(self.task.number):
            while self._under_way:
                self.purse.withdraw()
                self.buyer.start.withdraw()
                _, late = await asyncio.wait(self._under_way.values(), timeout=within)
                for task in late:
                    task.cancel()
                within = None


async def cancel(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks, and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def silence(future: asyncio.Future[Any]) -> None:
    """Keep asyncio from warning of an error that nobody waits for; whoever does gets it."""
    if not future.cancelled():
        future.exception()
