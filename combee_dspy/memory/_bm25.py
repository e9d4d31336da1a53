"""Lookup by words."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from combee_dspy.memory._base import Lookup, Retriever
from combee_dspy.strategies import parameters
from combee_dspy.texts import normalised

_Postings = tuple[NDArray[np.int32], NDArray[np.float32]]
"""The texts that hold a word, and what it adds to the score of each."""


@parameters
class BM25(Retriever):
    """BM25 (Robertson and Zaragoza 2009, with Lucene's idf): no model, no server.

    A text that shares no word with the query is not returned. Equal scores go by position.

    Our own lines in place of ``bm25s``: they are faster up to 10,000 texts, typed, and order equal
    scores (see the results page).

    Example:
        >>> from combee_dspy.memory import BM25
        >>> lookup = BM25().index(["Parcels: code N7.", "Letters: code L2."])
        >>> lookup("Which code for these letters?", 1)
        [1]

    Args:
        k1: How soon further mentions of a word in a text add nothing.
        b: How much a long text's words count less; 0 for not at all.
    """

    name: ClassVar[str] = "bm25"

    k1: Annotated[float, Field(ge=0)] = 1.5
    b: Annotated[float, Field(ge=0, le=1)] = 0.75

    def index(self, texts: Sequence[str]) -> Lookup:
        """Return the lookup of texts by words; its time grows with the texts that share a word."""
        counts = [Counter(_words(text)) for text in texts]
        lengths = np.array([words.total() for words in counts], dtype=np.float32)
        usual = max(float(lengths.mean()), 1.0) if texts else 1.0
        norm = self.k1 * (1 - self.b + self.b * lengths / usual)
        holders: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for place, words in enumerate(counts):
            for word, count in words.items():
                holders[word].append((place, count))
        postings: dict[str, _Postings] = {}
        for word, pairs in holders.items():
            places, often = np.array(pairs, dtype=np.int32).T
            rarity = math.log(1 + (len(texts) - len(pairs) + 0.5) / (len(pairs) + 0.5))
            weights = rarity * often * (self.k1 + 1) / (often + norm[places])
            postings[word] = places, weights.astype(np.float32)

        def lookup(query: str, most: int) -> Sequence[int]:
            scores = np.zeros(len(texts), dtype=np.float32)
            # Sorted: sums of floats depend on their order.
            for word in sorted(set(_words(query)) & postings.keys()):
                places, weights = postings[word]
                scores[places] += weights
            return _best(scores, most)

        return lookup


def _best(scores: NDArray[np.float32], most: int) -> list[int]:
    """Return the positions of the highest scores above 0, highest first, of equals the first."""
    if most < 1:
        return []
    if len(scores) > most:
        least = np.partition(scores, -most)[-most]
        places = np.flatnonzero(scores >= max(least, np.float32(1e-9)))
    else:
        places = np.flatnonzero(scores > 0)
    return places[np.argsort(-scores[places], kind="stable")][:most].tolist()


def _words(text: str) -> list[str]:
    return normalised(text).split()
