"""Small worlds for whole runs: tasks that an instruction can teach, with LMs that cost nothing."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy

from combee_dspy import Combee
from combee_dspy.testing import ScriptedLM, ScriptedRequest, as_chat, as_json
from combee_simulator import SimulatedQuestion, SimulatedTask

ANIMALS = ("ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay", "kid", "lynx")


def code_word(animal: str) -> str:
    return animal[::-1].upper()


def animal_of(question: str) -> str:
    return re.findall(r"word for (\w+)\?", question)[-1]


def in_kind(request: ScriptedRequest, fields: dict[str, Any]) -> str:
    """Answer in the format that the request asks for."""
    return as_chat(fields) if "[[ ## completed ## ]]" in request.text else as_json(fields)


def task_answer(request: ScriptedRequest) -> str:
    animal = animal_of(request.last)
    taught = f"the word for {animal} is {code_word(animal)}" in request.system
    # One worked example gives the trick away.
    shown = any(
        code_word(one) in text
        for role, text in request.messages[:-1]
        for one in ANIMALS
        if role != "user"
    )
    # Two animals are known without being taught, so that there are successes to learn from.
    answer = code_word(animal) if taught or shown or animal in ANIMALS[:2] else "unknown"
    if "next_tool_name" in request.system:
        tool = "finish" if "observation_0" in request.last else "lookup"
        arguments = {} if tool == "finish" else {"animal": animal}
        step = {
            "next_thought": "look it up",
            "next_tool_name": tool,
            "next_tool_args": json.dumps(arguments),
        }
        return in_kind(request, step)
    return in_kind(request, {"reasoning": "because", "hint": animal, "answer": answer})


def proposer_answer(request: ScriptedRequest) -> str:
    if "[[ ## contradictory ## ]]" in request.text or "`contradictory`" in request.text:
        return in_kind(request, {"same": [], "contradictory": [], "narrower": [], "empty": []})
    rules = list(dict.fromkeys(re.findall(r"Rule: the word for \w+ is \w+", request.text)))
    if "new_instruction" in request.text:
        return in_kind(request, {"new_instruction": "Give the code word.\n" + "\n".join(rules)})
    return in_kind(request, {"lessons": rules})


def metric(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> Any:
    right = getattr(pred, "answer", None) == gold.answer
    feedback = (
        "Right."
        if right
        else f"Wrong. Rule: the word for {animal_of(gold.question)} is {gold.answer}"
    )
    return dspy.Prediction(score=float(right), feedback=feedback)


def gepa_metric(score: Callable[[Any, Any, str | None], Any]) -> Any:
    """Return a metric with GEPA's five arguments, of a function of row, output and predictor."""

    def scored(
        gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
    ) -> Any:
        return score(gold, pred, pred_name)

    return scored


def examples(count: int, start: int = 0) -> list[dspy.Example]:
    found = []
    for number in range(start, start + count):
        animal = ANIMALS[number % len(ANIMALS)]
        row = dspy.Example(
            question=f"Number {number}: word for {animal}?", answer=code_word(animal)
        )
        found.append(row.with_inputs("question"))
    return found


class TwoSteps(dspy.Module):
    """Two predictors; the second one's instruction decides."""

    def __init__(self) -> None:
        super().__init__()
        self.first = dspy.Predict("question -> hint")
        self.second = dspy.Predict("question, hint -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        return self.second(question=question, hint=self.first(question=question).hint)


@dataclass
class World:
    """Code words of animals, against LMs in the process that remember what they were asked."""

    task_lm: ScriptedLM
    proposer_lm: ScriptedLM

    @classmethod
    def made(
        cls,
        task: Callable[[ScriptedRequest], str] = task_answer,
        proposer: Callable[[ScriptedRequest], str] = proposer_answer,
        **kwargs: Any,
    ) -> World:
        kwargs = {"temperature": 0.0, **kwargs}
        return cls(
            ScriptedLM(task, model="scripted/task", **kwargs),
            ScriptedLM(proposer, model="scripted/proposer", **kwargs),
        )

    @property
    def asked(self) -> int:
        return len(self.task_lm.requests) + len(self.proposer_lm.requests)

    def combee(self, **kwargs: Any) -> Combee:
        """Return an optimizer for small runs; ``metric`` may be another one."""
        given = {
            "metric": metric,
            "reflection_lm": self.proposer_lm,
            "num_threads": 4,
            "tracker": (),
            **kwargs,
        }
        if not {"budget", "auto", "max_full_evals", "max_metric_calls"} & given.keys():
            given["max_metric_calls"] = 150
        return Combee(given.pop("metric"), **given)

    def compile(
        self,
        student: dspy.Module | None = None,
        *,
        train: int = 24,
        validation: int = 12,
        heldout: int = 0,
        **kwargs: Any,
    ) -> Any:
        """Compile with LMs of this world; ``validation`` is the size of the valset, its options go
        by another name.
        """
        if "validation_options" in kwargs:
            kwargs["validation"] = kwargs.pop("validation_options")
        with dspy.context(lm=self.task_lm, adapter=dspy.ChatAdapter()):
            return self.combee(**kwargs).compile(
                dspy.Predict("question -> answer") if student is None else student,
                trainset=examples(train),
                valset=examples(validation, 100) or None,
                heldout=examples(heldout, 200) or None,
            )


GATES = SimulatedTask(
    tuple(
        SimulatedQuestion(
            f"Who guards gate number {number} at night?",
            f"guard {number}",
            "nobody",
            f"G{number % 6}",
            f"gates of kind {number % 6} have a guard of their number",
        )
        for number in range(120)
    ),
    base_rate=0.3,
)
"""What the simulated service knows: six lessons, each of which helps with a sixth of the
questions.
"""


def gate_rows(start: int, end: int) -> list[dspy.Example]:
    questions = GATES.questions[start:end]
    return [
        dspy.Example(question=one.text, answer=one.target).with_inputs("question")
        for one in questions
    ]


def gate_metric(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> Any:
    right = getattr(pred, "answer", None) == gold.answer
    number = int(gold.question.split()[4])
    return dspy.Prediction(
        score=float(right), feedback="Right." if right else f"Wrong. {GATES.questions[number].line}"
    )


def rows(place: Path | str, sql: str, *parameters: Any) -> list[dict[str, Any]]:
    """Return what a SELECT finds in the journal of a ``log_dir``."""
    with closing(sqlite3.connect(Path(place) / "journal.sqlite")) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(sql, parameters)]


def events(place: Path | str, kind: str) -> list[dict[str, Any]]:
    """Return the data of events of one kind in the order in which they came, with their update as
    ``step``.
    """
    found = rows(place, "SELECT step, component, data FROM event WHERE kind = ? ORDER BY id", kind)
    return [
        {**json.loads(row["data"]), "step": row["step"], "on": row["component"]} for row in found
    ]
