"""What an operator is given, without a run."""

import asyncio
from dataclasses import dataclass, field
from typing import Any, Literal

import dspy
import pytest

from combee_dspy.events import WarningRaised
from combee_dspy.operators import OperatorInput
from combee_dspy.records import FailedCall, Lesson, Lessons
from combee_dspy.strategies import StrategyContext


class Route(dspy.Signature):
    """Route."""

    question: str = dspy.InputField()
    formula: Literal["roi", "npv", "irr"] = dspy.OutputField()


@dataclass
class Bench:
    """Applies operators to made-up parents, with a scripted LM.

    ``calls`` holds ``(signature's name, inputs, place, role)`` of every call, ``warnings`` and
    ``events`` what else was emitted; the last answer is given again.
    """

    calls: list[Any] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)

    def material(self, **changes):
        lessons = changes.pop("lessons", ())
        if not isinstance(lessons, Lessons):
            lessons = Lessons("route", lessons=tuple(Lesson(text) for text in lessons))
        values = {
            "instruction": "Answer.",
            "demonstrations": (),
            "signature": Route,
            "lessons": lessons,
            **changes,
        }
        return OperatorInput(**values)

    def context(self, *answers, **changes):
        waiting = list(answers)

        async def call(signature, inputs, place, role):
            self.calls.append((signature.__name__, dict(inputs), place, role))
            answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
            answer = answer(inputs) if callable(answer) else answer
            return answer if isinstance(answer, FailedCall) else dspy.Prediction(**answer)

        def emit(event):
            if isinstance(event, WarningRaised):
                self.warnings.append(event.text)
            else:
                self.events.append(event)

        return StrategyContext("route", "Answer.", call, emit, **changes)

    def apply(self, operator, *answers, seed=0, notes="", **changes):
        return asyncio.run(
            operator.apply(self.material(**changes), self.context(*answers, seed=seed, notes=notes))
        )


@pytest.fixture
def bench():
    return Bench()
