"""A way to the LM that follows a script, and a context around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dspy
import pytest

from combee_dspy.events import Event
from combee_dspy.records import FailedCall, Reflection
from combee_dspy.strategies import StrategyContext

Script = Callable[[str, dict[str, Any]], "dict[str, Any] | FailedCall"]


class Scripted:
    """A ``PredictFn`` that asks a function of (signature name, inputs), and keeps every batch it was given."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.batches: list[tuple[str, list[dict[str, Any]]]] = []
        self.roles: set[str] = set()

    def __call__(self, signature: Any, inputs: Sequence[dict[str, Any]], *, role: str = "proposer") -> list[Any]:
        self.batches.append((signature.__name__, list(inputs)))
        self.roles.add(role)
        missing = [set(signature.input_fields) ^ set(values) for values in inputs]
        assert not any(missing), f"inputs do not fit the signature: {missing}"
        answers = [self.script(signature.__name__, values) for values in inputs]
        return [answer if isinstance(answer, FailedCall) else dspy.Prediction(**answer) for answer in answers]


def _context_of(script: Script, text: str = "Answer.", **kwargs: Any) -> tuple[StrategyContext, Scripted, list[Event]]:
    events: list[Event] = []
    predict = Scripted(script)
    return StrategyContext("answer", text, predict, events.append, iteration=2, **kwargs), predict, events


def _reflections(n: int) -> list[Reflection]:
    return [
        Reflection(i, {"Inputs": {"q": f"question {i}"}, "Generated Outputs": {"a": "?"}, "Feedback": f"fact {i}"})
        for i in range(n)
    ]


def _learner(name: str, values: dict[str, Any]) -> dict[str, Any]:
    """Write one lesson per record, and merge lists without loss."""
    if "examples_with_feedback" in values:
        field = {"SummarizeExamples": "key_points"}.get(name, "lessons")
        return {field: [f"Remember {record['Feedback']}." for record in values["examples_with_feedback"]]}
    if name == "ShortenLessons":
        return {"lessons": [lesson.removeprefix("Please remember that ") for lesson in values["long_lessons"]]}
    lists = values["lesson_lists"] if name == "MergeLessons" else values["summaries"]
    return {"lessons": list(dict.fromkeys(lesson for lessons in lists for lesson in lessons))}


@pytest.fixture
def context_of() -> Any:
    """Makes a context around a script: (context, the scripted predict, its events)."""
    return _context_of


@pytest.fixture
def learner() -> Script:
    return _learner


@pytest.fixture
def reflections() -> Callable[[int], list[Reflection]]:
    return _reflections


@pytest.fixture
def facts() -> Callable[[Any], set[int]]:
    """The facts that lessons written by the learner remember."""
    return lambda lessons: {int(x.text.removeprefix("Remember fact ").rstrip(".")) for x in lessons.lessons}
