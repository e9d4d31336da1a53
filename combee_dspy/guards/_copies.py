"""Finding text that was copied from training examples."""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import numpy as np
import pydantic
from numpy.typing import NDArray

from combee_dspy.reflections import is_media

Hashes = NDArray[np.uint64]

# Scripts that write no spaces: each character counts as a word.
_UNSPACED = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
_MASK = (1 << 64) - 1
_BASE = 0x9E3779B97F4A7C15
_WHOLE = 8
_COMMON_SHARE = 0.1
_COMMON_LEAST = 3


class CopyIndex:
    """The runs of words that training examples consist of, as 64-bit hashes. Immutable, safe to share.

    A text copies an example when it shares more than ``max_words`` consecutive
    words with one of its values, inputs or labels, or contains a value of at least
    eight words as a whole. Case, punctuation, markup and white space do not count.

    Text that many examples share is the task's own, not a copy of one of them: lists of
    labels, boilerplate of a template, a passage that every question is about. A run
    counts as such when at least a tenth of the examples have it, and at least three.

    Built in one pass, in time linear in the words; 8 bytes a run are kept, each once.

    Args:
        examples: ``dspy.Example`` objects or mappings. Texts inside lists and mappings
            count; images and other objects do not.
        max_words: The longest run that is no copy, at least 1.
    """

    def __init__(self, examples: Iterable[Any], max_words: int = 12) -> None:
        known = _WordHashes()
        found: dict[int, list[Hashes]] = {}
        count = 0
        for example in examples:
            count += 1
            for size, parts in _example_runs(example, max_words + 1, known).items():
                # An example that repeats itself is still one example.
                found.setdefault(size, []).append(np.unique(np.concatenate(parts)))
        common = max(_COMMON_LEAST, math.ceil(_COMMON_SHARE * count))
        self._runs: dict[int, Hashes] = {}
        for size, parts in found.items():
            values, times = np.unique(np.concatenate(parts), return_counts=True)
            self._runs[size] = values[times < common]

    def __len__(self) -> int:
        return sum(len(hashes) for hashes in self._runs.values())

    def copied(self, text: str, exempt: Iterable[str] = ()) -> str:
        """Return the longest stretch of a text that is copied, normalised; empty where nothing is.

        Args:
            text: What to look through.
            exempt: Texts whose own runs are no copies, such as the seed's.
        """
        words = _words(text)
        marked = self._marked(words, [_words(own) for own in exempt])
        stretches = [list(places) for inside, places in groupby(range(len(words)), marked.__getitem__) if inside]
        return " ".join(words[place] for place in max(stretches, key=len, default=[]))

    def _marked(self, words: Sequence[str], exempt: Sequence[Sequence[str]]) -> list[bool]:
        """Return which words lie in a run that counts as a copy."""
        known = _WordHashes()
        marked = [False] * len(words)
        for size, hashes in self._runs.items():
            mine = _run_hashes(words, size, known)
            if not len(mine) or not len(hashes):
                continue
            # By bisection: np.isin would sort the whole index for every text.
            nearest = np.minimum(np.searchsorted(hashes, mine), len(hashes) - 1)
            hit = hashes[nearest] == mine
            for own in exempt:
                hit &= ~np.isin(mine, _run_hashes(own, size, known))
            for start in np.flatnonzero(hit).tolist():
                marked[start : start + size] = [True] * size
        return marked


class _WordHashes(dict[str, int]):
    """A 64-bit hash by word, computed once each."""

    def __missing__(self, word: str) -> int:
        digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return self.setdefault(word, int.from_bytes(digest))


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def _example_runs(example: Any, longest: int, known: _WordHashes) -> dict[int, list[Hashes]]:
    found: dict[int, list[Hashes]] = {}
    for value in _values(example):
        words = _words(value)
        size = min(len(words), longest)
        if size >= min(longest, _WHOLE):
            found.setdefault(size, []).append(_run_hashes(words, size, known))
    return found


def _run_hashes(words: Sequence[str], size: int, known: _WordHashes) -> Hashes:
    """Return one 64-bit hash per run of ``size`` words, in order; arithmetic is modulo 2**64."""
    count = max(0, len(words) - size + 1)
    hashes = np.array([known[word] for word in words], dtype=np.uint64)
    runs = np.zeros(count, dtype=np.uint64)
    factor = 1
    for offset in range(size if count else 0):
        runs += hashes[offset : offset + count] * np.uint64(factor)
        factor = factor * _BASE & _MASK
    return runs


def _values(value: Any) -> Iterator[str]:
    """Yield the texts of an example, one per value; a list of texts is one text, as tokenised data has it."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        plain = [item for item in value if isinstance(item, str)]
        if plain:
            yield " ".join(plain)
        for item in value:
            if not isinstance(item, str):
                yield from _values(item)
    else:
        for item in _fields(value).values():
            yield from _values(item)


def _fields(value: Any) -> Mapping[Any, Any]:
    if isinstance(value, Mapping):
        return value
    if callable(getattr(value, "with_inputs", None)):
        return dict(value.items())
    # The address or the bytes of an image are no text.
    return dict(value) if isinstance(value, pydantic.BaseModel) and not is_media(value) else {}
