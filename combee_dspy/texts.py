"""Tells texts apart without an LM: by their words, and by counts of hashed character n-grams."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

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

# Characters at a time: what is held while they are hashed takes about 50 bytes each.
_CHUNK = 1_000_000
_SEPARATOR = 0xFFFFFFFF
# Odd constants with well mixed bits: the golden ratio's, and those of splitmix64's finalizer.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))

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


def normalised(text: str) -> str:
    """Return a text as lower-case words, numbers and operators; equal results say the same."""
    folded = (
        unicodedata.normalize("NFKC", text)
        .casefold()
        .replace("**", "")
        .replace("'", "")
        .replace("’", "")
    )
    return " ".join(_TOKEN.findall(folded))


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


def ngram_counts(
    texts: Sequence[str], sizes: Sequence[int], buckets: int, *, signed: bool = False
) -> Any:
    """Count character n-grams in hashed buckets (feature hashing: Weinberger et al. 2009, §2).

    Offline, in any script, and the same on every machine. Case and runs of white space do not
    count, nor do Unicode's compatible forms of one character. Each text gets a blank on both
    sides, so that a word's edge differs from its middle; a text shorter than an n-gram has none.

    Args:
        texts: n ≥ 0 texts of any length and script.
        sizes: Lengths of the n-grams in characters.
        buckets: How many there are, below 2**31. With 2**18 two n-grams hardly ever share one.
        signed: Whether an n-gram adds +1 or −1 by its hash, so that collisions cancel on average.

    Returns:
        A ``scipy.sparse`` CSR matrix of shape (n, buckets), ``float32``, rows in the order of the
        texts.
    """
    from scipy import sparse

    parts = [sparse.csr_matrix((0, buckets), dtype=np.float32)]
    for chunk in _chunks(texts):
        characters, owners = _characters(chunk)
        ngrams = [_ngrams(characters, owners, size) for size in sizes]
        hashes = np.concatenate([part for part, _ in ngrams])
        rows = np.concatenate([of for _, of in ngrams])
        columns = (hashes % np.uint64(buckets)).astype(np.int32)
        data = np.where(hashes >> np.uint64(63), 1.0, -1.0) if signed else np.ones(len(hashes))
        # From coordinates to CSR, equal places are added up.
        counted = sparse.coo_matrix(
            (data.astype(np.float32), (rows, columns)), shape=(len(chunk), buckets)
        )
        parts.append(counted.tocsr())
    return sparse.vstack(parts, format="csr")


def unit_length(rows: ArrayLike) -> NDArray[np.float32]:
    """Return a matrix's rows scaled to length 1; a row of zeros stays one."""
    # Scaled by the largest entry first, so that squares neither overflow nor vanish.
    values = np.asarray(rows, dtype=np.float64)
    largest = np.abs(values).max(axis=1, keepdims=True)
    values = values / np.where(largest > 0, largest, 1.0)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    unit: NDArray[np.float32] = (values / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
    return unit


def _chunks(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    first, length = 0, 0
    for number, text in enumerate(texts, start=1):
        length += len(text)
        if length >= _CHUNK or number == len(texts):
            yield texts[first:number]
            first, length = number, 0


def _characters(texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the code points of all texts, each with a mark behind it, and whose each one is."""
    codes: list[NDArray[np.uint64]] = []
    for text in texts:
        words = unicodedata.normalize("NFKC", text).casefold().split()
        padded = f" {' '.join(words)} " if words else ""
        points = np.frombuffer(padded.encode("utf-32-le", "surrogatepass"), dtype="<u4")
        codes.append(np.append(points, np.uint32(_SEPARATOR)).astype(np.uint64))
    owners = np.repeat(np.arange(len(codes), dtype=np.int64), [part.size for part in codes])
    return np.concatenate(codes), owners


def _ngrams(
    characters: NDArray[np.uint64], owners: NDArray[np.int64], size: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return a hash per n-gram that lies within one text, and whose it is."""
    count = max(characters.size - size + 1, 0)
    hashes = np.full(count, size, dtype=np.uint64)
    inside = np.ones(count, dtype=bool)
    for offset in range(size):
        part = characters[offset : offset + count]
        inside &= part != _SEPARATOR
        # Unsigned arithmetic wraps around by definition, alike on every machine.
        hashes = _mixed(hashes + part + _GOLDEN)
    return hashes[inside], owners[:count][inside]


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return values in which every input bit has reached every output bit."""
    values = (values ^ (values >> np.uint64(30))) * _MIX[0]
    values = (values ^ (values >> np.uint64(27))) * _MIX[1]
    mixed: NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed
