"""A small world for whole runs: a code-word task that an instruction or a demonstration can teach."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dspy
import pytest

from combee_dspy.events import Event
from combee_dspy.testing._scripted_lm import ScriptedLM, ScriptedRequest, as_chat, as_json
from combee_dspy.tracking import Hook


class Recorder(Hook):
    """Keeps every event of a run."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def handle(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


ANIMALS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay", "kid", "lynx")


def code_word(animal: str) -> str:
    return animal[::-1].upper()


def answer_in_kind(request: ScriptedRequest, fields: dict[str, Any]) -> str:
    """Answer in the format that the request asks for."""
    return as_chat(fields) if "[[ ## completed ## ]]" in request.text else as_json(fields)


@dataclass
class World:
    """The task, its LMs, and what they were asked."""

    task_lm: ScriptedLM
    proposer_lm: ScriptedLM

    @staticmethod
    def examples(count: int, start: int = 0) -> list[dspy.Example]:
        rows = []
        for number in range(start, start + count):
            animal = ANIMALS[number % len(ANIMALS)]
            row = dspy.Example(question=f"Number {number}: word for {animal}?", answer=code_word(animal))
            rows.append(row.with_inputs("question"))
        return rows

    @staticmethod
    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        right = getattr(pred, "answer", None) == gold.answer
        animal = gold.question.split()[-1].rstrip("?")
        feedback = "Right." if right else f"Wrong. Rule: the word for {animal} is {gold.answer}"
        return dspy.Prediction(score=float(right), feedback=feedback)

    @staticmethod
    def student() -> dspy.Module:
        return dspy.Predict("question -> answer")


def _task_answer(request: ScriptedRequest) -> str:
    animal = re.findall(r"word for (\w+)\?", request.last)[-1]
    # The instruction stands in the system message, demonstrations in the messages before the last.
    known = f"the word for {animal} is {code_word(animal)}" in request.system
    # One worked example gives the trick away.
    shown = any(code_word(easy) in text for role, text in request.messages[:-1] for easy in ANIMALS if role != "user")
    # Two animals are known without being taught, so that there are successes to learn from.
    easy = animal in ANIMALS[:2]
    answer = code_word(animal) if known or shown or easy else "unknown"
    if "next_tool_name" in request.system:
        tool = "finish" if "observation_0" in request.last else "lookup"
        arguments = {} if tool == "finish" else {"animal": animal}
        step = {"next_thought": "look it up", "next_tool_name": tool, "next_tool_args": json.dumps(arguments)}
        return answer_in_kind(request, step)
    return answer_in_kind(request, {"reasoning": "because", "answer": answer})


def _proposer_answer(request: ScriptedRequest) -> str:
    rules = list(dict.fromkeys(re.findall(r"Rule: the word for \w+ is \w+", request.text)))
    if "new_instruction" in request.text:
        return answer_in_kind(request, {"new_instruction": "Give the code word.\n" + "\n".join(rules)})
    return answer_in_kind(request, {"lessons": rules})


@pytest.fixture
def world() -> Iterator[World]:
    proposer = ScriptedLM(_proposer_answer, model="scripted/proposer")
    made = World(ScriptedLM(_task_answer, model="scripted/task"), proposer)
    with dspy.context(lm=made.task_lm, adapter=dspy.ChatAdapter()):
        yield made
