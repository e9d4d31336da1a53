"""The simulated model: what it answers to a request, as a pure function of seed and content."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import lru_cache

from combee_simulator.capacity import CapacityModel
from combee_simulator.filling import REASONING, REASONING_FIELDS, answer_value, filler, render
from combee_simulator.knowledge import SimulatedTask, same_answer
from combee_simulator.laws import ReasoningLaw, WordingLaw, uniform
from combee_simulator.matching import Hit, QuestionIndex, words_of
from combee_simulator.requests import ChatRequest, Message
from combee_simulator.shapes import (
    OutputField,
    RequestShape,
    Style,
    final_user_message,
    request_shape,
)
from combee_simulator.stats import Kind
from combee_simulator.writing import LessonWriter

__all__ = ["Reply", "SimulatedModel"]

_GREETING = "This is a simulated reply."
_UNKNOWN = "unknown"
_DEMONSTRATIONS_KEPT = 1024
_JOINED = 8
_SECTION = r"\[\[ ## %s ## \]\]\s*(.*?)\s*(?=\[\[ ## \w+ ## \]\]|\Z)"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer before usage, latency and failures are applied."""

    kind: Kind
    text: str


class SimulatedModel:
    """Answers requests from a task's knowledge. Stateless apart from caches, and safe to share.

    Args:
        task: What the model can know; None for a model that knows nothing.
        capacity: The law of context overload for writing requests.
        seed: Seed of every draw.
        reasoning: How long a task's answer reasons; None for one short sentence.
        wording: How lessons are worded; None for all calls alike.
    """

    def __init__(
        self,
        task: SimulatedTask | None,
        capacity: CapacityModel,
        seed: int,
        reasoning: ReasoningLaw | None = None,
        wording: WordingLaw | None = None,
    ) -> None:
        self._task = task
        self._reasoning = reasoning
        self._questions = task.questions if task else ()
        self._answer_fields = frozenset(task.answer_fields) if task else frozenset({"answer"})
        lessons = task.lessons if task else {}
        self._index = QuestionIndex([question.text for question in self._questions], lessons)
        self._joiner = task.joiner if task else None
        self._seed = seed
        self._targets = [words_of(question.target) for question in self._questions]
        self._writer = LessonWriter(
            self._index, self._questions, lessons, capacity, seed, wording or WordingLaw()
        )
        self._demonstrated = lru_cache(maxsize=_DEMONSTRATIONS_KEPT)(self._keys_demonstrated)

    def reply(self, request: ChatRequest, occurrence: int = 0, choice: int = 0) -> Reply:
        """Return the answer to a request.

        Args:
            request: The request.
            occurrence: How often the same content was answered before; 0 at temperature 0.
            choice: Index among the answers of one request.

        Returns:
            The same reply for the same arguments, whatever was asked before.
        """
        place = (request.content, occurrence, choice)
        shape = request_shape(request)
        kind = self._kind(shape, request)
        if kind is Kind.TASK:
            return Reply(kind, self._answer(request, shape, place))
        if kind is Kind.REFLECT:
            return Reply(kind, self._writer.write(request, shape, place))
        values = {field.name: filler(field) for field in shape.fields}
        return Reply(kind, render(shape, values) if values else _GREETING)

    def _kind(self, shape: RequestShape, request: ChatRequest) -> Kind:
        if shape.style in (Style.FENCED, Style.TAGGED, Style.PROSE):
            return Kind.REFLECT
        if shape.style is Style.PLAIN:
            last = request.messages[final_user_message(request.messages)]
            return Kind.TASK if self._index.scan(last.text).hits else Kind.OTHER
        names = {field.name for field in shape.fields}
        # A step of an agent that only chooses a tool belongs to the task that it works on.
        if names & self._answer_fields or "next_tool_name" in names:
            return Kind.TASK
        return Kind.REFLECT if any(_takes_lessons(field) for field in shape.fields) else Kind.OTHER

    def _answer(
        self, request: ChatRequest, shape: RequestShape, place: tuple[str, int, int]
    ) -> str:
        last = final_user_message(request.messages)
        hits = self._index.scan(request.messages[last].text).hits
        asked_hits = hits[-1:] if self._joiner is None else hits
        answers = [(hit, self._knows(request, last, hit, place)) for hit in asked_hits]
        if not shape.fields:
            return self._answer_to_all(OutputField("answer"), answers)
        values = {}
        for field in shape.fields:
            if field.name in self._answer_fields:
                values[field.name] = answer_value(field, self._answer_to_all(field, answers))
            else:
                values[field.name] = self._aside(field, place) if field.is_text else filler(field)
        return render(shape, values)

    def _aside(self, field: OutputField, place: tuple[str, int, int]) -> str:
        if self._reasoning is None or field.name not in REASONING_FIELDS:
            return REASONING
        return self._reasoning.text(self._seed, *place)

    def _answer_to_all(self, field: OutputField, answers: list[tuple[Hit, bool]]) -> str:
        if not answers:
            return self._answer_to(field, None, False)
        return (self._joiner or "").join(
            self._answer_to(field, hit, right) for hit, right in answers
        )

    def _answer_to(self, field: OutputField, hit: Hit | None, right: bool) -> str:
        if hit is None:
            return (
                str(field.options[0])
                if field.options
                else {"int": "0", "float": "0"}.get(field.type, _UNKNOWN)
            )
        question = self._questions[hit.question]
        if right:
            return question.target
        others = [
            str(option) for option in field.options if not same_answer(str(option), question.target)
        ]
        if not others or question.wrong in others:
            return question.wrong
        # Where the answer is one of a few labels, so is a wrong one.
        return others[int(uniform(self._seed, "label", question.text) * len(others))]

    def _knows(
        self, request: ChatRequest, last: int, hit: Hit, place: tuple[str, int, int]
    ) -> bool:
        key = self._questions[hit.question].key
        assert self._task is not None  # noqa: S101 - a hit has a task
        is_taught = self._is_taught(request.messages, last, hit, key)
        if is_taught and self._task.taught_rate >= 1:
            return True
        drawn = (self._questions[hit.question].text, *(place if request.temperature > 0 else ()))
        rate = self._task.taught_rate if is_taught else self._task.base_rate
        return uniform(self._seed, "knows", *drawn) < rate

    def _is_taught(self, messages: tuple[Message, ...], last: int, sought: Hit, key: str) -> bool:
        for place, message in enumerate(messages[: last + 1]):
            if message.role == "assistant":
                continue
            paired = place < last and messages[place + 1].role == "assistant"
            if paired and message.role == "user":
                if key in self._demonstrated(message.text, messages[place + 1].text):
                    return True
                continue
            scan = self._index.scan(message.text)
            stop = sought.start if place == last else None
            if any(name == key and (stop is None or at < stop) for at, name in scan.keys):
                return True
            if any(
                self._is_demonstrated(hit, key, scan.hits[number + 1 : number + _JOINED])
                for number, hit in enumerate(scan.hits)
                if stop is None or hit.start < stop
            ):
                return True
        return False

    def _is_demonstrated(self, hit: Hit, key: str, later: tuple[Hit, ...]) -> bool:
        # A demonstration written into the text: a known question with its answer before the next
        # one, or, where answers are joined, after the questions that were asked with it.
        target = self._targets[hit.question]
        if self._questions[hit.question].key != key or not target:
            return False
        size = len(target)
        tails = [hit.tail, *(other.tail for other in later if self._joiner is not None)]
        return any(
            tail[start : start + size] == target
            for tail in tails
            for start in range(len(tail) - size + 1)
        )

    def _keys_demonstrated(self, question_text: str, answer_text: str) -> frozenset[str]:
        hits = self._index.scan(question_text).hits
        fields = (_field_text(answer_text, field) for field in self._answer_fields)
        answers = [text for text in fields if text is not None] or [answer_text]
        keys = set()
        for text in answers:
            parts = [text] if self._joiner is None else text.split(self._joiner.strip() or None)
            for hit, part in zip(hits[-1:] if self._joiner is None else hits, parts, strict=False):
                question = self._questions[hit.question]
                if same_answer(part, question.target):
                    keys.add(question.key)
        return frozenset(keys)


def _takes_lessons(field: OutputField) -> bool:
    return (field.is_text and field.name not in REASONING_FIELDS) or field.is_list


def _field_text(answered: str, field: str) -> str | None:
    section = re.search(_SECTION % re.escape(field), answered, re.DOTALL)
    if section:
        return section[1]
    try:
        data = json.loads(answered)
    except (ValueError, RecursionError):
        return None
    return str(data[field]) if isinstance(data, dict) and field in data else None
