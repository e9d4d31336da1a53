"""Texts as counts of hashed character n-grams: offline, in any script, and the same on every machine."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Characters at a time: what is held while they are hashed takes about 50 bytes each.
_CHUNK = 1_000_000
_SEPARATOR = 0xFFFFFFFF
# Odd constants with well mixed bits: the golden ratio's, and those of splitmix64's finalizer.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def ngram_counts(texts: Sequence[str], sizes: Sequence[int], buckets: int, *, signed: bool = False) -> Any:
    """Count character n-grams in hashed buckets (feature hashing: Weinberger et al. 2009, §2).

    Case and runs of white space do not count, nor do Unicode's compatible forms
    of one character. A blank stands on both sides of a text, so that a word's
    edge differs from its middle; a text shorter than an n-gram has none.

    Args:
        texts: n ≥ 0 texts of any length and script.
        sizes: Lengths of the n-grams in characters.
        buckets: How many there are, below 2**31. With 2**18 two n-grams hardly ever share one.
        signed: Whether an n-gram adds +1 or −1 by its hash, so that collisions cancel on average.

    Returns:
        A ``scipy.sparse`` CSR matrix of shape (n, buckets), ``float32``, rows in the order of the texts.
    """
    from scipy import sparse

    parts = [_counts(chunk, sizes, buckets, signed) for chunk in _chunks(texts)]
    return sparse.vstack(parts, format="csr") if parts else sparse.csr_matrix((0, buckets), dtype=np.float32)


def _counts(texts: Sequence[str], sizes: Sequence[int], buckets: int, signed: bool) -> Any:
    from scipy import sparse

    characters, owners = _characters(texts)
    found = [_ngrams(characters, owners, size) for size in sizes]
    hashes = np.concatenate([part for part, _ in found])
    rows = np.concatenate([of for _, of in found])
    columns = (hashes % np.uint64(buckets)).astype(np.int32)
    data = np.where(hashes >> np.uint64(63), 1.0, -1.0) if signed else np.ones(len(hashes))
    shape = (len(texts), buckets)
    # From coordinates to CSR, equal places are added up.
    return sparse.coo_matrix((data.astype(np.float32), (rows, columns)), shape=shape).tocsr()


def _chunks(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    first, taken = 0, 0
    for number, text in enumerate(texts, start=1):
        taken += len(text)
        if taken >= _CHUNK or number == len(texts):
            yield texts[first:number]
            first, taken = number, 0


def _characters(texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the code points of all texts, one after another with a mark between, and whose each one is."""
    codes: list[NDArray[np.uint32]] = []
    for text in texts:
        words = unicodedata.normalize("NFKC", text).casefold().split()
        padded = f" {' '.join(words)} " if words else ""
        codes.append(np.frombuffer(padded.encode("utf-32-le", "surrogatepass"), dtype="<u4"))
        codes.append(np.array([_SEPARATOR], dtype=np.uint32))
    lengths = np.array([part.size for part in codes], dtype=np.int64)
    owners = np.repeat(np.arange(len(codes), dtype=np.int64) // 2, lengths)
    return np.concatenate(codes).astype(np.uint64), owners


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
