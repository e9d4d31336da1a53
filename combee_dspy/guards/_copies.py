"""Finding text that was copied from training examples."""

from __future__ import annotations

import hashlib
import math
import re
import sys
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import compress, groupby, pairwise
from typing import TYPE_CHECKING, TypeGuard

import numpy as np
import pydantic
from numpy.typing import NDArray

from combee_dspy.reflections import is_media

if TYPE_CHECKING:
    import dspy

Hashes = NDArray[np.uint64]

# Scripts that write no spaces: each character counts as a word.
_UNSPACED = "\u0e00-\u0e7f\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_UNSPACED}]|[^\W_{_UNSPACED}]+")
# What may be cut out of a text: a word between spaces, without the punctuation around it.
_PIECE = re.compile(rf"[{_UNSPACED}]|[^\W{_UNSPACED}](?:[^\s{_UNSPACED}]*[^\W{_UNSPACED}])?")
_LEAD = re.compile(r"\s*(?:(?:[-*•]|\d{1,3}[.)])\s+)?")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
_CUT = "…"
# A condition or a conclusion alone is no lesson.
_FEWEST_LEFT = 6
_MASK = (1 << 64) - 1
_BASE = 0x9E3779B97F4A7C15
_WHOLE = 8
_COMMON_SHARE = 0.01
_COMMON_LEAST = 3


class CopyIndex:
    """The runs of words in training examples, as 64-bit hashes. Immutable, safe to share.

    A text copies an example when it shares more than ``max_words`` consecutive words with one of
    its values, inputs or labels, or contains a value of at least eight words as a whole. A label
    of an example whose inputs are marked may be used as a whole: it may be the very rule that is to
    be learned. Case, punctuation, markup and white space do not count.

    Text that recurs is the task's own, not a copy of one example: lists of labels, boilerplate of a
    template, a formula that some of the questions are about. A run counts as such when at least a
    hundredth of the examples have it, and at least three.

    Built in one pass, in time linear in the words; 8 bytes a run are kept, each once.

    Example:
        >>> from combee_dspy.guards import CopyIndex
        >>> index = CopyIndex([{"question": "Who guards the third gate at night?"}], max_words=4)
        >>> index.copied("Ask: who guards the third gate.")
        'who guards the third gate'

    Args:
        examples: ``dspy.Example`` objects or mappings. Texts inside lists and mappings count;
            images and other objects do not.
        max_words: The longest run that is no copy, at least 1.
    """

    def __init__(self, examples: Iterable[object], max_words: int = 12) -> None:
        by_size: defaultdict[int, list[Hashes]] = defaultdict(list)
        count = 0
        for count, example in enumerate(examples, start=1):  # noqa: B007 - how many there were
            runs: defaultdict[int, list[Hashes]] = defaultdict(list)
            for value, least in _parts(example):
                for words in map(_words, _values(value)):
                    size = min(len(words), max_words + 1)
                    if size >= min(max_words + 1, least):
                        runs[size].append(_run_hashes(words, size))
            for size, parts in runs.items():
                # An example that repeats itself is still one example.
                by_size[size].append(np.unique(np.concatenate(parts)))
        common = max(_COMMON_LEAST, math.ceil(_COMMON_SHARE * count))
        self._runs: dict[int, Hashes] = {}
        for size, parts in by_size.items():
            values, times = np.unique(np.concatenate(parts), return_counts=True)
            self._runs[size] = values[times < common]

    def __len__(self) -> int:
        return sum(len(hashes) for hashes in self._runs.values())

    def copied(self, text: str, exempt: Sequence[str] = ()) -> str:
        """Return the longest stretch of a text that is copied, normalised; empty where nothing is.

        Args:
            text: What to look through.
            exempt: Texts whose own runs are no copies, such as the seed's.
        """
        words = _words(text)
        stretches = _stretches(self._marked(words, exempt))
        return " ".join(words[place] for place in max(stretches, key=len, default=[]))

    def cut(self, text: str, exempt: Sequence[str] = ()) -> tuple[str, tuple[str, ...]]:
        """Return a text without what is copied, and its lines that held a copy, as they were.

        A copied stretch gives way to "…". Where that would leave fewer than six words of a
        sentence, the sentence goes, and with the last sentence its line.

        Args:
            text: What to look through; a copy may span several lines.
            exempt: See :meth:`copied`.
        """
        lines = text.split("\n")
        pieces = [list(_PIECE.finditer(line)) for line in lines]
        words: list[str] = []
        owners: list[tuple[int, int]] = []
        for row, line_pieces in enumerate(pieces):
            for place, piece in enumerate(line_pieces):
                own = _words(piece[0])
                words += own
                owners += [(row, place)] * len(own)
        copied = set(compress(owners, self._marked(words, exempt)))
        clean, refused = [], []
        for row, (line, line_pieces) in enumerate(zip(lines, pieces, strict=True)):
            runs = _stretches([(row, place) in copied for place in range(len(line_pieces))])
            spans = [(line_pieces[run[0]].start(), line_pieces[run[-1]].end()) for run in runs]
            left = _without(line, spans) if spans else line
            if spans:
                refused.append(line)
            if left or not spans:
                clean.append(left)
        left = "\n".join(clean)
        # The words around a copy may make another one, now that they are together.
        return self.cut(left, exempt)[0] if refused else left, tuple(refused)

    def cut_lines(
        self, lines: Iterable[str], exempt: Sequence[str] = ()
    ) -> tuple[list[str], list[str]]:
        """Return lines without what each copies, and those that held a copy, as they were.

        Nothing is left of a line that copies an example together with those before it, though not
        alone: sentences of one answer may.
        """
        clean: list[str] = []
        refused: list[str] = []
        for line in lines:
            left, copied = self.cut(line, exempt)
            clean.append(left)
            refused += copied
        if self.copied("\n".join(clean), exempt):
            before: list[str] = []
            for place, line in enumerate(clean):
                words = before + _words(line)
                if any(self._marked(words, exempt)):
                    clean[place] = ""
                    refused.append(line)
                else:
                    # No copy that ends in a later line begins before these.
                    before = words[-max(self._runs) :]
        return clean, refused

    def _marked(self, words: Sequence[str], exempt: Sequence[str]) -> list[bool]:
        """Return for each word whether it is part of a copy."""
        marked = [False] * len(words)
        for size, hashes in self._runs.items():
            mine = _run_hashes(words, size)
            if not len(mine) or not len(hashes):
                continue
            # By bisection: np.isin would sort the whole index for every text.
            nearest = np.minimum(np.searchsorted(hashes, mine), len(hashes) - 1)
            hit = hashes[nearest] == mine
            for own in exempt if hit.any() else ():
                hit &= ~np.isin(mine, _run_hashes(_words(own), size))
            for start in np.flatnonzero(hit).tolist():
                marked[start : start + size] = [True] * size
        return marked


def _stretches(marks: Sequence[bool]) -> list[list[int]]:
    """Return the runs of places that are marked."""
    runs = groupby(range(len(marks)), marks.__getitem__)
    return [list(places) for is_marked, places in runs if is_marked]


def _without(line: str, spans: Sequence[tuple[int, int]]) -> str:
    """Return a line without some spans, sentence by sentence; empty where little is left."""
    lead = _LEAD.match(line)
    first = lead.end() if lead is not None else 0
    ends = [end.end() for end in _SENTENCE_END.finditer(line, first)]
    sentences: list[str] = []
    for start, end in pairwise([first, *ends, len(line)]):
        left, place = "", start
        for cut_from, cut_to in spans:
            # A copy may begin in the number of a list's item, or in the sentence before.
            if cut_from < end and cut_to > start:
                left, place = left + line[place:cut_from] + _CUT, cut_to
        left += line[place:end] or " "
        if place == start or len(_words(left)) >= _FEWEST_LEFT:
            sentences.append(left)
    return line[:first] + "".join(sentences).rstrip() if any(map(str.strip, sentences)) else ""


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFKC", text).casefold())


@lru_cache(maxsize=1 << 17)
def _word_hash(word: str) -> int:
    return int.from_bytes(
        hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    )


def _run_hashes(words: Sequence[str], size: int) -> Hashes:
    """Return one 64-bit hash per run of ``size`` words, in order; arithmetic is modulo 2**64."""
    count = max(0, len(words) - size + 1)
    hashes = np.array([_word_hash(word) for word in words], dtype=np.uint64)
    runs = np.zeros(count, dtype=np.uint64)
    factor = 1
    for offset in range(size if count else 0):
        runs += hashes[offset : offset + count] * np.uint64(factor)
        factor = factor * _BASE & _MASK
    return runs


def _parts(example: object) -> Iterator[tuple[object, float]]:
    """Yield parts of an example, each with the words from which a value is copied as a whole."""
    if not _is_example(example):
        yield example, _WHOLE
        return
    try:
        yield example.inputs(), _WHOLE
    except ValueError:  # they are not marked
        yield example, _WHOLE
    else:
        yield example.labels(), math.inf


def _is_example(value: object) -> TypeGuard[dspy.Example]:
    # To read a journal must not cost the import of DSPy: where it is not loaded, nothing is one.
    loaded = sys.modules.get("dspy")
    return loaded is not None and isinstance(value, loaded.Example)


def _values(value: object) -> Iterator[str]:
    """Yield the texts of an example, one per value; a list of texts is one text."""
    inside: Iterable[object] = ()
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, tuple)):
        inside = [item for item in value if not isinstance(item, str)]
        if len(inside) < len(value):
            yield " ".join(item for item in value if isinstance(item, str))
    elif isinstance(value, Mapping) or _is_example(value):
        inside = [item for _, item in value.items()]
    elif isinstance(value, pydantic.BaseModel) and not is_media(value):
        # The address or the bytes of an image are no text.
        inside = dict(value).values()
    for item in inside:
        yield from _values(item)
