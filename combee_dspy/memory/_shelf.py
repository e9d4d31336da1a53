"""Which lessons of a memory a call is shown."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest

from combee_dspy.memory._base import Lookup, Retriever
from combee_dspy.memory._cues import own_words
from combee_dspy.memory._text import MemoryText, read_example, read_memory
from combee_dspy.reflections import estimate_tokens, texts_in

_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True, eq=False)
class Shelf:
    """A memory with its indexes. Pure, where its retriever is; used from many threads."""

    text: MemoryText
    lookup: tuple[str, ...]
    nearest: Lookup
    nearest_examples: Lookup
    budget_tokens: int

    def lessons(self, inputs: Mapping[str, object]) -> list[str]:
        """Return the lessons that a call with these inputs is shown.

        Those that always stand there come first, then those of the nearest, the nearest first, that
        fit into the budget.
        """
        always = self.text.always
        left = self.budget_tokens - sum(map(_line_tokens, always))
        places = self.nearest(query_of(inputs), self.text.k)
        return [*always, *fitting((self.lookup[place] for place in places), left)]

    def entries(self, inputs: Mapping[str, object]) -> tuple[list[str], list[dict[str, str]]]:
        """Return the lessons that a call with these inputs is shown, and the worked examples.

        Examples take no room of lessons: they have a budget as large.
        """
        lines = self.text.examples
        places = self.nearest_examples(query_of(inputs), self.text.k) if lines else ()
        nearest = fitting((lines[place] for place in places), self.budget_tokens)
        return self.lessons(inputs), list(filter(None, map(read_example, nearest)))


def fitting(lines: Iterable[str], left: int) -> Iterator[str]:
    """Yield the lines that fit into what those before them leave of so many tokens."""
    for line in lines:
        tokens = _line_tokens(line)
        if tokens <= left:
            left -= tokens
            yield line


def query_of(inputs: Mapping[str, object]) -> str:
    """Return what is looked up for a call: the texts of its inputs."""
    return " ".join(texts_in(dict(inputs)))


def shelf_of(text: str, retriever: Retriever, budget_tokens: int) -> Shelf:
    """Return the memory in a text, indexed; the last few are held."""
    with _LOCK:  # many threads ask for a new one at once
        return _indexed(text, retriever, budget_tokens)


@lru_cache(maxsize=8)
def _indexed(text: str, retriever: Retriever, budget_tokens: int) -> Shelf:
    memory = read_memory(text, 1)
    return Shelf(
        memory,
        tuple(memory.lookup),
        _by_both(memory.lookup, retriever),
        retriever.index(memory.examples),
        budget_tokens,
    )


def _by_both(lessons: Mapping[str, str], retriever: Retriever) -> Lookup:
    """Return a lookup that takes in turn what is found by cues and by a lesson's own words alone.

    Together they would be lost among the cues: inputs of one form share many words.
    """
    by_cues = retriever.index([cues or lesson for lesson, cues in lessons.items()])
    if not any(lessons.values()):
        return by_cues
    by_words = retriever.index([own_words(*item) for item in lessons.items()])

    def lookup(query: str, most: int) -> Sequence[int]:
        pairs = zip_longest(by_cues(query, most), by_words(query, most))
        places = dict.fromkeys(place for pair in pairs for place in pair if place is not None)
        return list(places)[:most]

    return lookup


def _line_tokens(lesson: str) -> int:
    return estimate_tokens(f"- {lesson}\n")
