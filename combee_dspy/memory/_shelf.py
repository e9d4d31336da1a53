"""Which lessons of a memory a call is shown."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest

from combee_dspy.memory._base import Lookup, Retriever
from combee_dspy.memory._cues import own_words
from combee_dspy.memory._text import read_example, read_memory
from combee_dspy.reflections import (
    Vocabulary,
    fit_lines,
    line_tokens,
    texts_in,
    word_likeness,
)
from combee_dspy.texts import numbers_in

_LOCK = threading.Lock()
# From this likeness on, lessons with the same numbers say the same. Of 2,787 pairs of lines that a
# 1.5B model wrote about house rules, 220 say the same; this takes 143 for such, and errs in one.
_SAME = 0.5
# So many further lines are looked up for a call, to fill the places of those that say the same.
_FURTHER = 32


class Shelf:
    """A memory with its indexes. Pure, where its retriever is; used from many threads.

    Args:
        text: The memory (see :func:`combee_dspy.memory.read_memory`).
        retriever: Finds lessons and worked examples.
        budget_tokens: Estimated tokens of lessons that a call is shown, at most; of worked
            examples, as many.
    """

    def __init__(self, text: str, retriever: Retriever, budget_tokens: int) -> None:
        self.text = read_memory(text, 1)
        self._budget = budget_tokens
        self._lines = tuple(self.text.lookup)
        self._nearest = _by_both(self.text.lookup, retriever)
        self._nearest_examples = retriever.index(self.text.examples)
        self._vocabulary = Vocabulary.of(self.text.lessons)
        self._subjects: dict[str, dict[str, float]] = {}

    def lessons(self, inputs: Mapping[str, object]) -> list[str]:
        """Return the lessons that a call with these inputs is shown.

        First those that every call is shown, then the nearest that fit into the budget. Of several
        that say the same, the nearest takes one of the k places.
        """
        return list(self._choose(inputs))

    def covered(self, inputs: Mapping[str, object]) -> set[str]:
        """Return the lessons that a call is shown, in these words or in others."""
        return {line for lines in self._choose(inputs).values() for line in lines}

    def entries(self, inputs: Mapping[str, object]) -> tuple[list[str], list[dict[str, str]]]:
        """Return the lessons that a call with these inputs is shown, and the worked examples.

        Examples take no room of lessons: they have a budget as large.
        """
        lines = self.text.examples
        places = self._nearest_examples(query_of(inputs), self.text.k) if lines else ()
        nearest = fit_lines((lines[place] for place in places), self._budget)
        return self.lessons(inputs), list(filter(None, map(read_example, nearest)))

    def _choose(self, inputs: Mapping[str, object]) -> dict[str, list[str]]:
        """Return the lines that a call is shown, each with all near ones that say the same."""
        always, k = self.text.always, self.text.k
        wordings = {line: [line] for line in always}
        for place in self._nearest(query_of(inputs), k + _FURTHER):
            line = self._lines[place]
            same = next((other for other in wordings if self._say_the_same(line, other)), None)
            if same is not None:
                wordings[same].append(line)
            elif len(wordings) < len(always) + k:
                wordings[line] = [line]
        left = self._budget - sum(map(line_tokens, always))
        looked_up = [line for line in wordings if line not in always]
        return {line: wordings[line] for line in (*always, *fit_lines(looked_up, left))}

    def _say_the_same(self, line: str, other: str) -> bool:
        likeness = word_likeness(self._subject(line), self._subject(other))
        return likeness >= _SAME and numbers_in(line) == numbers_in(other)

    def _subject(self, line: str) -> dict[str, float]:
        if line not in self._subjects:
            self._subjects[line] = self._vocabulary.subject(line)
        return self._subjects[line]


def query_of(inputs: Mapping[str, object]) -> str:
    """Return what is looked up for a call: the texts of its inputs."""
    return " ".join(texts_in(dict(inputs)))


def shelf_of(text: str, retriever: Retriever, budget_tokens: int) -> Shelf:
    """Return the memory in a text, indexed; the last few are held."""
    with _LOCK:  # many threads ask for a new one at once
        return _indexed(text, retriever, budget_tokens)


_indexed = lru_cache(maxsize=8)(Shelf)


def _by_both(lessons: Mapping[str, str], retriever: Retriever) -> Lookup:
    """Return a lookup that alternates between what cues find and what lessons' own words find.

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
