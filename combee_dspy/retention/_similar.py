"""How much of one text stands in another, offline and deterministic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from combee_dspy.reflections import normalised

__all__ = ["Matrix", "PreparedGrams", "Similarity", "gram_similarity"]

Matrix = npt.NDArray[np.float64]

_GRAM = 5
# A few letters have hardly any grams, and stand in every text by accident.
_FEWEST_GRAMS = 5
# Among a few texts what two of them share would look common: so many more that share nothing are supposed.
_UNSEEN = 20


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

    The whole matrix of ten thousand texts and lines would take gigabytes. Immutable, safe to share.

    Args:
        texts: What should be covered.
        lines: What may cover it.
    """

    def __init__(self, texts: Sequence[str], lines: Sequence[str]) -> None:
        from scipy import sparse

        bags = [_grams(text) for text in (*texts, *lines)]
        vocabulary = {gram: column for column, gram in enumerate(sorted(set().union(*bags)))}
        # The same sentence in many nodes is one document: copies must not make its own words common.
        distinct = set(bags)
        held = Counter(gram for bag in distinct for gram in bag)
        weights = np.array([np.log1p((len(distinct) + _UNSEEN) / held[gram]) for gram in vocabulary])
        indices = [vocabulary[gram] for bag in bags for gram in bag]
        pointers = np.concatenate([[0], np.cumsum([len(bag) for bag in bags])])
        shape = (len(bags), len(vocabulary))
        ones: Any = sparse.csr_matrix((np.ones(len(indices)), indices, pointers), shape=shape)
        self._totals = np.asarray(ones @ weights)
        self._texts: Any = ones[: len(texts)].multiply(weights).tocsr()
        self._lines: Any = ones[len(texts) :]
        self._bags = bags
        self._short = np.array([len(bag) < _FEWEST_GRAMS for bag in bags])

    def block(self, texts: npt.NDArray[np.intp], lines: npt.NDArray[np.intp]) -> Matrix:
        """Return the values of some texts, by position, for some lines."""
        if not len(texts) or not len(lines):
            return np.zeros((len(texts), len(lines)))
        places = lines + self._texts.shape[0]
        shared = np.asarray((self._texts[texts] @ self._lines[lines].T).todense())
        rows, columns = self._totals[texts, None], self._totals[None, places]
        within = np.divide(shared, rows, out=np.zeros_like(shared), where=rows > 0)
        both = np.sqrt(rows * columns)
        mutual = np.divide(shared, both, out=np.zeros_like(shared), where=both > 0)
        mutual[:, self._short[places]] = 0.0
        within[self._short[texts], :] = 0.0
        found = np.clip(np.maximum(within, mutual), 0.0, 1.0)
        # Equal texts are equal however short they are.
        for row in np.flatnonzero(self._short[texts]).tolist():
            own = self._bags[texts[row]]
            found[row, [column for column, place in enumerate(places) if own and self._bags[place] == own]] = 1.0
        return found


def _grams(text: str) -> frozenset[str]:
    padded = f" {normalised(text)} "
    if len(padded) == 2:
        return frozenset()
    return frozenset(padded[start : start + _GRAM] for start in range(max(1, len(padded) - _GRAM + 1)))
