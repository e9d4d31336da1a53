"""The student's validation: it runs beside the first updates and joins the pool first."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

from combee_dspy.aggregators import together
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.search._budget import BudgetReached
from combee_dspy.search._candidates import VALIDATION, Compilation, EffectPlace
from combee_dspy.search._effects import Effects, cancel
from combee_dspy.search._judging import Failures
from combee_dspy.search._pool import CandidatePool


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
    _validation: asyncio.Task[None] | None = field(default=None, init=False)

    def promise(self) -> None:
        """Reserve the rollouts of the validation.

        Raises:
            ArgumentValueError: The budget does not pay for them.
        """
        most, cost = self.effects.purse.limits.rollouts, self.pool.size
        if most is not None and most < cost:
            self.refuse(f"leaves no room for the student's validation, which takes {cost} rollouts")
        self.effects.purse.promise(-1, cost)

    def start(self) -> asyncio.Task[None]:
        """Begin the validation, behind the rollouts that are asked for by now, and return it."""
        if self._validation is None:
            self._validation = asyncio.create_task(self._validate())
        return self._validation

    async def _validate(self) -> None:
        seed, place, rows = self.task.seed, EffectPlace("validation", -1), self.pool.validation
        first = [self.effects.rollout(seed, row, place, lane=VALIDATION) for row in rows]
        results: Any = await together(
            [self.pool.validate(seed, rows, -1), self.failures.check_first("validation", first)]
        )
        self.pool.join(seed, (), -1, results[0])

    async def join(self) -> None:
        """Wait until the student is in the pool.

        Raises:
            ArgumentValueError: The budget ended in the middle of its validation.
        """
        try:
            await asyncio.shield(self.start())
        except BudgetReached as reached:
            self.refuse(f"ends in the middle of the student's validation: {reached}")

    async def close(self) -> None:
        """Cancel the validation, if it is under way."""
        if self._validation is not None:
            await cancel(self._validation)

    def refuse(self, problem: str) -> NoReturn:
        """Refuse a budget that does not pay for the validation."""
        limits = asdict(self.effects.purse.limits)
        limits = {name: limit for name, limit in limits.items() if limit is not None}
        remedy = "Give a larger budget, or a smaller valset."
        raise ArgumentValueError("budget", limits, problem, remedy)
