"""Lookup by vectors."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Annotated, ClassVar

import numpy as np
from pydantic import BeforeValidator

from combee_dspy import registry
from combee_dspy.diversity import Embedder, Vectors
from combee_dspy.memory._base import Lookup, Retriever
from combee_dspy.strategies import parameters

# Vectors of so many texts are held: at 1,536 dimensions 60 MB.
_HELD = 10_000


@parameters
class Embeddings(Retriever):
    """Finds the texts whose vectors are nearest to the query's.

    A text is embedded when a memory that holds it is first looked at, a query when it is asked. The
    vectors of 10,000 texts and queries are held in the process, so none is asked for twice. With a
    hosted model a new query is a paid call, which no journal and no cost report holds: a run that
    goes on asks again for what DSPy's cache does not hold.

    Example:
        >>> from combee_dspy.memory import Embeddings
        >>> lookup = Embeddings("char-ngrams").index(["Parcels: code N7.", "Letters: code L2."])
        >>> lookup("Which code for letters?", 1)
        [1]

    Args:
        embedder: A :class:`combee_dspy.diversity.Embedder`, such as
            ``DSPyEmbedder("openai/text-embedding-3-small")``; its name, such as
            ``"sentence-transformers"`` of that plugin; or ``{"name": …, "params": {…}}``.
    """

    name: ClassVar[str] = "embeddings"
    waits: ClassVar[bool] = True

    embedder: Annotated[Embedder, BeforeValidator(partial(registry.resolve, "embedder"))]

    def index(self, texts: Sequence[str]) -> Lookup:
        """Return the lookup of texts by cosine; what is not alike at all is left out."""
        if not texts:
            return lambda query, most: []
        held = _held(self.embedder)
        vectors = held.vectors(texts)

        def lookup(query: str, most: int) -> list[int]:
            # Sums of floats differ from batch to batch: what is equal up to that goes by position.
            likeness = (vectors @ held.vectors([query])[0]).round(5)
            order = np.argsort(-likeness, kind="stable")[:most]
            return [place for place in order.tolist() if likeness[place] > 0]

        return lookup


class _Held:
    """Vectors by text, so that memories that share lessons buy each once. For many threads."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._rows: dict[str, Vectors] = {}
        self._lock = threading.Lock()

    def vectors(self, texts: Sequence[str]) -> Vectors:
        """Return one row for each of n ≥ 1 texts."""
        with self._lock:
            rows = {text: self._rows[text] for text in texts if text in self._rows}
        # Not under the lock: who needs vectors that are here must not wait for a service.
        if missing := [text for text in dict.fromkeys(texts) if text not in rows]:
            rows.update(zip(missing, self._embedder.embed(missing), strict=True))
            with self._lock:
                if len(self._rows) + len(missing) > _HELD:
                    self._rows.clear()
                self._rows.update(rows)
        return np.stack([rows[text] for text in texts])


_held = lru_cache(maxsize=4)(_Held)
