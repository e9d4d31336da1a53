"""Which lessons of a memory a call is shown."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest

from combee_dspy.memory._base import Lookup, Retriever
from combee_dspy.memory._cues import own_words
from combee_dspy.memory._text import read_example, read_memory
from combee_dspy.reflections import fit_lines, line_tokens, texts_in

_LOCK = threading.Lock()


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
        # A line is JSON: its escapes are no words of a row.
        rows = [query_of(read_example(line)) for line in self.text.examples]
        self._nearest_examples = retriever.index(rows)

    def lessons(self, inputs: Mapping[str, object]) -> list[str]:
        """Return the lessons that a call with these inputs is shown.

        Those that every call is shown come first, then the k nearest, the nearest first, as far as
        they fit into the budget.
        """
        always = self.text.always
        left = self._budget - sum(map(line_tokens, always))
        nearest = self._nearest(query_of(inputs), self.text.k)
        return [*always, *fit_lines((self._lines[place] for place in nearest), left)]

    def entries(self, inputs: Mapping[str, object]) -> tuple[list[str], list[dict[str, object]]]:
        """Return the lessons that a call with these inputs is shown, and the worked examples.

        Examples take no room of lessons: they have a budget as large.
        """
        lines = self.text.examples
        places = self._nearest_examples(query_of(inputs), self.text.k) if lines else ()
        nearest = fit_lines((lines[place] for place in places), self._budget)
        return self.lessons(inputs), list(filter(None, map(read_example, nearest)))


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
