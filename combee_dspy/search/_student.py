"""The student's validation: it runs beside the first updates and joins the pool first."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import NoReturn

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import Rollout
from combee_dspy.search._budget import BudgetReached
from combee_dspy.search._candidates import Compilation, EffectPlace
from combee_dspy.search._effects import VALIDATION, Effects
from combee_dspy.search._failures import Failures
from combee_dspy.search._pool import CandidatePool

__all__ = ["Student"]

Validation = Mapping[int, Sequence[Rollout]]


@dataclass(eq=False)
class Student:
    """Validates the student and joins it to the pool, once. Lives on the search's loop.

    Nobody reads its scores before the first updates end, so its rollouts come behind theirs. They
    come first where updates go one after another, and where a limit on cost or time may end the
    run: without these scores it has no result.
    """

    task: Compilation
    effects: Effects
    pool: CandidatePool
    failures: Failures
    _released: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _validation: asyncio.Task[Validation] | None = field(default=None, init=False)

    def promise(self) -> None:
        """Reserve the rollouts of the validation.

        Raises:
            ArgumentValueError: The budget does not pay for them.
        """
        most, cost = self.effects.purse.limits.rollouts, self.pool.size
        if most is not None and most < cost:
            self.refuse(f"leaves no room for the student's validation, which takes {cost} rollouts")
        self.effects.purse.promise(-1, cost)

    def start(self) -> None:
        """Begin the validation, or queue it behind the first updates."""
        if self.task.is_serial or self.effects.purse.grants:
            self._released.set()
        self._validation = asyncio.create_task(self._validate())

    async def _validate(self) -> Validation:
        await self._released.wait()
        seed, place, rows = self.task.seed, EffectPlace("validation", -1), self.pool.validation
        validation = asyncio.ensure_future(self.pool.validate(seed, rows, -1))
        first = [self.effects.rollout(seed, row, place, lane=VALIDATION) for row in rows]
        try:
            await asyncio.gather(validation, self.failures.check_first("validation", first))
        except BaseException:
            validation.cancel()
            await asyncio.gather(validation, return_exceptions=True)
            raise
        return validation.result()

    async def release(self) -> None:
        """Let the validation begin, behind the rollouts that updates have asked for by now."""
        await asyncio.sleep(0)
        self._released.set()

    async def join(self) -> None:
        """Wait until the student is in the pool.

        Raises:
            ArgumentValueError: The budget ended in the middle of its validation.
        """
        self._released.set()
        if self._validation is None:
            return
        try:
            rollouts = await asyncio.shield(self._validation)
        except BudgetReached as reached:
            self.refuse(f"ends in the middle of the student's validation: {reached}")
        self._join(rollouts)

    def _join(self, rollouts: Validation) -> None:
        if not self.pool.started:
            self.pool.join(self.task.seed, (), -1, rollouts)

    async def close(self) -> None:
        """Cancel the validation. Where it has ended, the student is the best so far: it joins."""
        if self._validation is None:
            return
        self._validation.cancel()
        (outcome,) = await asyncio.gather(self._validation, return_exceptions=True)
        if not isinstance(outcome, BaseException):
            self._join(outcome)

    def refuse(self, problem: str) -> NoReturn:
        """Refuse a budget that does not pay for the validation."""
        limits = asdict(self.effects.purse.limits)
        limits = {name: limit for name, limit in limits.items() if limit is not None}
        remedy = "Give a larger budget, or a smaller valset."
        raise ArgumentValueError("budget", limits, problem, remedy)
