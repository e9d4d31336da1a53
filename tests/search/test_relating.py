"""Comparisons that a budget cuts: what was paid for counts, and the cut stays where it was."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import dspy

from combee_dspy.records import FailedCall
from combee_dspy.search._time_budget import BudgetReached
from combee_dspy.search._update import _call_or_cut


class Decisions:
    """Decisions as a journal keeps them."""

    def __init__(self) -> None:
        self.taken: dict[str, Any] = {}

    def past_decision(self, place: str) -> Any | None:
        return self.taken.get(place)

    async def decide(self, place: str, make: Any, *, step: int = -1) -> Any:
        return self.taken.setdefault(place, make())


def test_a_comparison_that_a_budget_cut_stays_cut_when_the_budget_grows() -> None:
    decisions = Decisions()
    effects = cast("Any", decisions)

    async def ask(room: int, place: str) -> Any:
        async def call(*_: Any) -> dspy.Prediction:
            if not room:
                raise BudgetReached("no calls are left")
            return dspy.Prediction(same=[])

        signature = cast("type[dspy.Signature]", None)
        return await _call_or_cut(effects, call, 3, signature, {}, ("self", place), "reflector")

    async def run() -> list[Any]:
        return [
            await ask(1, "first"),
            await ask(0, "second"),
            await ask(1, "second"),
            await ask(1, "first"),
        ]

    first, cut, again, kept = asyncio.run(run())
    assert isinstance(first, dspy.Prediction) and isinstance(kept, dspy.Prediction)
    assert isinstance(cut, FailedCall) and again == cut and "no calls are left" in cut.error
    assert list(decisions.taken) == ["relate/3/self/second"]
