"""What an operator is given, without a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import dspy
import pytest

from combee_dspy.events import Event
from combee_dspy.operators import OperatorInput
from combee_dspy.records import FailedCall, Lesson, Lessons
from combee_dspy.strategies import StrategyContext


class Route(dspy.Signature):
    """Route."""

    question: str = dspy.InputField()
    formula: Literal["roi", "npv", "irr"] = dspy.OutputField()


def _given(**changes: Any) -> OperatorInput:
    values: dict[str, Any] = {
        "instruction": "Answer.",
        "demonstrations": (),
        "signature": Route,
        "lessons": Lessons("route"),
        "runs": (),
    }
    values.update(changes)
    return OperatorInput(**values)


def _lessons(*texts: str) -> Lessons:
    return Lessons("route", lessons=tuple(Lesson(text) for text in texts))


def _context(*answers: dict[str, Any] | FailedCall, seed: int = 0) -> tuple[StrategyContext, list[Any]]:
    asked: list[Any] = []
    waiting = list(answers)

    def predict(signature: Any, inputs: Sequence[dict[str, Any]], *, role: str = "proposer") -> list[Any]:
        asked.extend((signature.__name__, values, role) for values in inputs)
        taken = [waiting.pop(0) for _ in inputs]
        return [answer if isinstance(answer, FailedCall) else dspy.Prediction(**answer) for answer in taken]

    events: list[Event] = []
    return StrategyContext("route", "Answer.", predict, events.append, seed=seed), asked


@pytest.fixture
def make() -> Any:
    """``make.given(**changes)``, ``make.lessons(*texts)``, ``make.context(*answers)``, ``make.Route``."""

    class Make:
        given = staticmethod(_given)
        lessons = staticmethod(_lessons)
        context = staticmethod(_context)
        Route = Route

    return Make
