"""How the simulated model writes lessons and instructions from a crowded prompt."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from combee_simulator.capacity import CapacityModel
from combee_simulator.editing import EDITING_FIELDS, Editor
from combee_simulator.filling import REASONING, REASONING_FIELDS, filler, lesson_value, render
from combee_simulator.knowledge import SimulatedQuestion
from combee_simulator.laws import WordingLaw
from combee_simulator.matching import QuestionIndex, stretches_of
from combee_simulator.reading import read_examples, read_limit, split_instruction
from combee_simulator.requests import ChatRequest, text_tokens
from combee_simulator.shapes import (
    OutputField,
    RequestShape,
    Style,
    final_user_message,
    without_requirements,
)
from combee_simulator.tagging import PLATITUDE, Tagger, without_playbook

__all__ = ["PLATITUDE", "LessonWriter"]

# A field that states a limit on a list, as ChatAdapter and JSONAdapter write it: most_lessons,
# most_words, …
_MOST = re.compile(r"^\[\[ ## most_(\w+) ## \]\]\s*(\d{1,9})\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class _Item:
    """An item of a prompt: its lesson's key, and the number of its record, if there is one."""

    key: str
    example: int | None


@dataclass(frozen=True, slots=True)
class _Prompt:
    """What was read of a prompt: its parts, the lessons in it, and the limits that it states.

    ``examples`` are the numbers of the records in which each lesson was read, where records have
    numbers.
    """

    user: str
    playbook: str
    current: str
    old: tuple[str, ...]
    attended: tuple[str, ...]
    examples: Mapping[str, Sequence[int]]
    overloaded: bool
    limit: int | None
    most: Mapping[str, int]
    place: tuple[str, int, int]
    taught_by: Mapping[str, str]


class LessonWriter:
    """Writes lessons under a capacity law. Stateless and safe to share.

    The items of the prompt are its known questions and its lesson lines, in
    order of appearance, except those inside the current instruction. The
    capacity law says which are attended, by their number or by their tokens
    as the service counts a prompt's; each attended item gives its lesson,
    once. A field whose name contains "instruction" is a rewrite: it starts
    with the current instruction's first paragraph that is not a lesson, and
    the current lessons are written before the new ones. Whatever the law cut
    is made up for with a platitude, as overloaded models do. A stated limit is
    kept by leaving out what comes last: on the length of a text, and on the
    items of a list or their words where an input field ``most_…`` states one.
    Where records begin with a field "Example", a lesson begins with the numbers
    of the records that it was read in, in square brackets; an unread record is
    not cited.

    Args:
        index: Finds questions and keys.
        questions: The known questions, as the index numbers them.
        lessons: The line of each lesson by key.
        capacity: The law.
        seed: Seed of every draw.
        wording: How a lesson is worded.
    """

    def __init__(
        self,
        index: QuestionIndex,
        questions: Sequence[SimulatedQuestion],
        lessons: Mapping[str, str],
        capacity: CapacityModel,
        seed: int,
        wording: WordingLaw,
    ) -> None:
        self._index = index
        self._questions = questions
        self._lessons = lessons
        self._capacity = capacity
        self._seed = seed
        self._wording = wording
        self._editor = Editor(self._keys_of, capacity, seed)
        self._tagger = Tagger(self._keys_of)

    def _keys_of(self, text: str) -> list[str]:
        return [key for _, key in self._index.scan(text).keys]

    def write(self, request: ChatRequest, shape: RequestShape, place: tuple[str, int, int]) -> str:
        """Return the answer to a writing request. ``place`` is what its draws derive from."""
        prompt = self._read(request, shape, place)
        if shape.style is Style.FENCED:
            return f"```\n{self._rewritten(prompt)}\n```"
        if shape.style is Style.TAGGED:
            tag = shape.fields[0].name
            return f"<{tag}>{self._rewritten(prompt)}</{tag}>"
        if shape.style is Style.PROSE:
            return self._rewritten(replace(prompt, current="", old=()))
        return render(shape, {field.name: self._value(field, prompt) for field in shape.fields})

    def _read(
        self, request: ChatRequest, shape: RequestShape, place: tuple[str, int, int]
    ) -> _Prompt:
        last = final_user_message(request.messages)
        user = request.messages[last].text
        text, playbook = without_playbook(without_requirements(user))
        current, rest = split_instruction(text, shape.style)
        earlier = (
            message.text for message in request.messages[:last] if message.role != "assistant"
        )
        items, tokens, records = self._items([*earlier, rest])
        sizes: dict[str, Any] = {"tokens": tokens, "records": records}
        attended = self._capacity.attend(items, self._seed, *place, **sizes)
        examples: dict[str, dict[int, None]] = {}
        for item in attended:
            if item.example is not None:
                examples.setdefault(item.key, {})[item.example] = None
        return _Prompt(
            user=user,
            playbook=playbook,
            current=current,
            old=tuple(dict.fromkeys(self._keys_of(current))),
            attended=tuple(item.key for item in attended),
            examples={key: list(numbers) for key, numbers in examples.items()},
            overloaded=self._capacity.crowded(len(items), self._seed, *place, **sizes),
            limit=read_limit(user),
            most={name: int(number) for name, number in _MOST.findall(user)},
            place=place,
            taught_by=self._taught_by(rest) if self._wording.quoting else {},
        )

    def _value(self, field: OutputField, prompt: _Prompt) -> Any:
        attended, place = prompt.attended, prompt.place
        if field.is_text and "instruction" in field.name.lower():
            return self._rewritten(prompt)
        if field.is_list and field.name in EDITING_FIELDS:
            return self._editor.answer(field.name, prompt.user, place)
        if field.name == "bullet_tags":
            return self._tagger.tags(prompt.playbook, attended)
        if field.is_text and field.name == "section":
            return self._tagger.section(prompt.user)
        if field.is_text and field.name in REASONING_FIELDS:
            return REASONING
        if not (field.is_text or field.is_list):
            return filler(field)
        keys = self._capacity.write((), tuple(dict.fromkeys(attended)), self._seed, *place)
        short = prompt.overloaded or len(keys) < len(set(attended))
        cited = [_cited(self._line(key, prompt), prompt.examples.get(key, ())) for key in keys]
        lines = _within(cited + [PLATITUDE] * short, prompt.most)
        return lesson_value(field, _text("", lines, prompt.limit), lines)

    def _items(self, texts: Iterable[str]) -> tuple[list[_Item], list[int], int]:
        """Return the items, their tokens where the law asks for them, and how many are records."""
        listed: list[_Item] = []
        tokens: list[int] = []
        records = 0
        for text in texts:
            scan = self._index.scan(text)
            asked_keys = [(hit.start, self._questions[hit.question].key) for hit in scan.hits]
            items = sorted(chain(asked_keys, scan.keys), key=lambda item: item[0])
            places = [place for place, _ in items]
            numbers = read_examples(text, places)
            listed += (_Item(key, number) for (_, key), number in zip(items, numbers, strict=True))
            records += len(asked_keys)
            if self._capacity.attended_tokens is not None:
                tokens += map(text_tokens, stretches_of(text, places))
        return listed, tokens, records

    def _rewritten(self, prompt: _Prompt) -> str:
        new = tuple(key for key in dict.fromkeys(prompt.attended) if key not in prompt.old)
        keys = self._capacity.write(prompt.old, new, self._seed, *prompt.place)
        overloaded = prompt.overloaded or len(keys) < len(prompt.old) + len(new)
        lines = [self._line(key, prompt) for key in keys] + [PLATITUDE] * overloaded
        return _text(self._head(prompt.current), lines, prompt.limit)

    def _line(self, key: str, prompt: _Prompt) -> str:
        return self._wording.line(
            self._lessons[key], prompt.taught_by.get(key), self._seed, key, *prompt.place
        )

    def _taught_by(self, text: str) -> dict[str, str]:
        """Return a question in the text for each lesson that one needs."""
        questions = [self._questions[hit.question] for hit in self._index.scan(text).hits]
        return {question.key: question.text for question in reversed(questions)}

    def _head(self, current: str) -> str:
        for paragraph in re.split(r"\n\s*\n", current):
            lines = paragraph.splitlines()
            head = [line for line in lines if PLATITUDE not in line and not self._keys_of(line)]
            if any(line.strip() for line in head):
                return "\n".join(head).strip()
        return ""


def _cited(line: str, examples: Sequence[int]) -> str:
    return f"[{', '.join(map(str, examples))}] {line}" if examples else line


def _within(lines: Sequence[str], most: Mapping[str, int]) -> list[str]:
    """Return the first lines, as many as the stated limits on words and on items allow."""
    words = most.get("words")
    allowed = list(
        lines[: min((number for unit, number in most.items() if unit != "words"), default=None)]
    )
    while words is not None and allowed and sum(len(line.split()) for line in allowed) > words:
        allowed.pop()
    return allowed


def _text(head: str, lines: Iterable[str], limit: int | None) -> str:
    """Join a head and lines.

    Lines that pass a stated limit on the length are left out, the last ones first.
    """
    listed = [f"- {line}" for line in lines]
    while True:
        text = "\n\n".join(part for part in (head, "\n".join(listed)) if part) or PLATITUDE
        if limit is None or len(text) <= limit or not listed:
            return text
        listed.pop()
