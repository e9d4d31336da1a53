"""How the simulated model answers questions about lines: which go, in which order, where to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from combee_simulator.capacity import CapacityModel
from combee_simulator.laws import uniform
from combee_simulator.requests import text_tokens

__all__ = ["EDITING_FIELDS", "Editor"]

_HEADER = r"^\[\[ ## %s ## \]\]\s+"
_PLACED = re.compile(r"^\d+\. \(now: (\w+)\) (.*)", re.DOTALL)
_NUMBERED = re.compile(r"\s*(\d{1,6})\. ")
_WORDINGS = ("Keep to this: {}", "Always remember: {}", "In short: {}", "The rule is: {}")

EDITING_FIELDS = (
    "new_order",
    "destinations",
    "worked_examples",
    "reworded_passages",
    "same",
    "contradictory",
    "narrower",
    "empty",
)


class Editor:
    """Answers the output fields that are about lines rather than lessons.

    Stateless and safe to share.

    A line is worth keeping when it names a lesson that no earlier line names; a
    lesson belongs to the field whose name it says. Rewording puts a few words in front of a
    passage and costs a lesson each under the capacity law, so that an overloaded
    call returns fewer passages than it was given. Lessons say the same when they name the same
    keys; the capacity law says how many of those that were given are attended, a line each. Nothing
    that this task teaches contradicts anything else, is an exception to it or is empty.

    Args:
        keys_of: Returns the lesson keys in a text.
        capacity: The law.
        seed: Seed of every draw.
    """

    def __init__(
        self, keys_of: Callable[[str], Sequence[str]], capacity: CapacityModel, seed: int
    ) -> None:
        self._keys_of = keys_of
        self._capacity = capacity
        self._seed = seed

    def answer(self, field: str, user: str, place: tuple[str, int, int]) -> list[Any]:
        """Return the value of one of :data:`EDITING_FIELDS`.

        Args:
            field: Which.
            user: The user message.
            place: Where the draws derive from.
        """
        if field == "new_order":
            lessons = _items(user, "lessons")
            last = self._useless(lessons)
            return [number for number in range(1, len(lessons) + 1) if number not in last] + last
        if field == "destinations":
            names = [re.split(r"\W", item, maxsplit=1)[0] for item in _items(user, "known_fields")]
            return [_destination(item, names) for item in _items(user, "lessons")]
        if field == "reworded_passages":
            return self._reworded(_items(user, "passages"), place)
        if field == "same":
            return self._same(_items(user, "lessons"), place)
        return []

    def _useless(self, lines: Sequence[str]) -> list[int]:
        seen: set[str] = set()
        repeated = []
        for number, line in enumerate(lines, start=1):
            keys = set(self._keys_of(line))
            if keys <= seen:
                repeated.append(number)
            seen |= keys
        return repeated

    def _same(self, lessons: Sequence[str], place: tuple[str, int, int]) -> list[list[int]]:
        """Return the numbers of lessons with the same keys, in order of appearance."""
        tokens = [text_tokens(lesson) for lesson in lessons]
        attended = self._capacity.attend(lessons, self._seed, *place, tokens=tokens, records=0)
        groups: dict[frozenset[str], list[int]] = {}
        for lesson in attended:
            number, keys = _NUMBERED.match(lesson), frozenset(self._keys_of(lesson))
            if number and keys:
                groups.setdefault(keys, []).append(int(number[1]))
        return [numbers for numbers in groups.values() if len(numbers) > 1]

    def _reworded(self, passages: Sequence[str], place: tuple[str, int, int]) -> list[str]:
        names = tuple(str(number) for number in range(len(passages)))
        written = set(self._capacity.write((), names, self._seed, *place))
        wording = _WORDINGS[int(uniform(self._seed, "wording", *place) * len(_WORDINGS))]
        return [wording.format(passages[int(name)]) for name in names if name in written]


def _items(user: str, section: str) -> list[str]:
    header = re.search(_HEADER % section, user, re.MULTILINE)
    try:
        items = json.JSONDecoder().raw_decode(user, header.end())[0] if header else []
    except (ValueError, RecursionError):
        return []
    return [str(item) for item in items] if isinstance(items, list) else []


def _destination(item: str, names: Sequence[str]) -> str:
    placed = _PLACED.match(item)
    now, text = (placed[1], placed[2]) if placed else ("instruction", item)
    return next((name for name in names if re.search(rf"\b{re.escape(name)}\b", text)), now)
