"""How much of each text another text holds, by runs of characters. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from combee_dspy.reflections import ngram_counts, normalised

Matrix = NDArray[np.float64]

_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_SIZES = (5,)
_BUCKETS = 2**18
# A few letters have hardly any grams, and occur in every text by accident.
_FEWEST_GRAMS = 5
# Among a few texts what two of them share would look common: so many more that share nothing are
# supposed.
_UNSEEN = 20
# Similarities held at a time: 32 MB.
_CELLS = 4_000_000


def text_lines(text: str) -> list[str]:
    """Return a text's lines and their sentences, each once."""
    lines = [part for line in text.splitlines() for part in (line, *_SENTENCE.split(line))]
    return list(dict.fromkeys(line.strip() for line in lines if line.strip()))


class Coverage:
    """Measures how much of each text another one holds, from 0 to 1: offline and deterministic.

    Texts are compared as sets of character 5-grams of their lower-case words, so that forms of one
    word agree and no language is assumed. A gram weighs log(1 + (N + 20) / f), f being how many of
    the N different texts hold it: what all of them say ("the question asks for") counts little, and
    what one of them says counts much. With a and b the weights of text and line and c what they
    share, the value is the larger of c / a, the share of the text that the line holds (so a merged
    line still covers each of its parts), and c / √(ab), which a short line cut out of a long text
    can reach.

    It sees words, not meaning: a lesson in other words counts as lost. All texts that will be
    compared are given first.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        words = {text: normalised(text) for text in texts}
        distinct = list(dict.fromkeys(words.values()))
        row = {text: number for number, text in enumerate(distinct)}
        self._rows = {text: row[own] for text, own in words.items()}
        held = ngram_counts(distinct, _SIZES, _BUCKETS).astype(np.float64)
        held.data[:] = 1.0
        holders = np.maximum(np.bincount(held.indices, minlength=_BUCKETS), 1)
        self._held = held
        self._weighted = held.copy()
        self._weighted.data = np.log1p((len(distinct) + _UNSEEN) / holders)[held.indices]
        self._totals = np.asarray(self._weighted.sum(axis=1)).reshape(-1)
        self._short = np.diff(held.indptr) < _FEWEST_GRAMS
        self._empty = np.array([not text for text in distinct], bool)

    def of(self, texts: Sequence[str], lines: Sequence[str]) -> Matrix:
        """Return how much of each text each line holds, one row a text."""
        rows = np.array([self._rows[text] for text in texts], np.intp)
        columns = np.array([self._rows[line] for line in lines], np.intp)
        shared = np.asarray((self._weighted[rows] @ self._held[columns].T).todense())
        own, other = self._totals[rows, None], self._totals[None, columns]
        within = _share(shared, np.where(self._short[rows, None], 0.0, own))
        mutual = _share(shared, np.where(self._short[None, columns], 0.0, np.sqrt(own * other)))
        share: Matrix = np.clip(np.maximum(within, mutual), 0.0, 1.0)
        # Equal texts are equal however short they are.
        share[(rows[:, None] == columns[None, :]) & ~self._empty[rows, None]] = 1.0
        return share

    def best(self, texts: Sequence[str], lines: Sequence[str]) -> tuple[Matrix, NDArray[np.intp]]:
        """Return for each text the most that any line holds of it, and the place of that line."""
        highest, places = np.zeros(len(texts)), np.zeros(len(texts), np.intp)
        step = max(1, _CELLS // max(len(lines), 1))
        for start in range(0, len(texts) if lines else 0, step):
            part = slice(start, start + step)
            near = self.of(texts[part], lines)
            highest[part], places[part] = near.max(axis=1), near.argmax(axis=1)
        return highest, places


def _share(shared: Matrix, whole: Matrix) -> Matrix:
    whole = np.broadcast_to(whole, shared.shape)
    return np.divide(shared, whole, out=np.zeros_like(shared), where=whole > 0)
