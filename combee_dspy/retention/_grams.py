"""Texts as sets of character 5-grams, numbered alike for all of them; computed in bulk, without a set per text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from combee_dspy.reflections import normalised

__all__ = ["Bags", "bags_of"]

Positions = npt.NDArray[np.intp]

_GRAM = 5
# Windows at a time: what is held while they are numbered takes about 64 bytes each.
_CHUNK = 1_000_000
# Where five characters of an alphabet do not fit 64 bits, they are hashed to 64 bits by this odd factor.
_FACTOR = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True)
class Bags:
    """The different grams of each text.

    Attributes:
        starts: Where each text's grams begin in ``grams``; one more than there are texts.
        grams: Numbers of grams, ascending within a text, each once.
        size: How many different grams there are.
        same: A number for each text that texts with equal grams share; −1 where a text has none.
    """

    starts: Positions
    grams: npt.NDArray[np.int32]
    size: int
    same: Positions

    @property
    def counts(self) -> Positions:
        """How many grams each text has."""
        return np.diff(self.starts)

    def holders(self) -> npt.NDArray[np.intp]:
        """Return how many different sets hold each gram: equal texts count once."""
        _, first = np.unique(self.same, return_index=True)
        return np.bincount(self.grams[self._places(first)], minlength=self.size)

    def rows(self, texts: Positions) -> tuple[Positions, npt.NDArray[np.int32]]:
        """Return ``starts`` and ``grams`` of some texts, by position."""
        starts = np.concatenate([[0], np.cumsum(self.counts[texts])])
        return starts, self.grams[self._places(texts)]

    def _places(self, texts: Positions) -> Positions:
        counts = self.counts[texts]
        ends = np.cumsum(counts)
        return np.arange(ends[-1] if len(ends) else 0) + np.repeat(self.starts[texts] - ends + counts, counts)


def bags_of(texts: Sequence[str]) -> Bags:
    """Return the grams of texts, once normalised and padded by a blank on both sides.

    A text shorter than a gram is one gram of its own. Exact for alphabets of up
    to 7,131 characters; with more, two grams agree by accident with a
    probability of about 2⁻⁶⁴ a pair.

    Args:
        texts: Any; repeated ones are computed once.
    """
    distinct = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    padded = [f" {plain} " if (plain := normalised(text)) else "" for text in distinct]
    alphabet = _alphabet(padded)
    parts = [_numbered(padded[first:last], alphabet) for first, last in _chunks(padded)]
    known = _different(np.concatenate([keys for keys, _, _ in parts])) if parts else np.zeros(0, np.uint64)
    grams = [np.searchsorted(known, keys).astype(np.int32)[own] for keys, own, _ in parts]
    counts = np.concatenate([count for _, _, count in parts]) if parts else np.zeros(0, np.intp)
    one = Bags(
        np.concatenate([[0], np.cumsum(counts)]),
        np.concatenate(grams) if grams else np.zeros(0, np.int32),
        len(known),
        np.arange(len(padded)),
    )
    every = np.array([distinct[text] for text in texts], np.intp)
    starts, chosen = one.rows(every)
    return Bags(starts, chosen, one.size, _same(one)[every])


def _same(bags: Bags) -> Positions:
    numbers: dict[bytes, int] = {b"": -1}
    bounds = bags.starts.tolist()
    keys = (bags.grams[first:last].tobytes() for first, last in pairwise(bounds))
    return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.intp)


def _chunks(padded: Sequence[str]) -> list[tuple[int, int]]:
    bounds, taken = [0], 0
    for number, text in enumerate(padded, start=1):
        taken += len(text)
        if taken >= _CHUNK or number == len(padded):
            bounds.append(number)
            taken = 0
    return list(pairwise(bounds))


def _codes(padded: Sequence[str]) -> npt.NDArray[np.uint32]:
    joined = "".join(text.ljust(_GRAM, "\0") for text in padded if text)
    return np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype="<u4").astype(np.uint32, copy=False)


def _alphabet(padded: Sequence[str]) -> npt.NDArray[np.uint64]:
    """Return each code point's number among those in use, from 1; 0 stands after the end of a short text."""
    # As far as the texts go, not all of Unicode: that is milliseconds even for a handful of short ones.
    used = np.zeros(1 + max((ord(max(text)) for text in padded if text), default=0), bool)
    for first, last in _chunks(padded):
        used[_codes(padded[first:last])] = True
    return np.where(used, np.cumsum(used), 0).astype(np.uint64)


def _numbered(
    padded: Sequence[str], alphabet: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.intp], Positions]:
    """Return the keys of all grams ascending, each text's grams as places among them, and how many it has."""
    lengths = np.array([max(len(text), _GRAM) if text else 0 for text in padded], np.intp)
    ends = np.cumsum(lengths)
    characters = alphabet[_codes(padded)]
    for number in np.flatnonzero(lengths == _GRAM).tolist():
        characters[ends[number] - _GRAM + len(padded[number]) : ends[number]] = 0
    windows = np.maximum(lengths - _GRAM + 1, 0)
    owners = np.repeat(np.arange(len(padded)), windows)
    # Each text has fewer windows than characters: those before it shift its own.
    shift = ends - lengths - (np.cumsum(windows) - windows)
    places = np.arange(len(owners)) + shift[owners]
    letters = int(alphabet.max()) + 1
    factor = np.uint64(letters if letters**_GRAM < 2**64 else _FACTOR)
    keys = np.zeros(len(places), np.uint64)
    for offset in range(_GRAM):
        keys = keys * factor + characters[places + offset]
    known, own = np.unique(keys, return_inverse=True)
    size = max(len(known), 1)
    pairs = _different(owners * size + own.reshape(-1))
    return known, pairs % size, np.bincount(pairs // size, minlength=len(padded))


def _different(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the different values, ascending; sorting is several times faster than NumPy's own way by hashing."""
    values.sort()
    return values[np.concatenate([[True], values[1:] != values[:-1]])] if len(values) else values
