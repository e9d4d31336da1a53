"""Lookup by vectors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Annotated, ClassVar

import numpy as np
from pydantic import BeforeValidator

from combee_dspy import registry
from combee_dspy.diversity import Embedder
from combee_dspy.memory._base import Lookup, Retriever
from combee_dspy.strategies import parameters


@parameters
class Embeddings(Retriever):
    """Finds the texts whose vectors are nearest to the query's.

    Every text is embedded when a memory is first looked at, and every query when it is asked: with
    a hosted model that is a paid call for each call of the predictor, which stands in no book.

    Example:
        >>> from combee_dspy.memory import Embeddings
        >>> lookup = Embeddings("char-ngrams").index(["Parcels: code N7.", "Letters: code L2."])
        >>> lookup("Which code for letters?", 1)
        [1]

    Args:
        embedder: A name, such as ``"sentence-transformers"`` of that plugin, a mapping from a name
            to parameters (``{"dspy": {"model": "openai/text-embedding-3-small"}}``), or a
            :class:`combee_dspy.diversity.Embedder`.
    """

    name: ClassVar[str] = "embeddings"
    waits: ClassVar[bool] = True

    embedder: Annotated[Embedder, BeforeValidator(partial(registry.resolve, "embedder"))]

    def index(self, texts: Sequence[str]) -> Lookup:
        """Return the lookup of texts by cosine; what is not alike at all is left out."""
        vectors = self.embedder.embed(list(texts))

        def lookup(query: str, most: int) -> list[int]:
            if not len(texts):
                return []
            # Sums of floats differ from batch to batch: what is equal up to that goes by position.
            likeness = (vectors @ self.embedder.embed([query])[0]).round(5)
            order = np.argsort(-likeness, kind="stable")[:most]
            return [place for place in order.tolist() if likeness[place] > 0]

        return lookup
