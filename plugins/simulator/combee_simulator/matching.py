"""Find known questions and lesson keys in a prompt, escaped or not, in time linear in its length.

A text becomes a sequence of lower-case words. A few windows of each question
that occur in no other question are its anchors; every window of the prompt
is looked up among them once, and a hit is confirmed by comparing words.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

__all__ = ["Hit", "QuestionIndex", "TextScan", "stretches_of", "words_of"]

Words = tuple[str, ...]

_ESCAPED_CHARACTER = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2}))")
_ESCAPED_SPACE = re.compile(r"\\+[nrt]")
_WORD = re.compile(r"\[[^\W\d_][\w.:-]*\]|\w+|[+\-*/%$€£=<>^]")

_WINDOW = 8
_ANCHORS = 3
_TAIL = 40
_SCANS_KEPT = 256
_SCAN_KEPT_CHARS = 32_768


def words_of(text: str) -> Words:
    r"""Return the words of a text in lower case.

    ``[F17]`` is one word, arithmetic signs are words, other punctuation is
    not. Escapes as JSON or Python's ``repr`` write them (``\n``, ``\"``,
    ``\u20ac``) read like what they stand for, however often they are nested.
    """
    return tuple(_WORD.findall(_plain(text)))


def stretches_of(text: str, places: Iterable[int]) -> list[str]:
    """Cut a text at some of its words: each piece reaches up to the next.

    Args:
        text: The text. Pieces are in lower case, and escapes in them are what they stand for.
        places: Indexes of words as :func:`words_of` counts them, in order.
    """
    plain = _plain(text)
    starts = [match.start() for match in _WORD.finditer(plain)]
    return [
        plain[start:end]
        for start, end in pairwise([*(starts[place] for place in places), len(plain)])
    ]


def _plain(text: str) -> str:
    if "\\" in text:
        text = _ESCAPED_CHARACTER.sub(lambda match: chr(int(match[1] or match[2], 16)), text)
        text = _ESCAPED_SPACE.sub(" ", text)
    return text.lower()


@dataclass(frozen=True, slots=True)
class Hit:
    """A known question in a text.

    Attributes:
        start: Its first word's index.
        end: The index after its last word.
        question: Its index among the known questions.
        tail: Up to 40 words after it, none of them part of the next known question.
    """

    start: int
    end: int
    question: int
    tail: Words


@dataclass(frozen=True, slots=True)
class TextScan:
    """What was found in a text, each in order of appearance.

    Attributes:
        hits: Known questions.
        keys: Word index and lesson key of each marker such as ``[F17]``.
    """

    hits: tuple[Hit, ...] = ()
    keys: tuple[tuple[int, str], ...] = ()


class QuestionIndex:
    """An index of known questions and lesson keys. Immutable after construction and safe to share.

    Questions whose words are equal count as one: the first.

    Args:
        texts: The questions. A trimmed copy is found too, if half of its words and one anchor are
            left.
        keys: The lesson keys, found as ``[key]`` in any case.
    """

    def __init__(self, texts: Sequence[str], keys: Iterable[str]) -> None:
        self._markers = {f"[{key}]".lower(): key for key in keys}
        self._full: dict[Words, int] = {}
        for question, text in enumerate(texts):
            words = words_of(text)
            if words:
                self._full.setdefault(words, question)
        counts = Counter(window for words in self._full for _, window in _windows(words))
        # Window → the (offset, length) of the questions that it anchors.
        self._anchors: dict[Words, set[tuple[int, int]]] = {}
        self._unique: dict[Words, tuple[Words, int]] = {}
        for words in self._full:
            self._index(words, counts)
        self._sizes = sorted({len(window) for window in self._anchors})
        self._cached_scan = lru_cache(maxsize=_SCANS_KEPT)(self._scan)

    def _index(self, words: Words, counts: Counter[Words]) -> None:
        unique = [(offset, window) for offset, window in _windows(words) if counts[window] == 1]
        if unique:
            chosen = [
                unique[step * (len(unique) - 1) // (_ANCHORS - 1)] for step in range(_ANCHORS)
            ]
            for offset, window in chosen:
                self._unique[window] = (words, offset)
        else:
            chosen = [min(_windows(words), key=lambda place: counts[place[1]])]
        for offset, window in chosen:
            self._anchors.setdefault(window, set()).add((offset, len(words)))

    def scan(self, text: str) -> TextScan:
        """Find the known questions and the lesson keys of a text."""
        # Instructions and demonstrations come back with every request; a prompt full of records
        # comes once.
        return self._cached_scan(text) if len(text) <= _SCAN_KEPT_CHARS else self._scan(text)

    def _scan(self, text: str) -> TextScan:
        words = words_of(text)
        keys = tuple(
            (place, self._markers[word])
            for place, word in enumerate(words)
            if word in self._markers
        )
        spans = _disjoint(self._spans(words))
        hits = []
        for number, (start, end, question) in enumerate(spans):
            stop = spans[number + 1][0] if number + 1 < len(spans) else len(words)
            hits.append(Hit(start, end, question, words[end : min(stop, end + _TAIL)]))
        return TextScan(tuple(hits), keys)

    def _spans(self, words: Words) -> set[tuple[int, int, int]]:
        spans = set()
        for size in self._sizes:
            shifted = zip(*(words[shift:] for shift in range(size)), strict=False)
            for place, window in enumerate(shifted):
                if window in self._anchors:
                    spans.update(self._confirm(words, place, window))
        return spans

    def _confirm(self, words: Words, place: int, window: Words) -> list[tuple[int, int, int]]:
        spans = []
        for offset, length in self._anchors[window]:
            start = place - offset
            question = self._full.get(words[start : start + length]) if start >= 0 else None
            if question is not None:
                spans.append((start, start + length, question))
        if not spans and window in self._unique:
            whole, offset = self._unique[window]
            start, end = _common_run(words, place, whole, offset)
            if 2 * (end - start) >= len(whole):
                spans.append((start, end, self._full[whole]))
        return spans


def _windows(words: Words) -> Iterable[tuple[int, Words]]:
    size = min(_WINDOW, len(words))
    return ((offset, words[offset : offset + size]) for offset in range(len(words) - size + 1))


def _common_run(words: Words, place: int, whole: Words, offset: int) -> tuple[int, int]:
    start, end = place, place
    while (
        start > 0
        and offset - (place - start) > 0
        and words[start - 1] == whole[offset - (place - start) - 1]
    ):
        start -= 1
    while (
        end < len(words)
        and offset + end - place < len(whole)
        and words[end] == whole[offset + end - place]
    ):
        end += 1
    return start, end


def _disjoint(spans: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    # Of spans that overlap, the one that starts first, then the longest: a question inside another
    # is not asked.
    disjoint: list[tuple[int, int, int]] = []
    for span in sorted(spans, key=lambda item: (item[0], -item[1], item[2])):
        if not disjoint or span[0] >= disjoint[-1][1]:
            disjoint.append(span)
    return disjoint
