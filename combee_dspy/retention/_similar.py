"""How much of one text stands in another, offline and deterministic."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from combee_dspy.retention._grams import bags_of

__all__ = ["Matrix", "Positions", "PreparedGrams", "Similarity", "gram_similarity"]

Matrix = npt.NDArray[np.float64]

Positions = npt.NDArray[np.intp]

# A few letters have hardly any grams, and stand in every text by accident.
_FEWEST_GRAMS = 5
# Among a few texts what two of them share would look common: so many more that share nothing are supposed.
_UNSEEN = 20
# From this share of the lines on, multiplying zeros too is faster than looking up who holds a gram (measured).
_COMMON = 0.03
# Similarities held at a time: 16 MB.
_CELLS = 4_000_000


class Similarity(Protocol):
    """Says how well lines cover texts. Must be pure: the same texts give the same figures."""

    def __call__(self, texts: Sequence[str], lines: Sequence[str]) -> Matrix:
        """Return values from 0 to 1, one row a text, one column a line."""
        ...


def gram_similarity(texts: Sequence[str], lines: Sequence[str]) -> Matrix:
    """Return how much of each text stands in each line, by weighted character 5-grams.

    Texts are compared as sets of 5-grams of their lower-case words, so that
    forms of one word agree and no language is assumed. A gram weighs
    log(1 + (N + 20) / f), f being how many of the N different texts and lines
    hold it: what all of them say ("the question asks for") counts little, and what
    one of them says counts much. With a and b the weights of text and line and
    c what they share, the value is the larger of c / a, the share of the text
    that the line holds (so a merged line still covers each of its parts), and
    c / √(ab), which a short line cut out of a long text can reach.

    It sees words, not meaning: a lesson told in other words counts as lost, so
    coverage by this measure is a cautious one. Any embedder can stand in.

    Args:
        texts: What should be covered.
        lines: What may cover it.

    Returns:
        Values from 0 to 1, one row a text, one column a line.
    """
    grams = PreparedGrams(texts, lines)
    return grams.block(np.arange(len(texts)), np.arange(len(lines)))


class PreparedGrams:
    """:func:`gram_similarity` of some texts and lines, any part of which may be asked for by itself.

    The whole matrix of ten thousand texts and lines would take gigabytes; this
    holds four bytes a gram. Immutable, safe to share.

    Args:
        texts: What should be covered.
        lines: What may cover it.
    """

    def __init__(self, texts: Sequence[str], lines: Sequence[str]) -> None:
        self._bags = bags_of((*texts, *lines))
        # The same sentence in many nodes is one document: copies must not make its own words common.
        documents = len(np.unique(self._bags.same))
        held = np.maximum(self._bags.holders(), 1)
        self._weights = np.log1p((documents + _UNSEEN) / held)
        self._offset = len(texts)
        self._short = self._bags.counts < _FEWEST_GRAMS
        every = self._rows(np.arange(len(self._bags.same)))
        self._totals = np.asarray(every @ self._weights)

    def block(self, texts: Positions, lines: Positions) -> Matrix:
        """Return the values of some texts, by position, for some lines."""
        if not len(texts) or not len(lines):
            return np.zeros((len(texts), len(lines)))
        places = lines + self._offset
        shared = np.asarray((self._weighted(texts) @ self._rows(places).T).todense())
        rows, columns = self._totals[texts, None], self._totals[None, places]
        within = np.divide(shared, rows, out=np.zeros_like(shared), where=rows > 0)
        both = np.sqrt(rows * columns)
        mutual = np.divide(shared, both, out=np.zeros_like(shared), where=both > 0)
        mutual[:, self._short[places]] = 0.0
        within[self._short[texts], :] = 0.0
        found = np.clip(np.maximum(within, mutual), 0.0, 1.0)
        # Equal texts are equal however short they are.
        same = self._bags.same
        alike = same[texts, None] == same[None, places]
        found[alike & self._short[texts, None] & (same[texts, None] >= 0)] = 1.0
        return found

    def equal(self, texts: Positions, lines: Positions) -> npt.NDArray[np.bool_]:
        """Return, per text, whether one of the lines has the same grams: its highest value is then 1."""
        same = self._bags.same
        found: npt.NDArray[np.bool_] = np.isin(same[texts], same[lines + self._offset]) & (same[texts] >= 0)
        return found

    def best(self, texts: Positions, lines: Positions) -> npt.NDArray[np.float64]:
        """Return the highest value of some texts, by position, to any of some lines.

        Finds each text's best line in single precision, and its value in double.
        What many lines hold is multiplied as a dense matrix, the rest as a sparse
        one: most products would otherwise be about a few common grams.
        """
        found = np.where(self.equal(texts, lines), 1.0, 0.0)
        left = np.flatnonzero(found == 0.0)
        if not len(lines) or not len(left):
            return found
        places = lines + self._offset
        held = self._rows(places)
        often = np.bincount(held.indices, minlength=self._bags.size) >= max(_COMMON * len(lines), 2)
        order = np.flatnonzero(often)
        dense, rest = held[:, order].toarray().astype(np.float32), _without(held, often).T.tocsr()
        scale = np.zeros(len(lines), np.float32)
        fair = ~self._short[places] & (self._totals[places] > 0)
        scale[fair] = 1.0 / np.sqrt(self._totals[places[fair]])
        step = max(1, _CELLS // len(lines))
        for start in range(0, len(left), step):
            part = left[start : start + step]
            rows = self._weighted(texts[part])
            shared = rows[:, order].toarray().astype(np.float32) @ dense.T
            few = (_without(rows, often) @ rest).tocoo()
            shared[few.row, few.col] += few.data
            whole = self._exact(rows, texts[part], places[shared.argmax(axis=1)])[0]
            shared *= scale
            found[part] = np.maximum(whole, self._exact(rows, texts[part], places[shared.argmax(axis=1)])[1])
        return found

    def _exact(
        self, rows: Any, texts: Positions, places: Positions
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Return c / a and c / √(ab) of pairs of a text and a line, zero where they do not count."""
        shared = np.asarray(rows.multiply(self._rows(places)).sum(axis=1)).reshape(-1)
        own, other = self._totals[texts], self._totals[places]
        zero = np.zeros_like(shared)
        within = np.divide(shared, own, out=zero.copy(), where=(own > 0) & ~self._short[texts])
        mutual = np.divide(shared, np.sqrt(own * other), out=zero, where=(own * other > 0) & ~self._short[places])
        return np.minimum(within, 1.0), np.minimum(mutual, 1.0)

    def _rows(self, places: Positions) -> Any:
        from scipy import sparse

        starts, grams = self._bags.rows(places)
        return sparse.csr_matrix((np.ones(len(grams)), grams, starts), shape=(len(places), self._bags.size))

    def _weighted(self, places: Positions) -> Any:
        rows = self._rows(places)
        rows.data = self._weights[rows.indices]
        return rows


def load() -> None:
    """Import what comparing needs, which takes a good part of a second: for when there is time."""
    importlib.import_module("scipy.sparse")


def _without(rows: Any, often: npt.NDArray[np.bool_]) -> Any:
    """Return rows without the columns that many hold, single precision."""
    kept = rows.astype(np.float32)
    kept.data[often[kept.indices]] = 0
    kept.eliminate_zeros()
    return kept
