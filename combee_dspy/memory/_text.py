"""A memory as a component's text: the instruction, what always stands there, what is looked up."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from combee_dspy.lessons import read_section, split_section, write_section
from combee_dspy.memory._cues import without_cues

_HEADER = re.compile(r"Lessons to look up, (\d{1,4}) at most:")


@dataclass(frozen=True, slots=True)
class MemoryText:
    """What a memory's text holds.

    Attributes:
        own: The instruction.
        always: Lessons that every call is shown.
        lookup: Lines of which a call is shown the nearest: lessons with their cues, and examples.
        k: How many of them at most.
    """

    own: str
    always: tuple[str, ...]
    lookup: tuple[str, ...]
    k: int

    @property
    def lessons(self) -> tuple[str, ...]:
        """All lessons, those that always stand there first."""
        return (
            *self.always,
            *(without_cues(line) for line in self.lookup if not read_example(line)),
        )

    def __str__(self) -> str:
        """Return the text that :func:`read_memory` reads back."""
        text = write_section(self.own, self.always)
        header = f"Lessons to look up, {self.k} at most:"
        return write_section(text, self.lookup, header) if self.lookup else text


def write_example(inputs: Mapping[str, str], outputs: Mapping[str, str]) -> str:
    """Return a worked example as a line of a memory."""
    text = json.dumps({"inputs": dict(inputs), "outputs": dict(outputs)}, separators=(",", ":"))
    return text.replace("  ", " \\u0020")  # a section makes one blank of several


def read_example(line: str) -> dict[str, str]:
    """Return the fields of a worked example; none where the line is a lesson."""
    if not line.startswith('{"inputs":{'):
        return {}
    try:
        parts = json.loads(line)
        fields = {**parts["inputs"], **parts["outputs"]}
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    return {name: str(value) for name, value in fields.items()}


def read_memory(text: str, k: int) -> MemoryText:
    """Read a memory from any text; ``k`` is how many are looked up where the text does not say."""
    rest, header, lookup = split_section(text, _HEADER)
    own, always = read_section(rest)
    return MemoryText(own, tuple(always), tuple(lookup), int(header[1]) if header else k)
