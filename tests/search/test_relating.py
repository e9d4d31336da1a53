"""Calls that a budget cuts: what was paid for counts, and the cut stays where it was."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import dspy
import pytest

from combee_dspy.records import FailedCall
from combee_dspy.search._time_budget import BudgetReached
from combee_dspy.search._update import CallOrCut


class Decisions:
    """Decisions as a journal keeps them, beside a purse that pays for a validation or not."""

    def __init__(self) -> None:
        self.taken: dict[str, Any] = {}
        self.purse = SimpleNamespace(pays_validation=True)

    def past_decision(self, place: str) -> Any | None:
        return self.taken.get(place)

    async def decide(self, place: str, make: Any, *, step: int = -1) -> Any:
        return self.taken.setdefault(place, make())


def test_a_call_that_a_budget_cut_stays_cut_when_the_budget_grows() -> None:
    decisions = Decisions()
    effects = cast("Any", decisions)

    async def ask(room: int, place: str) -> Any:
        async def call(*_: Any) -> dspy.Prediction:
            if not room:
                raise BudgetReached("no calls are left")
            return dspy.Prediction(same=[])

        signature = cast("type[dspy.Signature]", None)
        asker = CallOrCut(effects, call, "answer", 3)
        return await asker(signature, {}, ("self", place), "reflector")

    async def run() -> list[Any]:
        asked = [
            await ask(1, "first"),
            await ask(0, "second"),
            await ask(1, "second"),
            await ask(1, "first"),
        ]
        decisions.purse.pays_validation = False
        with pytest.raises(BudgetReached):
            await ask(0, "third")
        return asked

    first, cut, again, kept = asyncio.run(run())
    assert isinstance(first, dspy.Prediction) and isinstance(kept, dspy.Prediction)
    assert isinstance(cut, FailedCall) and again == cut and "no calls are left" in cut.error
    assert list(decisions.taken) == ["cut-call/answer/3/self/second"]
