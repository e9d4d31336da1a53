"""A task of rules: what rows hold, what is right, what a scripted model can read in a line."""

from __future__ import annotations

import functools
import hashlib
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import dspy

__all__ = ["Rule", "Task", "draw"]


def draw(*parts: object) -> float:
    """Return a number from 0 to 1 that follows from the parts."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big") / 2**56


@dataclass(frozen=True, slots=True)
class Rule:
    """In texts that hold all of the cues, a field of the answer has this value."""

    cues: tuple[str, ...]
    field: str
    value: str
    weight: float = 1.0


@dataclass(frozen=True)
class Task:
    """A program, its rows, its metric, and how well its scripted models attend.

    Attributes:
        guess: How often the model is right with no line to follow.
        obeys: How often it follows a line of a short prompt.
        fades: Words of a prompt by which half of that is lost; 0 for never.
        lines: The most lines of a prompt that it follows, the first and last; 0 for all.
        notices: How often a reader writes of a mistake.
        misreads: How often it blames another word of the row.
        invents: How often a call adds a wrong line.
        joins: Whether all values that apply make the answer.
        pattern: How a text is cut into statements.
    """

    name: str
    rules: tuple[Rule, ...]
    program: Callable[[], dspy.Module]
    metric: Callable[..., object]
    write_row: Callable[[Task, random.Random, Rule], dspy.Example]
    fillers: tuple[str, ...]
    train: int = 80
    validation: int = 40
    heldout: int = 120
    guess: float = 0.1
    obeys: float = 0.97
    fades: int = 0
    lines: int = 0
    notices: float = 0.75
    misreads: float = 0.12
    invents: float = 0.08
    joins: bool = False
    language: str = "en"
    pattern: str = r"[.;\n]+\s+|[\n]|\.$"

    def rows(self, split: str, seed: int) -> list[dspy.Example]:
        """Return the rows of a split, another draw for each seed."""
        size = {"train": self.train, "validation": self.validation, "heldout": self.heldout}[split]
        source = random.Random(f"{self.name} {split} {seed}")  # noqa: S311
        weights = [rule.weight for rule in self.rules]
        drawn = source.choices(self.rules, weights, k=size)
        return [self.write_row(self, source, rule) for rule in drawn]

    @functools.cache  # noqa: B019 - tasks live as long as the process
    def cues(self) -> list[str]:
        """Return all words that decide anything."""
        return sorted({cue for rule in self.rules for cue in rule.cues})

    @functools.cache  # noqa: B019
    def values(self, field: str | None = None) -> list[str]:
        """Return the values of a field, or of all."""
        return sorted({rule.value for rule in self.rules if field in (None, rule.field)})

    def field_of(self, value: str) -> str:
        """Return the field that a value belongs to."""
        return next(rule.field for rule in self.rules if rule.value == value)

    def right(self, text: str, field: str) -> list[str]:
        """Return what the narrowest rules that hold in a text ask for."""
        held = [
            rule
            for rule in self.rules
            if rule.field == field and all(holds(cue, text) for cue in rule.cues)
        ]
        if self.joins:
            return sorted({rule.value for rule in held})
        narrowest = sorted(held, key=lambda rule: -len(rule.cues))
        return [rule.value for rule in narrowest[:1]]

    def statements(self, prompt: str) -> list[str]:
        """Cut a prompt into statements."""
        return [part.strip() for part in re.split(self.pattern, prompt) if part.strip()]


def holds(word: str, text: str) -> bool:
    """Say whether a text has a word."""
    return bool(words_in(text, (word,)))


def words_in(text: str, vocabulary: Sequence[str]) -> list[str]:
    """Return the words of a vocabulary that a text holds, in the text's order."""
    spelt = {word.lower(): word for word in vocabulary}
    matches = _pattern(tuple(spelt)).findall(text.lower())
    return [spelt[match] for match in dict.fromkeys(matches)]


@functools.cache
def _pattern(vocabulary: tuple[str, ...]) -> re.Pattern[str]:
    """Match any word, as a word where its script parts words, and the longest of several."""
    words = "|".join(
        rf"(?<![\w-]){re.escape(word)}(?![\w-])" if word.isascii() else re.escape(word)
        for word in sorted(vocabulary, key=len, reverse=True)
    )
    return re.compile(words or r"(?!)")
