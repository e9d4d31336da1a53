"""What a reflection says in words, and what of it is worth keeping."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from combee_dspy.records import Lessons, Reflection
from combee_dspy.reflections import normalised

__all__ = ["feedback_of", "record_text", "result_lines", "teaches"]

_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_NUMBER = re.compile(r"\d")
_FEWEST_WORDS = 3
_MOST_CHARS = 20_000
_DEEPEST = 6
# What a verdict is made of: it says that something was wrong, not what to do about it.
_VERDICT = """a an and answer answered as be been but correct correctly error expected failed false for gave given got
    had has have here in incorrect incorrectly instead is it its mistake not of on ok output predicted prediction
    response result right score scored should that the this to trajectory true was were wrong yes no your you"""


def feedback_of(reflection: Reflection) -> str:
    """Return the text of a reflection's feedback, empty where it has none."""
    for key, value in reflection.record.items():
        if str(key).casefold() == "feedback":
            return " ".join(_texts(value))[:_MOST_CHARS]
    return ""


def record_text(reflection: Reflection) -> str:
    """Return all text of a reflection's record, without media."""
    return " ".join(_texts(dict(reflection.record)))[:_MOST_CHARS]


def teaches(feedback: str) -> bool:
    """Whether a feedback says in words what to do differently.

    At least three of its different words must be neither numbers nor part of
    a mere verdict ("Wrong: expected 3, got 4", "This trajectory got a score
    of 0.0"). The list of verdict words is English; in other languages every
    feedback of three words counts.
    """
    verdict = frozenset(_VERDICT.split())
    words = {word for word in normalised(feedback).split() if word.isalnum()}
    telling = {word for word in words if word not in verdict and not _NUMBER.search(word)}
    return len(telling) >= _FEWEST_WORDS


def result_lines(lessons: Lessons) -> tuple[str, ...]:
    """Return the lines of a result: its lessons, and a rewritten text's lines and sentences, each once."""
    lines = [lesson.text for lesson in lessons.lessons]
    for paragraph in (lessons.rewrite or "").splitlines():
        lines += [paragraph, *_SENTENCE.split(paragraph)]
    return tuple(dict.fromkeys(line.strip() for line in lines if line.strip()))


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (int, float)):
        yield str(value)
    elif depth < _DEEPEST and isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item, depth + 1)
    elif depth < _DEEPEST and isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item, depth + 1)
