"""Telling lessons apart by their words, without an LM."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from itertools import pairwise

# Decimal marks stay inside numbers, and what a formula is written with counts as a word.
_TOKEN = re.compile(r"\d+(?:[.,]\d+)*|\w+|!=|[^\w\s.,;:!?\"`]")
_FORMULA = re.compile(r"[=+*/^<>≤≥×÷−]|\s-\s")
_PERCENT = re.compile(r"[%$€£]")
# Lessons that differ in one of these say different things, however alike they look.
_POLAR_WORDS = """no not never none nor without cannot dont doesnt isnt arent wont shouldnt mustnt avoid always only
    except unless before after above below more less higher lower"""
_POLAR = frozenset(_POLAR_WORDS.split())


def normalised(text: str) -> str:
    """Return a text reduced to its lower-case words, numbers and operators: equal results say the same thing."""
    folded = unicodedata.normalize("NFKC", text).casefold().replace("**", "").replace("'", "").replace("’", "")
    return " ".join(_TOKEN.findall(folded))


_Pair = tuple[str, str]


class NearDuplicates:
    """Finds texts that say what an earlier one said. Not thread-safe.

    Two texts are near-duplicates when they are equal once normalised, or when
    the Jaccard similarity of their sets of word pairs reaches the threshold and
    they agree in every number, unit symbol and word of polarity ("never",
    "only"): rounding to two and to four decimals look alike and are two lessons.
    Texts with a formula are only compared exactly, since a/b is not b/a.

    Time grows with the texts, not with their square: a text is compared only
    with those that hold one of its rarest pairs, which every near-duplicate does.
    """

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._distinct = 0
        self._exact: dict[str, int] = {}
        self._pairs: dict[int, frozenset[_Pair]] = {}
        # Texts that differ in a telling word are never one, so they are not compared at all.
        self._holders: dict[frozenset[str], defaultdict[_Pair, list[int]]] = {}

    def add(self, text: str) -> bool:
        """Take a text in. Returns whether it was new."""
        distinct = self._distinct
        return self.place(text) == distinct

    def place(self, text: str) -> int:
        """Take a text in. Returns its number among the distinct texts, from 0: a repeated one has its first one's."""
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
            word for word in words if word in _POLAR or _PERCENT.match(word) or any(c.isdigit() for c in word)
        )
        holders = self._holders.setdefault(telling, defaultdict(list))
        # A near-duplicate shares at least this many of the pairs, so at most the others are foreign to it: of
        # one pair more than those, it holds one. Rounded down, so that no rounding hides it.
        shared = math.floor(self._threshold * len(pairs) * (1 - 1e-9))
        rarest = sorted(pairs, key=lambda pair: (len(holders[pair]), pair))[: len(pairs) - shared + 1]
        for number in sorted({number for pair in rarest for number in holders[pair]}):
            other = self._pairs[number]
            if len(pairs & other) >= self._threshold * len(pairs | other):
                return number
        self._pairs[self._distinct] = pairs
        for pair in pairs:
            holders[pair].append(self._distinct)
        return self._distinct


def join_texts(lists: Iterable[Iterable[str]]) -> list[str]:
    """Return all texts of all lists in order, without those that are equal once normalised."""
    joined: dict[str, str] = {}
    for texts in lists:
        for text in texts:
            joined.setdefault(normalised(text), text)
    return list(joined.values())
