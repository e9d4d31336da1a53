"""A memory as a component's text: the instruction, lessons for every call, lessons to look up."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from combee_dspy.lessons import read_section, split_section, write_section
from combee_dspy.memory._cues import split_cues, with_cues

_LESSONS = re.compile(r"Lessons to look up, (\d{1,4}) at most:")
# A section of their own: a lesson may have the shape of an example.
_EXAMPLES = re.compile(r"Worked examples to look up, (\d{1,4}) at most:")


@dataclass(frozen=True, slots=True)
class MemoryText:
    """What a memory's text holds.

    Attributes:
        own: The instruction.
        always: Lessons that every call is shown.
        lookup: Lessons of which a call is shown the nearest, with the words that each is found by,
            none where it is found by its own.
        examples: Worked examples of which a call is shown the nearest (:func:`write_example`).
        k: How many of each at most.
    """

    own: str
    always: tuple[str, ...]
    lookup: Mapping[str, str]
    examples: tuple[str, ...]
    k: int

    @property
    def lessons(self) -> tuple[str, ...]:
        """All lessons, those that every call is shown first."""
        return (*self.always, *self.lookup)

    def __str__(self) -> str:
        """Return the text that :func:`read_memory` reads back."""
        lines = [with_cues(lesson, cues) for lesson, cues in self.lookup.items()]
        text = write_section(self.own, self.always)
        text = write_section(text, lines, f"Lessons to look up, {self.k} at most:")
        return write_section(text, self.examples, f"Worked examples to look up, {self.k} at most:")


def write_example(inputs: Mapping[str, object], outputs: Mapping[str, object]) -> str:
    """Return a worked example as a line of a memory.

    Raises:
        TypeError: A value is none that JSON holds.
    """
    text = json.dumps({"inputs": dict(inputs), "outputs": dict(outputs)}, separators=(",", ":"))
    return text.replace("  ", " \\u0020")  # a section makes one blank of several


def read_example(line: str) -> dict[str, object]:
    """Return the fields of a worked example; none where the line is none."""
    try:
        parts = json.loads(line)
        return {**parts["inputs"], **parts["outputs"]}
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}


def read_memory(text: str, k: int) -> MemoryText:
    """Read a memory from any text; ``k`` is how many are looked up where the text does not say."""
    rest, of_examples, examples = split_section(text, _EXAMPLES)
    rest, of_lessons, lines = split_section(rest, _LESSONS)
    own, always = read_section(rest)
    lookup = dict(map(split_cues, lines))
    header = of_lessons or of_examples
    return MemoryText(own, tuple(always), lookup, tuple(examples), int(header[1]) if header else k)
