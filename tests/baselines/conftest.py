"""A small world for whole runs: three kinds of questions, and a service that can learn their lessons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import dspy
import pytest

from combee_dspy.baselines import BaselineTask
from combee_dspy.events import Event
from combee_dspy.lms import SimulatedConfig, SimulatedService, SimulatedTask
from combee_dspy.tracking import Hook


class Remember(Hook):
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.closed = 0

    def handle(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        self.closed += 1

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> dspy.Prediction:
    right = str(getattr(pred, "answer", "")) == gold.answer
    return dspy.Prediction(score=float(right), feedback=f"The answer to {gold.question} is {gold.answer}.")


@dataclass
class World:
    service: SimulatedService
    rows: list[dspy.Example]
    heard: Remember

    def task(self, **changes: Any) -> BaselineTask:
        lm = self.service.lm()
        given: dict[str, Any] = {
            "program": dspy.Predict(dspy.Signature("question -> answer", "Say what the piece is worth.")),
            "metric": metric,
            "train": tuple(self.rows[:12]),
            "validation": tuple(self.rows[12:18]),
            "heldout": tuple(self.rows[18:]),
            "task_lm": lm,
            "reflection_lm": lm,
            "budget": 60,
            "threads": 4,
            "hooks": (self.heard,),
            "probe": False,
        }
        return BaselineTask(**{**given, **changes})


@pytest.fixture
def world() -> Iterator[World]:
    rows = [
        dspy.Example(
            question=f"What is piece number {number} of kind {kind} worth in the shop today?", answer=f"{kind}{number}"
        ).with_inputs("question")
        for number in range(9)
        for kind in ("copper", "silver", "amber")
    ]
    knowledge = SimulatedTask.from_examples(
        rows, "question", "answer", key_of=lambda row: row["answer"].rstrip("0123456789"), base_rate=0.1
    )
    with SimulatedService(SimulatedConfig(time_scale=0.0), knowledge) as service:
        yield World(service, rows, Remember())
