"""Neighbouring words in hashed buckets."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from combee_dspy.diversity import Embedder, Vectors, unit_rows
from combee_dspy.exceptions import ArgumentValueError

__all__ = ["WordPairs"]


class WordPairs(Embedder):
    """Counts words and pairs of neighbours: texts that say the same in another order are less alike.

    Args:
        buckets: Numbers a vector, at least 16.
    """

    name: ClassVar[str] = "word-pairs"

    def __init__(self, buckets: int = 2048) -> None:
        self.buckets = buckets

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the counts, one row of length 1 a text.

        Raises:
            ArgumentValueError: ``buckets`` is below 16.
        """
        if self.buckets < 16:
            raise ArgumentValueError("buckets", self.buckets, "is below 16", "Give 2048.")
        counts = np.zeros((len(texts), self.buckets))
        for row, text in enumerate(texts):
            words = text.lower().split()
            for part in (*words, *map(" ".join, itertools.pairwise(words))):
                counts[row, zlib.crc32(part.encode("utf-8", "surrogatepass")) % self.buckets] += 1
        return unit_rows(counts, len(texts))
