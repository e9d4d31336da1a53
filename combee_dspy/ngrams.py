"""Counts the hashed character n-grams of texts, without an LM."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Characters at a time: what is held while they are hashed takes about 50 bytes each.
_CHUNK = 1_000_000
_SEPARATOR = 0xFFFFFFFF
# Odd constants with well mixed bits: the golden ratio's, and those of splitmix64's finalizer.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


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
