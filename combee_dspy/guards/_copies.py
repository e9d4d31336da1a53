"""Finding text that was copied from training examples."""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import pydantic

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import Demonstration
from combee_dspy.reflections import is_media

__all__ = ["CopyIndex", "copied_in_demonstrations"]

# Scripts that write no spaces: each character counts as a word.
_UNSPACED = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
_MASK = (1 << 64) - 1
_BASE = 0x9E3779B97F4A7C15
_WHOLE = 8
_DEEPEST = 16


class CopyIndex:
    """The runs of words that training examples consist of, as 64-bit hashes. Immutable, safe to share.

    A text copies an example when it shares more than ``max_words`` consecutive
    words with one of its values, inputs or labels, or contains a value of at least
    eight words as a whole. Case, punctuation, markup and white space do not count.

    Text that many examples share is the task's own, not a copy of one of them: lists of
    labels, boilerplate of a template, a passage that every question is about. A run
    counts as such when at least ``common_share`` of the examples have it, and at least
    three.

    Built in one pass, in time linear in the words; 8 bytes a run are kept, each once.

    Args:
        max_words: The longest run that is no copy.
        runs: Sorted hashes of what counts as a copy, by the length of the run.
    """

    def __init__(self, max_words: int, runs: Mapping[int, Any]) -> None:
        self._max_words = max_words
        self._runs = dict(runs)

    @classmethod
    def build(cls, examples: Iterable[Any], max_words: int = 12, *, common_share: float = 0.1) -> Self:
        """Index training examples.

        Args:
            examples: ``dspy.Example`` objects or mappings. Texts inside lists and mappings
                count; images and other objects do not.
            max_words: The longest run that is no copy.
            common_share: The share of examples from which a run is the task's own text.

        Raises:
            ArgumentValueError: ``max_words`` is below 1, or ``common_share`` not in (0, 1].
        """
        import numpy as np

        if max_words < 1:
            raise ArgumentValueError("max_words", max_words, "is below 1", "Give a whole number from 1.")
        if not 0 < common_share <= 1:
            raise ArgumentValueError("common_share", common_share, "is not in (0, 1]", "Give a share such as 0.1.")
        longest = max_words + 1
        known: dict[str, int] = {}
        found: dict[int, list[Any]] = {}
        count = 0
        for example in examples:
            count += 1
            for size, hashes in _example_runs(example, longest, known).items():
                # An example that repeats itself is still one example.
                found.setdefault(size, []).append(np.unique(hashes))
        common = max(3, math.ceil(common_share * count))
        runs = {}
        for size, parts in found.items():
            values, times = np.unique(np.concatenate(parts), return_counts=True)
            runs[size] = values[times < common]
        return cls(max_words, runs)

    def __len__(self) -> int:
        return sum(len(hashes) for hashes in self._runs.values())

    def copied(self, text: str, exempt: Iterable[str] = ()) -> str:
        """Return the longest stretch of a text that is copied, normalised; empty where nothing is.

        Args:
            text: What to look through.
            exempt: Texts whose own runs are no copies, such as the seed's.
        """
        words = _words(text)
        start, end = max(_stretches(self._marked(words, exempt)), key=lambda found: found[1] - found[0], default=(0, 0))
        return " ".join(words[start:end])

    def copied_words(self, text: str, exempt: Iterable[str] = ()) -> int:
        """Return how many words of a text lie in copied stretches."""
        return sum(self._marked(_words(text), exempt))

    def _marked(self, words: Sequence[str], exempt: Iterable[str]) -> list[bool]:
        """Return which words lie in a run that counts as a copy."""
        import numpy as np

        own = [_words(text) for text in exempt]
        known: dict[str, int] = {}
        marked = [False] * len(words)
        for size, hashes in self._runs.items():
            mine = _run_hashes(words, size, known)
            if not len(mine) or not len(hashes):
                continue
            excused = [_run_hashes(text, size, known) for text in own]
            # By bisection: np.isin would sort the whole index for every text.
            nearest = np.minimum(np.searchsorted(hashes, mine), len(hashes) - 1)
            hit = hashes[nearest] == mine
            if excused:
                hit &= ~np.isin(mine, np.concatenate(excused))
            for start in np.flatnonzero(hit).tolist():
                marked[start : start + size] = [True] * size
        return marked


def copied_in_demonstrations(demonstrations: Iterable[Demonstration], copies: CopyIndex) -> int:
    """Return how many words of demonstrations come from training examples.

    Demonstrations are meant to show examples, so nothing refuses them for it; what
    they show is counted by itself.
    """
    return sum(
        copies.copied_words(text)
        for demonstration in demonstrations
        for part in (demonstration.inputs, demonstration.outputs)
        for text in _values(part)
    )


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


def _example_runs(example: Any, longest: int, known: dict[str, int]) -> dict[int, Any]:
    import numpy as np

    found: dict[int, list[Any]] = {}
    for value in _values(example):
        words = _words(value)
        if len(words) >= longest:
            found.setdefault(longest, []).append(_run_hashes(words, longest, known))
        elif len(words) >= _WHOLE:
            found.setdefault(len(words), []).append(_run_hashes(words, len(words), known))
    return {size: np.concatenate(parts) for size, parts in found.items()}


def _run_hashes(words: Sequence[str], size: int, known: dict[str, int]) -> Any:
    """Return one 64-bit hash per run of ``size`` words, in order; arithmetic is modulo 2**64."""
    import numpy as np

    count = len(words) - size + 1
    if count < 1:
        return np.zeros(0, dtype=np.uint64)
    hashes = np.array([_word_hash(word, known) for word in words], dtype=np.uint64)
    runs = np.zeros(count, dtype=np.uint64)
    factor = 1
    for offset in range(size):
        runs += hashes[offset : offset + count] * np.uint64(factor)
        factor = factor * _BASE & _MASK
    return runs


def _word_hash(word: str, known: dict[str, int]) -> int:
    if word not in known:
        known[word] = int.from_bytes(hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest())
    return known[word]


def _values(example: Any, depth: int = _DEEPEST) -> Iterator[str]:
    """Yield the texts of an example, one per value; a list of texts is one text, as tokenised data has it."""
    if isinstance(example, str):
        yield example
        return
    if depth == 0:
        return
    if isinstance(example, (list, tuple)):
        plain = [item for item in example if isinstance(item, str)]
        if plain:
            yield " ".join(plain)
        for item in example:
            if not isinstance(item, str):
                yield from _values(item, depth - 1)
        return
    for value in _fields(example).values():
        yield from _values(value, depth - 1)


def _fields(value: Any) -> Mapping[Any, Any]:
    if isinstance(value, Mapping):
        return value
    if callable(getattr(value, "with_inputs", None)):
        return dict(value.items())
    # The address or the bytes of an image are no text.
    return dict(value) if isinstance(value, pydantic.BaseModel) and not is_media(value) else {}


def _stretches(marked: Sequence[bool]) -> Iterator[tuple[int, int]]:
    start = None
    for place, inside in enumerate([*marked, False]):
        if inside and start is None:
            start = place
        elif not inside and start is not None:
            yield start, place
            start = None
