"""Neighbouring words in hashed buckets."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from combee_dspy.diversity import Embedder, Vectors, unit_rows
from combee_dspy.strategies import parameters

__all__ = ["WordPairs"]


@parameters
class WordPairs(Embedder):
    """Counts words and pairs of neighbours: texts that say the same in another order are less
    alike.

    Args:
        buckets: Numbers a vector, at least 16.
    """

    name: ClassVar[str] = "word-pairs"
    buckets: Annotated[int, Field(ge=16)] = 2048

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the counts, one row of length 1 a text."""
        counts = np.zeros((len(texts), self.buckets))
        for row, text in enumerate(texts):
            words = text.lower().split()
            for part in (*words, *map(" ".join, itertools.pairwise(words))):
                counts[row, zlib.crc32(part.encode("utf-8", "surrogatepass")) % self.buckets] += 1
        return unit_rows(counts, len(texts))
