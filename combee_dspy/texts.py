"""Tells texts apart by their words, without an LM."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import defaultdict
from functools import lru_cache
from itertools import pairwise

# Scripts that set no blanks: each sign is a word, else a sentence would be one.
_SIGN = (
    r"\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
)
# Decimal marks stay inside numbers, and what a formula is written with counts as a word.
_TOKEN = re.compile(rf"\d+(?:[.,]\d+)*|[{_SIGN}]|[^\W{_SIGN}]+|!=|[^\w\s.,;:!?\"`]")
_FORMULA = re.compile(r"[=+*/^<>≤≥×÷−]|\s-\s")
_UNIT = re.compile(r"[%$€£]")
# Lessons that differ in one of these say different things, however alike they look.
_POLAR_WORDS = """
    no not never none nor without cannot dont doesnt isnt arent wont shouldnt mustnt avoid
    always only except unless before after above below more less higher lower
"""
_POLAR = frozenset(_POLAR_WORDS.split())

_Pair = tuple[str, str]

_DIGITS = re.compile(r"\d+(?:[.,]\d+)*")
_SMALL = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
    fifteen sixteen seventeen eighteen nineteen
"""
_TENS = """twenty thirty forty fifty sixty seventy eighty ninety"""
_NUMBER_WORDS = {word: str(value) for value, word in enumerate(_SMALL.split())}
_NUMBER_WORDS |= {word: str(10 * value) for value, word in enumerate(_TENS.split(), start=2)}
_NUMBER_WORDS |= {"hundred": "100", "thousand": "1000", "million": "1000000"}


# A run reads the lessons of its book with every update: what is known of so many short texts stays.
_REMEMBERED, _SHORT = 16_384, 400


def normalised(text: str) -> str:
    """Return a text as lower-case words, numbers and operators; equal results say the same."""
    return _remembered(text) if len(text) <= _SHORT else _normalise(text)


def _normalise(text: str) -> str:
    folded = (
        unicodedata.normalize("NFKC", text)
        .casefold()
        .replace("**", "")
        .replace("'", "")
        .replace("’", "")
    )
    return " ".join(_TOKEN.findall(folded))


_remembered = lru_cache(maxsize=_REMEMBERED)(_normalise)


def numbers_in(text: str) -> frozenset[str]:
    """Return the numbers in a text as digits, English number words among them: "two" is "2"."""
    words = (_NUMBER_WORDS[word] for word in normalised(text).split() if word in _NUMBER_WORDS)
    return frozenset((*_DIGITS.findall(text), *words))


class NearDuplicates:
    """Finds texts that say what an earlier one said. Not thread-safe.

    Two texts are near-duplicates when they are equal once normalised, or when the Jaccard
    similarity of their sets of word pairs reaches the threshold and they agree in every number,
    number word, unit symbol and word of polarity ("never", "only"): rounding to two and to four
    decimals look alike and are two lessons. Texts with a formula are only compared exactly, since
    a/b is not b/a.

    Time grows with the texts, not with their square: a text is compared only with those that hold
    one of its rarest pairs, which every near-duplicate does.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._distinct = 0
        self._exact: dict[str, int] = {}
        self._pairs: dict[int, frozenset[_Pair]] = {}
        # Texts that differ in a telling word are never one, so they are not compared at all.
        self._holders: dict[frozenset[str], defaultdict[_Pair, list[int]]] = {}

    def place(self, text: str) -> int:
        """Take a text in, and return its number among the distinct texts, from 0."""
        exact = normalised(text)
        if exact not in self._exact:
            self._exact[exact] = self._nearest(text, exact)
            self._distinct = max(self._distinct, self._exact[exact] + 1)
        return self._exact[exact]

    def _nearest(self, text: str, exact: str) -> int:
        if _FORMULA.search(text):
            return self._distinct
        words = exact.split()
        pairs = frozenset(pairwise(["", *words, ""]))
        telling = frozenset(
            _NUMBER_WORDS.get(word, word)
            for word in words
            if word in _POLAR
            or word in _NUMBER_WORDS
            or _UNIT.match(word)
            or any(c.isdigit() for c in word)
        )
        holders = self._holders.setdefault(telling, defaultdict(list))
        # A near-duplicate shares at least this many of the pairs, so at most the others are foreign
        # to it: of one pair more than those, it holds one. Rounded down, so that no rounding hides
        # it.
        shared = math.floor(self._threshold * len(pairs) * (1 - 1e-9))
        rarest = sorted(pairs, key=lambda pair: (len(holders[pair]), pair))[
            : len(pairs) - shared + 1
        ]
        for number in sorted({number for pair in rarest for number in holders[pair]}):
            other = self._pairs[number]
            if len(pairs & other) >= self._threshold * len(pairs | other):
                return number
        self._pairs[self._distinct] = pairs
        for pair in pairs:
            holders[pair].append(self._distinct)
        return self._distinct
