"""Words by which a lesson is found: those of the inputs of the examples that teach it. Pure.

A question seldom says what its lesson says. It says what questions of its kind say.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from combee_dspy.texts import normalised

_CUES = re.compile(r" \[cues: ([^\[\]]*)\]\Z")
_MOST = 24
# A word of one example alone is as likely a name.
_LEAST_HOLDERS = 2


def with_cues(lesson: str, cues: Iterable[str]) -> str:
    """Return a line of a memory: a lesson, and the words by which it is found besides its own."""
    words = " ".join(cues)
    return f"{lesson} [cues: {words}]" if words else lesson


def without_cues(line: str) -> str:
    """Return the lesson in a line of a memory."""
    return _CUES.sub("", line)


def choose_cues(
    lessons: Mapping[str, Sequence[str]], inputs: Mapping[str, str]
) -> dict[str, list[str]]:
    """Return for each lesson the words that tell its examples from others, the best first.

    A word weighs n · ln(N / holders): n of the lesson's examples have it, and ``holders`` of all N.

    Args:
        lessons: The examples that teach each lesson, by its text.
        inputs: The inputs of every example.
    """
    words = {example: _words(text) for example, text in inputs.items()}
    holders = Counter(word for held in words.values() for word in held)
    chosen: dict[str, list[str]] = {}
    for lesson, examples in lessons.items():
        own, taught = _words(lesson), Counter[str]()
        for example in examples:
            taught.update(words.get(example, set()) - own)
        weights = {
            word: count * math.log(len(words) / holders[word])
            for word, count in taught.items()
            if holders[word] >= _LEAST_HOLDERS
        }
        chosen[lesson] = sorted(
            (word for word in weights if weights[word] > 0),
            key=lambda word: (-weights[word], word),
        )[:_MOST]
    return chosen


def _words(text: str) -> set[str]:
    return {word for word in normalised(text).split() if word.isalpha()}
