"""Words by which a lesson is found: those of the inputs of the examples that teach it. Pure.

A question seldom has its lesson's words. It has those of questions of its kind. And words of every
input, such as a list of all labels, tell nothing of one.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from combee_dspy.texts import normalised

_CUES = re.compile(r" \[cues: ([^\[\]]*)\]\Z")
_MOST = 24
# A word of one example alone is as likely a name.
_LEAST_HOLDERS = 2
# A word that so large a share of all inputs has tells nothing.
_COMMON = 0.5
# Nor does one that comes of the form of inputs: nine in ten of those that have it teach other
# lessons.
_LEAST_SHARE = 0.1


def with_cues(lesson: str, cues: str) -> str:
    """Return a line of a memory: a lesson, and the words by which it is found.

    A lesson that itself ends like cues gets empty ones: the last are never the lesson's.
    """
    return f"{lesson} [cues: {cues}]" if cues or _CUES.search(lesson) else lesson


def split_cues(line: str) -> tuple[str, str]:
    """Return the lesson in a line of a memory, and its cues, empty where it has none."""
    match = _CUES.search(line)
    return (line[: match.start()], match[1]) if match else (line, "")


def own_words(lesson: str, cues: str) -> str:
    """Return those of a lesson's cues that are its own words; the lesson where none are."""
    own = set(normalised(lesson).split())
    return " ".join(word for word in cues.split() if word in own) or lesson


def choose_cues(lessons: Mapping[str, Sequence[str]], inputs: Mapping[str, str]) -> dict[str, str]:
    """Return for each lesson its own words that not most inputs have, then those that tell its
    examples from others, the best first.

    A word weighs n · ln(N / holders): n of the lesson's examples have it, and ``holders`` of all N.
    It is left out where n is less than a tenth of ``holders``.

    Args:
        lessons: The examples that teach each lesson, by its text.
        inputs: The inputs of every example.
    """
    words = {example: _words(text) for example, text in inputs.items()}
    holders = Counter(word for held in words.values() for word in held)
    chosen: dict[str, str] = {}
    for lesson, examples in lessons.items():
        own, taught = dict.fromkeys(normalised(lesson).split()), Counter[str]()
        for example in examples:
            taught.update(words.get(example, set()) - own.keys())
        weights = {
            word: count * math.log(len(words) / holders[word])
            for word, count in taught.items()
            if holders[word] >= _LEAST_HOLDERS and count >= _LEAST_SHARE * holders[word]
        }
        telling = [
            word for word in own if word[0].isalnum() and holders[word] <= _COMMON * len(words)
        ]
        by_weight = sorted(weights, key=lambda word: (-weights[word], word))
        others = [word for word in by_weight[:_MOST] if weights[word] > 0]
        chosen[lesson] = " ".join([*telling, *others])
    return chosen


def _words(text: str) -> set[str]:
    return {word for word in normalised(text).split() if word.isalpha()}
