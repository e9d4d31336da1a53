"""The service: Formula's questions, answers by luck, and writing calls that think."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import dspy

from combee_bench.simulated import (
    CapacityModel,
    ReasoningLaw,
    SimulatedConfig,
    SimulatedService,
    SimulatedTask,
    benchmark_task,
)
from combee_bench.simulated.answering import SimulatedModel
from combee_bench.simulated.knowledge import SimulatedQuestion
from combee_bench.simulated.laws import uniform
from combee_bench.simulated.matching import Hit, QuestionIndex
from combee_bench.simulated.requests import ChatRequest
from combee_bench.surroundings import load_rows
from combee_dspy.benchmarks import LoadedBenchmark

__all__ = ["EXAMPLES", "SLOTS", "Questions", "load_questions", "make_service"]

EXAMPLES, VALIDATION, HELDOUT, SLOTS = 240, 60, 200, 64

# Right without a lesson, with one of the same formula against another mistake, and with its own.
_UNTAUGHT, _RELATED, _TAUGHT = 0.4, 0.6, 0.9
_THINKING = 800
_REASONING = 300.0
_ATTENDED = 12
_ROWS = {"train": 500, "validation": 164, "heldout": 136}


class LuckyModel(SimulatedModel):
    """Answers by luck, drawn anew for each question and prompt."""

    def _knows(
        self, request: ChatRequest, last: int, asked: Hit, place: tuple[str, int, int]
    ) -> bool:
        key = self._questions[asked.question].key
        related = self._by_formula[_formula(key)]
        if self._taught(request.messages, last, asked, key):
            rate = _TAUGHT
        elif any(self._taught(request.messages, last, asked, other) for other in related):
            rate = _RELATED
        else:
            rate = _UNTAUGHT
        return uniform(self._seed, "luck", self._questions[asked.question].text, *place) < rate

    @cached_property
    def _by_formula(self) -> dict[str, set[str]]:
        keys: dict[str, set[str]] = {}
        for question in self._questions:
            keys.setdefault(_formula(question.key), set()).add(question.key)
        return keys


class Questions:
    """The rows of a run, and what a prompt that is noise-free scores on the held-out ones.

    Attributes:
        rows: The rows to learn from and to validate on; of ``heldout`` only some.
        task: What the model can know.
    """

    def __init__(self, rows: LoadedBenchmark, heldout: Sequence[str], task: SimulatedTask) -> None:
        self.rows = rows
        self.task = task
        self._index = QuestionIndex([question.text for question in task.questions], task.lessons)
        self._heldout = [self._asked(text) for text in heldout]

    def _asked(self, text: str) -> SimulatedQuestion:
        return self.task.questions[self._index.scan(text).hits[-1].question]

    @property
    def most(self) -> float:
        """Held-out, of 100, by all lessons that the rows to learn from teach."""
        examples = self.rows.train.examples
        return self._expected({self._asked(str(row["question"])).key for row in examples})

    def lessons(self, program: dspy.Module) -> int:
        """Return how many lessons a program's instruction holds."""
        return len(self._keys(program))

    def heldout(self, program: dspy.Module) -> float:
        """Return the expected held-out score of a program, of 100."""
        return self._expected(self._keys(program))

    def _keys(self, program: dspy.Module) -> set[str]:
        text = program.predictors()[0].signature.instructions
        return {key for _, key in self._index.scan(text).keys}

    def _expected(self, keys: set[str]) -> float:
        formulas = {_formula(key) for key in keys}
        rates = [
            _TAUGHT
            if question.key in keys
            else _RELATED
            if _formula(question.key) in formulas
            else _UNTAUGHT
            for question in self._heldout
        ]
        return 100 * sum(rates) / len(rates)


def load_questions(path: Path, seed: int) -> Questions:
    """Return the first rows of each split; held-out are the test split and more validation rows."""
    params = {"path": str(path)}
    whole = load_rows("formula", params, **_ROWS)
    task = benchmark_task(whole, seed, params=params, base_rate=_UNTAUGHT).by_mistake()
    rows = load_rows("formula", params, train=EXAMPLES, validation=VALIDATION, heldout=1)
    further = HELDOUT - len(whole.heldout.examples)
    heldout = [
        *whole.heldout.examples,
        *whole.validation.examples[VALIDATION : VALIDATION + further],
    ]
    signature = rows.signature
    rows = replace(rows, program=lambda: dspy.ChainOfThought(signature))
    return Questions(rows, [str(row["question"]) for row in heldout], task)


def make_service(questions: Questions, seed: int, time_scale: float) -> SimulatedService:
    """Return the service, not started."""
    config = SimulatedConfig(
        seed=seed,
        slots=SLOTS,
        time_scale=time_scale,
        capacity=CapacityModel.attention(_ATTENDED),
        reasoning=ReasoningLaw(_REASONING, 0.0),
        thinking=_THINKING,
    )
    return SimulatedService(config, questions.task, LuckyModel)


def _formula(key: str) -> str:
    return key.partition(".")[0]
