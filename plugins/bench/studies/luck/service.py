"""The service: Formula's questions, answers by luck, and writing calls that think."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import dspy
import orjson
from dspy.lm15 import Message, Request, Response, TextPart, Usage

from combee_bench.surroundings import load_rows
from combee_dspy.benchmarks import LoadedBenchmark
from combee_simulator import (
    CapacityModel,
    Kind,
    ReasoningLaw,
    SimulatedConfig,
    SimulatedTask,
    Tally,
    benchmark_task,
)
from combee_simulator.answering import SimulatedModel
from combee_simulator.knowledge import SimulatedQuestion
from combee_simulator.laws import uniform
from combee_simulator.matching import Hit, QuestionIndex
from combee_simulator.requests import (
    ChatRequest,
    parse_request,
    prompt_tokens,
    text_tokens,
)
from studies.luck.clock import Clock

__all__ = [
    "EXAMPLES",
    "SLOTS",
    "Engine",
    "LuckyModel",
    "Questions",
    "SureModel",
    "load_questions",
    "make_config",
    "make_lm",
]

EXAMPLES, VALIDATION, HELDOUT, SLOTS = 240, 60, 200, 64

Rates = tuple[float, float, float]
"""Right without a lesson, with one on another mistake with the same formula, and with its own."""

_LUCK: Rates = (0.4, 0.6, 0.9)
_SURE: Rates = (0.0, 0.0, 1.0)
_THINKING = 800
_REASONING = 300.0
_ATTENDED = 12
_ROWS = {"train": 500, "validation": 164, "heldout": 136}


class LuckyModel(SimulatedModel):
    """Answers by luck, drawn anew for each question and prompt."""

    rates: ClassVar[Rates] = _LUCK

    def _knows(
        self, request: ChatRequest, last: int, asked: Hit, place: tuple[str, int, int]
    ) -> bool:
        key = self._questions[asked.question].key
        related = self._by_formula[_formula(key)]
        rate, rate_related, rate_taught = self.rates
        if self._is_taught(request.messages, last, asked, key):
            rate = rate_taught
        elif any(self._is_taught(request.messages, last, asked, other) for other in related):
            rate = rate_related
        return uniform(self._seed, "luck", self._questions[asked.question].text, *place) < rate

    @cached_property
    def _by_formula(self) -> dict[str, set[str]]:
        keys: dict[str, set[str]] = {}
        for question in self._questions:
            keys.setdefault(_formula(question.key), set()).add(question.key)
        return keys


class SureModel(LuckyModel):
    """Knows nothing untaught, and all that it was taught."""

    rates = _SURE


class Questions:
    """The rows of a run, and what a prompt that is noise-free scores on the held-out ones.

    Attributes:
        rows: The rows to learn from and to validate on; of ``heldout`` only some.
        task: What the model can know.
    """

    def __init__(
        self, rows: LoadedBenchmark, heldout: Sequence[str], task: SimulatedTask, rates: Rates
    ) -> None:
        self.rows = rows
        self._rates = rates
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
        untaught, related, taught = self._rates
        rates = [
            (
                taught
                if question.key in keys
                else related
                if _formula(question.key) in formulas
                else untaught
            )
            for question in self._heldout
        ]
        return 100 * sum(rates) / len(rates)


def load_questions(path: Path, seed: int, model: type[LuckyModel]) -> Questions:
    """Return the first rows of each split; held-out are the test split and more validation rows."""
    params = {"path": str(path)}
    whole = load_rows("formula", params, **_ROWS)
    task = benchmark_task(whole, seed, params=params, base_rate=0.0).by_mistake()
    rows = load_rows("formula", params, train=EXAMPLES, validation=VALIDATION, heldout=1)
    further = HELDOUT - len(whole.heldout.examples)
    heldout = [
        *whole.heldout.examples,
        *whole.validation.examples[VALIDATION : VALIDATION + further],
    ]
    signature = rows.signature
    rows = replace(rows, program=lambda: dspy.ChainOfThought(signature))
    return Questions(rows, [str(row["question"]) for row in heldout], task, model.rates)


def make_config(seed: int, time_scale: float, model: type[LuckyModel]) -> SimulatedConfig:
    """Return the laws of a model's service: without luck, those of ``combee bench speed``."""
    plain = model is SureModel
    return SimulatedConfig(
        seed=seed,
        slots=SLOTS,
        time_scale=time_scale,
        capacity=CapacityModel.reading() if plain else CapacityModel.attention(_ATTENDED),
        reasoning=ReasoningLaw(_REASONING, 0.0),
        thinking=0 if plain else _THINKING,
    )


class Engine:
    """The service in this process, by a clock of its own; an engine of DSPy's LM.

    Attributes:
        tallies: Calls and tokens by what was asked.
    """

    supported_params = frozenset({"temperature"})
    supports_response_schema = False

    def __init__(
        self,
        questions: Questions,
        config: SimulatedConfig,
        clock: Clock,
        model: type[LuckyModel],
    ) -> None:
        self._config = config
        self._model = model(
            questions.task, config.capacity, config.seed, config.reasoning, config.wording
        )
        self._clock = clock
        self._guard = threading.Lock()
        self.tallies = {Kind.TASK: Tally(), Kind.REFLECT: Tally(), Kind.OTHER: Tally()}

    def complete(self, request: Request) -> Response:
        """Answer once the clock says so."""
        messages = [
            {"role": "system", "content": _text(request.system)},
            *({"role": part.role, "content": _text(part.parts)} for part in request.messages),
        ]
        body = {"model": request.model, "messages": messages, "temperature": 0}
        asked = parse_request(orjson.dumps(body))
        reply = self._model.reply(asked)
        thought = self._config.thinking if reply.kind is Kind.REFLECT else 0
        read, written = prompt_tokens(asked.messages), text_tokens(reply.text) + thought
        self._clock.serve(
            self._config.latency.seconds(written, self._config.seed, asked.content, 0)
        )
        with self._guard:
            self.tallies[reply.kind] += Tally(1, read, written)
        return Response(
            id=None,
            model=request.model,
            message=Message.assistant([TextPart(reply.text)]),
            finish_reason="stop",
            usage=Usage(input_tokens=read, output_tokens=written, total_tokens=read + written),
        )


def make_lm(engine: Engine) -> dspy.LM:
    """Return an LM on an engine; its name is in the table of prices, which is searched else."""
    return dspy.LM("openai/gpt-4o-mini", engine=engine, cache=False, num_retries=0, temperature=0.0)


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return "".join(part.text for part in value if isinstance(part, TextPart))


def _formula(key: str) -> str:
    return key.partition(".")[0]
