"""Hashed character n-grams: an embedder that needs no model, no download and no service."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from combee_dspy.diversity._base import Embedder, Vectors, unit_rows
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError

__all__ = ["CharNgrams", "character_ngrams"]

_CHUNK = 512
_SEPARATOR = 0xFFFFFFFF
_SIZES = (3, 4, 5)
_DIMENSIONS = 2048
# Odd constants with well mixed bits: the golden ratio's, and those of splitmix64's finalizer.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class CharNgrams(Embedder):
    """Counts character n-grams in hashed buckets; works offline, in any script, and sees spelling only.

    The default. Two texts are alike as far as they share runs of characters, so
    it finds rewordings that keep most words, moved lines and changed
    punctuation. It does not know that two words mean the same: a paraphrase in
    other words passes. Case and runs of white space do not count.

    Each n-gram adds +1 or −1 to one bucket, by a 64-bit hash that is the same in
    every process and on every machine (feature hashing: Weinberger et al. 2009,
    "Feature Hashing for Large Scale Multitask Learning", §2). About 10,000
    short texts a second on one core.

    Args:
        sizes: Lengths of the n-grams in characters, each from 1 to 16.
        dimensions: Buckets, at least 16. Chance similarity of unlike texts is about 1/√dimensions.
    """

    name: ClassVar[str] = "char-ngrams"
    MEASURED_THRESHOLD: ClassVar[float] = 0.728
    """For the default parameters. ``python -m combee_dspy.diversity.calibrate`` measures it again."""

    def __init__(self, sizes: tuple[int, ...] = _SIZES, dimensions: int = _DIMENSIONS) -> None:
        self.sizes = sizes
        self.dimensions = dimensions

    def validate(self) -> None:
        """Check the parameters.

        Raises:
            ArgumentTypeError: A parameter is of another type.
            ArgumentValueError: A parameter is out of its range.
        """
        if not isinstance(self.sizes, (tuple, list)) or not all(type(size) is int for size in self.sizes):
            raise ArgumentTypeError("sizes", self.sizes, "is no tuple of whole numbers", "Give (3, 4, 5).")
        if not self.sizes or not all(1 <= size <= 16 for size in self.sizes):
            raise ArgumentValueError("sizes", self.sizes, "are not all from 1 to 16", "Give (3, 4, 5).")
        if type(self.dimensions) is not int:
            raise ArgumentTypeError("dimensions", self.dimensions, "is no whole number", "Give 2048.")
        if self.dimensions < 16:
            raise ArgumentValueError("dimensions", self.dimensions, "is below 16", "Give 2048.")

    def threshold(self) -> float | None:
        """Return :attr:`MEASURED_THRESHOLD` for the default parameters; for others it was not measured."""
        default = tuple(self.sizes) == _SIZES and self.dimensions == _DIMENSIONS
        return self.MEASURED_THRESHOLD if default else None

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the hashed n-gram counts, scaled to length 1.

        Raises:
            ArgumentTypeError: A parameter of this strategy has another type.
            ArgumentValueError: A parameter of this strategy is out of range.
        """
        self.validate()
        rows = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for start in range(0, len(texts), _CHUNK):
            chunk = texts[start : start + _CHUNK]
            rows[start : start + len(chunk)] = unit_rows(self._counts(chunk), len(chunk))
        return rows

    def _counts(self, texts: Sequence[str]) -> NDArray[np.float64]:
        characters, owners = _characters(texts)
        counts = np.zeros(len(texts) * self.dimensions, dtype=np.float64)
        for size in self.sizes:
            hashes, of = _ngrams(characters, owners, size)
            buckets = of * self.dimensions + (hashes % np.uint64(self.dimensions)).astype(np.int64)
            # The top bit decides the sign, so that collisions cancel on average.
            signs = np.where(hashes >> np.uint64(63), 1.0, -1.0)
            counts += np.bincount(buckets, weights=signs, minlength=counts.size)
        return counts.reshape(len(texts), self.dimensions)


def character_ngrams(texts: Sequence[str]) -> Vectors:
    """Return the vectors of :class:`CharNgrams` with its default parameters."""
    return CharNgrams().embed(texts)


def _characters(texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the code points of all texts, one after another with a mark between, and whose each one is."""
    codes: list[NDArray[np.uint32]] = []
    for text in texts:
        words = unicodedata.normalize("NFKC", text).casefold().split()
        # Blanks at both ends let short words have n-grams too, and tell a word's edge from its middle.
        padded = f" {' '.join(words)} " if words else ""
        codes.append(np.frombuffer(padded.encode("utf-32-le", "surrogatepass"), dtype="<u4"))
        codes.append(np.array([_SEPARATOR], dtype=np.uint32))
    lengths = np.array([part.size for part in codes], dtype=np.int64)
    owners = np.repeat(np.arange(len(codes), dtype=np.int64) // 2, lengths)
    joined = np.concatenate(codes).astype(np.uint64) if codes else np.zeros(0, dtype=np.uint64)
    return joined, owners


def _ngrams(
    characters: NDArray[np.uint64], owners: NDArray[np.int64], size: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return a hash per n-gram that lies within one text, and whose it is."""
    count = characters.size - size + 1
    if count < 1:
        return np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64)
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
