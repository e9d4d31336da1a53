"""A scripted way to the LM, and reflections that arrive in any order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import dspy

from combee_dspy.events import AnswersIgnored, WarningRaised
from combee_dspy.records import FailedCall, Reflection, Role
from combee_dspy.strategies import StrategyContext

Answer = Mapping[str, Any] | FailedCall | BaseException
Script = Callable[[str, Mapping[str, Any]], Answer]


@dataclass(frozen=True)
class Call:
    name: str
    inputs: Mapping[str, Any]
    place: tuple[str | int, ...]
    role: Role

    @property
    def records(self):
        return self.inputs["examples_with_feedback"]


@dataclass
class Service:
    """Answers by a script, after as many turns of the event loop as ``turns`` says."""

    script: Script
    turns: Callable[[], int] = lambda: 0
    calls: list[Call] = field(default_factory=list)
    cancelled: int = 0

    async def __call__(self, signature, inputs, place, role):
        self.calls.append(Call(signature.__name__, inputs, place, role))
        assert set(inputs) == set(signature.input_fields)
        try:
            for _ in range(self.turns()):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        answer = self.script(signature.__name__, inputs)
        if isinstance(answer, BaseException):
            raise answer
        return answer if isinstance(answer, FailedCall) else dspy.Prediction(**answer)

    @property
    def counts(self):
        names = [call.name for call in self.calls]
        return {name: names.count(name) for name in dict.fromkeys(names)}


@dataclass
class World:
    """A context with its scripted service and what was said to it."""

    service: Service
    warnings: list[str]
    context: StrategyContext

    @classmethod
    def of(cls, script, turns=lambda: 0, text="Answer.", **kwargs):
        warnings: list[str] = []

        def emit(event):
            assert isinstance(event, WarningRaised | AnswersIgnored)
            warnings.extend([event.text] if isinstance(event, WarningRaised) else event.reasons)

        service = Service(script, turns)
        return cls(service, warnings, StrategyContext("answer", text, service, emit, **kwargs))

    def run(self, aggregator, reflections):
        """Aggregate reflections that are all there."""
        return asyncio.run(
            self.streamed(aggregator, reflections, range(len(reflections)), at_once=True)
        )

    async def streamed(self, aggregator, reflections, order, at_once=False):
        """Aggregate reflections that arrive one after another, in the order given."""
        futures = pending(len(reflections))
        task = asyncio.ensure_future(aggregator.aggregate(futures, self.context))
        for position in order:
            if not at_once:
                await turns(3)
            futures[position].set_result(reflections[position])
        return await task


async def turns(count):
    for _ in range(count):
        await asyncio.sleep(0)


def pending(count):
    loop = asyncio.get_running_loop()
    return [loop.create_future() for _ in range(count)]


def at_random(seed, most=9):
    stream = random.Random(seed)
    return lambda: stream.randrange(most)


def made(n):
    """Reflections, each of which teaches one fact."""
    return [
        Reflection(
            i,
            {
                "Inputs": {"question": f"q{i}"},
                "Generated Outputs": {"answer": "?"},
                "Feedback": f"fact {i}",
            },
        )
        for i in range(n)
    ]


def learner(name, inputs):
    """Learn every fact that is shown, and keep all lessons of all lists."""
    if name in ("LearnFromExamples", "AddLessons"):
        return {
            "lessons": [
                f"Remember {record['Feedback']}." for record in inputs["examples_with_feedback"]
            ]
        }
    if name == "MergeLessons":
        lists = inputs["lesson_lists"]
        return {"lessons": list(dict.fromkeys(text for texts in lists for text in texts))}
    assert name in ("RewriteInstruction", "RewriteWithinConstraints")
    return {
        "new_instruction": " ".join(
            record["Feedback"] for record in inputs["examples_with_feedback"]
        )
    }


def facts(lessons):
    return {
        int(lesson.text.removeprefix("Remember fact ").rstrip(".")) for lesson in lessons.lessons
    }
