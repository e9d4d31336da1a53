"""Which lessons of a memory a call is shown."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from combee_dspy.memory._base import Lookup, Retriever
from combee_dspy.memory._cues import without_cues
from combee_dspy.memory._text import MemoryText, read_memory
from combee_dspy.reflections import estimate_tokens, texts_in

_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True, eq=False)
class Shelf:
    """A memory with its index. Pure, where its retriever is; used from many threads."""

    text: MemoryText
    nearest: Lookup
    budget_tokens: int

    def lessons(self, inputs: Mapping[str, object]) -> list[str]:
        """Return the lessons that a call with these inputs is shown.

        Those that always stand there come first, then the nearest, the nearest first, as long as
        all of them fit into the budget.
        """
        chosen = list(self.text.always)
        left = self.budget_tokens - sum(map(line_tokens, chosen))
        for place in self.nearest(query_of(inputs), self.text.k):
            lesson = without_cues(self.text.lookup[place])
            left -= line_tokens(lesson)
            if left < 0:
                break
            chosen.append(lesson)
        return chosen


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
    return Shelf(memory, retriever.index(memory.lookup), budget_tokens)


def line_tokens(lesson: str) -> int:
    return estimate_tokens(f"- {lesson}\n")
