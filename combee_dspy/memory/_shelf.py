"""Which lessons of a memory a call is shown."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from combee_dspy.memory._base import Lookup, Retriever
from combee_dspy.memory._cues import cues_in, without_cues
from combee_dspy.memory._text import MemoryText, read_example, read_memory
from combee_dspy.reflections import estimate_tokens, texts_in

_LOCK = threading.Lock()


@dataclass(frozen=True, slots=True, eq=False)
class Shelf:
    """A memory with its index. Pure, where its retriever is; used from many threads."""

    text: MemoryText
    nearest: Lookup
    budget_tokens: int

    def lessons(self, inputs: Mapping[str, object]) -> list[str]:
        """Return the lessons that a call with these inputs is shown; see :meth:`entries`."""
        return self.entries(inputs)[0]

    def entries(self, inputs: Mapping[str, object]) -> tuple[list[str], list[dict[str, str]]]:
        """Return the lessons that a call with these inputs is shown, and the worked examples.

        Lessons that always stand there come first, then the nearest entries, the nearest first, as
        long as all of them fit into the budget.
        """
        lessons, examples = list(self.text.always), list[dict[str, str]]()
        left = self.budget_tokens - sum(map(line_tokens, lessons))
        for place in self.nearest(query_of(inputs), self.text.k):
            line = without_cues(self.text.lookup[place])
            left -= line_tokens(line)
            if left < 0:
                break
            if example := read_example(line):
                examples.append(example)
            else:
                lessons.append(line)
        return lessons, examples


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
    return Shelf(memory, retriever.index([*map(cues_in, memory.lookup)]), budget_tokens)


def line_tokens(lesson: str) -> int:
    return estimate_tokens(f"- {lesson}\n")
