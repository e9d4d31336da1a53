"""A context whose calls a script answers, and reflections that arrive in any order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dspy

from combee_dspy.events import AnswersIgnored, WarningRaised
from combee_dspy.records import FailedCall, Reflection
from combee_dspy.strategies import StrategyContext


@dataclass(frozen=True)
class Call:
    name: str
    inputs: Mapping[str, Any]
    place: tuple[str | int, ...]

    @property
    def records(self):
        return self.inputs["examples_with_feedback"]


class World:
    """Answers calls by ``script(name, inputs)``, after ``turns()`` turns of the event loop.

    Attributes:
        calls: In the order in which they were made.
        warnings: Texts of warnings, and reasons why parts of answers were ignored.
        cancelled: Calls that were cancelled in flight.
    """

    def __init__(self, script, turns=lambda: 0, text="Answer.", **context):
        self.script, self.turns = script, turns
        self.calls: list[Call] = []
        self.warnings: list[str] = []
        self.cancelled = 0
        self.context = StrategyContext("answer", text, self._answer, self._note, **context)

    async def _answer(self, signature, inputs, place, role):
        self.calls.append(Call(signature.__name__, inputs, place))
        assert set(inputs) == set(signature.input_fields)
        assert role == "proposer"
        try:
            await turns(self.turns())
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        answer = self.script(signature.__name__, inputs)
        return answer if isinstance(answer, FailedCall) else dspy.Prediction(**answer)

    def _note(self, event):
        assert isinstance(event, WarningRaised | AnswersIgnored)
        self.warnings.extend([event.text] if isinstance(event, WarningRaised) else event.reasons)

    @property
    def counts(self):
        names = [call.name for call in self.calls]
        return {name: names.count(name) for name in dict.fromkeys(names)}

    def run(self, aggregator, reflections):
        """Aggregate reflections that are all there."""
        return asyncio.run(self.stream(aggregator, reflections, range(len(reflections)), 0))

    async def stream(self, aggregator, reflections, order, pause=3):
        """Aggregate reflections that arrive one after another, in this order."""
        futures = pending(len(reflections))
        task = asyncio.ensure_future(aggregator.aggregate(futures, self.context))
        for position in order:
            await turns(pause)
            futures[position].set_result(reflections[position])
        return await task


async def turns(count):
    for _ in range(count):
        await asyncio.sleep(0)


def pending(count):
    loop = asyncio.get_running_loop()
    return [loop.create_future() for _ in range(count)]


def at_random(seed):
    stream = random.Random(seed)
    return lambda: stream.randrange(9)


def mistakes(n):
    """Reflections, each of which teaches one fact."""
    return [
        Reflection(i, {"Inputs": {"question": f"q{i}"}, "Feedback": f"fact {i}"}) for i in range(n)
    ]


def learner(name, inputs):
    """Learn every fact that is shown, and keep all lessons of all lists."""
    if name == "MergeLessons":
        lists = inputs["lesson_lists"]
        return {"lessons": list(dict.fromkeys(text for texts in lists for text in texts))}
    facts = [record["Feedback"] for record in inputs["examples_with_feedback"]]
    if name in ("LearnFromExamples", "AddLessons", "StringSignature"):
        return {"lessons": [f"Remember {fact}." for fact in facts]}
    assert name in ("RewriteInstruction", "RewriteWithinConstraints")
    return {"new_instruction": " ".join(facts)}


def facts(lessons):
    return {
        int(lesson.text.removeprefix("Remember fact ").rstrip(".")) for lesson in lessons.lessons
    }
