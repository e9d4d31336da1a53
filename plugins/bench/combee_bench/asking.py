"""Strategies outside of a search: their LM calls, a number at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import dspy

from combee_dspy.costs import CostTotals, totals
from combee_dspy.records import CallUsage, FailedCall, Reflection, Role
from combee_dspy.rollouts import CallJob, Fixed, Slots, Threads

__all__ = ["Asker", "asker", "there"]


class Asker:
    """Answers what a strategy asks, and remembers what it cost.

    Args:
        slots: Carries calls out.
        lm: Who is asked.
        adapter: How prompts are written; ``None`` for DSPy's setting.

    Attributes:
        slots: As given.
    """

    def __init__(self, slots: Slots, lm: dspy.LM, adapter: Any = None) -> None:
        self.slots = slots
        self._lm = lm
        self._adapter = adapter
        self._usage: list[CallUsage] = []

    async def __call__(
        self,
        signature: type[dspy.Signature],
        inputs: Mapping[str, Any],
        place: tuple[str | int, ...],
        role: Role,
    ) -> dspy.Prediction | FailedCall:
        """Ask once."""
        answer = await self.slots.call(
            CallJob(signature, inputs, self._lm, self._adapter, role), (0,)
        )
        self._usage += answer.usage
        return answer.outcome

    def costs(self) -> CostTotals:
        """Return what calls have cost so far."""
        return totals(self._usage)


@asynccontextmanager
async def asker(lm: dspy.LM, workers: int, adapter: Any = None) -> AsyncIterator[Asker]:
    """Give an asker with so many calls in flight at once."""
    slots = Slots(Threads().start(workers), Fixed(workers))
    try:
        yield Asker(slots, lm, adapter)
    finally:
        await slots.close()


def there(reflections: Iterable[Reflection]) -> list[asyncio.Task[Reflection]]:
    """Return reflections that are there already as an aggregator awaits them."""
    return [asyncio.ensure_future(asyncio.sleep(0, reflection)) for reflection in reflections]
