"""How the simulated model writes lessons and instructions from a crowded prompt."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from combee_bench.simulated.capacity import CapacityModel
from combee_bench.simulated.curating import PLATITUDE, PLAYBOOK_FIELDS, Curator, without_playbook
from combee_bench.simulated.editing import EDITING_FIELDS, Editor
from combee_bench.simulated.filling import REASONING, REASONING_FIELDS, filler, lesson_value, render
from combee_bench.simulated.knowledge import SimulatedQuestion
from combee_bench.simulated.matching import QuestionIndex, stretches_of
from combee_bench.simulated.requests import ChatRequest, text_tokens
from combee_bench.simulated.shapes import RequestShape, Style, final_user_message, without_requirements

__all__ = ["PLATITUDE", "Writer"]

_HEADER = re.compile(r"^\[\[ ## (\w+) ## \]\]$", re.MULTILINE)
_VARIABLE = re.compile(r"<VARIABLE>(.*?)</VARIABLE>", re.DOTALL)
_FENCE = re.compile(r"```\w*\n(.*?)```", re.DOTALL)
_LIMIT = re.compile(r"\bat most ([\d,]{1,12}) (characters|tokens)\b", re.IGNORECASE)
_CHARS = {"characters": 1, "tokens": 4}
# A field that states a limit on a list, as ChatAdapter and JSONAdapter write it: most_lessons, most_words, …
_MOST = re.compile(r"^\[\[ ## most_(\w+) ## \]\]\s*(\d{1,9})\s*$", re.MULTILINE)


class Writer:
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

    Args:
        index: Finds questions and keys.
        questions: The known questions, by index.
        lessons: The line of each lesson by key.
        capacity: The law.
        seed: Seed of every draw.
    """

    def __init__(
        self,
        index: QuestionIndex,
        questions: Sequence[SimulatedQuestion],
        lessons: Mapping[str, str],
        capacity: CapacityModel,
        seed: int,
    ) -> None:
        self._index = index
        self._questions = questions
        self._lessons = lessons
        self._capacity = capacity
        self._seed = seed
        self._editor = Editor(lambda text: [key for _, key in index.scan(text).keys], capacity, seed)
        self._curator = Curator(lambda text: [key for _, key in index.scan(text).keys], capacity, seed)

    def write(self, request: ChatRequest, shape: RequestShape, place: tuple[str, int, int]) -> str:
        """Return the answer to a writing request.

        Args:
            request: The request.
            shape: What its answer must look like.
            place: The content, occurrence and choice that the draws derive from.
        """
        last = final_user_message(request.messages)
        user = request.messages[last].text
        asked, playbook = without_playbook(without_requirements(user))
        current, rest = _split(asked, shape.style)
        earlier = (message.text for message in request.messages[:last] if message.role != "assistant")
        items, tokens = self._items([*earlier, rest])
        attended = self._capacity.attend(items, self._seed, *place, tokens=tokens)
        old = tuple(dict.fromkeys(key for _, key in self._index.scan(current).keys))
        limit, most = _limit(user), {name: int(number) for name, number in _MOST.findall(user)}
        overloaded = self._capacity.crowded(len(items), self._seed, *place, tokens=tokens)
        if shape.style is Style.FENCED:
            return f"```\n{self._rewrite(current, old, attended, overloaded, limit, place)}\n```"
        if shape.style is Style.TAGGED:
            tag = shape.fields[0].name
            return f"<{tag}>{self._rewrite(current, old, attended, overloaded, limit, place)}</{tag}>"
        if shape.style is Style.PROSE:
            return self._rewrite("", (), attended, overloaded, limit, place)
        values: dict[str, Any] = {}
        for field in shape.fields:
            if field.is_text and "instruction" in field.name.lower():
                values[field.name] = self._rewrite(current, old, attended, overloaded, limit, place)
            elif field.is_list and field.name in EDITING_FIELDS:
                values[field.name] = self._editor.answer(field.name, user, most, place)
            elif field.name in PLAYBOOK_FIELDS:
                values[field.name] = self._kept(field.name, user, playbook, attended, overloaded, place)
            elif field.is_text and field.name in REASONING_FIELDS:
                values[field.name] = REASONING
            elif field.is_text or field.is_list:
                keys = self._capacity.write((), tuple(dict.fromkeys(attended)), self._seed, *place)
                short = overloaded or len(keys) < len(set(attended))
                lines = _within([self._lessons[key] for key in keys] + [PLATITUDE] * short, most)
                values[field.name] = lesson_value(field, _text("", lines, limit), lines)
            else:
                values[field.name] = filler(field)
        return render(shape, values)

    def _kept(
        self,
        field: str,
        user: str,
        playbook: str,
        attended: Sequence[str],
        overloaded: bool,
        place: tuple[str, int, int],
    ) -> Any:
        if field == "bullet_tags":
            return self._curator.tags(playbook, attended)
        lessons = {key: self._lessons[key] for key in attended}
        return self._curator.operations(user, playbook, lessons, PLATITUDE if overloaded else None, place)

    def _items(self, texts: Iterable[str]) -> tuple[list[str], list[int]]:
        """Return the keys of the items, and their tokens where the law asks for them."""
        keys: list[str] = []
        tokens: list[int] = []
        for text in texts:
            scan = self._index.scan(text)
            found = [(hit.start, self._questions[hit.question].key) for hit in scan.hits]
            items = sorted(chain(found, scan.keys), key=lambda item: item[0])
            keys += (key for _, key in items)
            if self._capacity.attended_tokens is not None:
                tokens += map(text_tokens, stretches_of(text, (place for place, _ in items)))
        return keys, tokens

    def _rewrite(
        self,
        current: str,
        old: Sequence[str],
        attended: Sequence[str],
        overloaded: bool,
        limit: int | None,
        place: tuple[str, int, int],
    ) -> str:
        new = tuple(key for key in dict.fromkeys(attended) if key not in old)
        keys = self._capacity.write(old, new, self._seed, *place)
        overloaded = overloaded or len(keys) < len(old) + len(new)
        lines = [self._lessons[key] for key in keys] + [PLATITUDE] * overloaded
        return _text(self._head(current), lines, limit)

    def _head(self, current: str) -> str:
        for paragraph in re.split(r"\n\s*\n", current):
            kept = [
                line for line in paragraph.splitlines() if PLATITUDE not in line and not self._index.scan(line).keys
            ]
            if any(line.strip() for line in kept):
                return "\n".join(kept).strip()
        return ""


def _split(user: str, style: Style) -> tuple[str, str]:
    """Return the current instruction in a user's text, "" where none is, and the text without it."""
    if style is Style.FENCED:
        fence = _FENCE.search(user)
        return ("", user) if fence is None else (fence[1].strip(), user[: fence.start()] + user[fence.end() :])
    if style is Style.TAGGED:
        variable = _VARIABLE.search(user)
        if variable is None:
            return "", user
        return variable[1].strip(), user[: variable.start()] + user[variable.end() :]
    headers = list(_HEADER.finditer(user))
    ends = [*(header.start() for header in headers[1:]), len(user)][: len(headers)]
    sections = [
        (header[1].lower(), header.end(), end)
        for header, end in zip(headers, ends, strict=True)
        if "instruction" in header[1].lower() and not header[1].lower().startswith("additional")
    ]
    if not sections:
        return "", user
    _, start, end = next((section for section in sections if section[0].startswith("current")), sections[0])
    return user[start:end].strip(), user[:start] + user[end:]


def _limit(user: str) -> int | None:
    found = _LIMIT.search(user)
    return int(found[1].replace(",", "") or 0) * _CHARS[found[2].lower()] if found else None


def _within(lines: Sequence[str], most: Mapping[str, int]) -> list[str]:
    """Return the first lines, as many as the stated limits on words and on items allow."""
    words = most.get("words")
    kept = list(lines[: min((number for unit, number in most.items() if unit != "words"), default=None)])
    while words is not None and kept and sum(len(line.split()) for line in kept) > words:
        kept.pop()
    return kept


def _text(head: str, lines: Iterable[str], limit: int | None) -> str:
    """Join a head and lines; lines that pass a stated limit on the length are left out, the last ones first."""
    listed = [f"- {line}" for line in lines]
    while True:
        text = "\n\n".join(part for part in (head, "\n".join(listed)) if part) or PLATITUDE
        if limit is None or len(text) <= limit or not listed:
            return text
        listed.pop()
