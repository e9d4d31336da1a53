"""The retriever contract: texts in, and a lookup of those that are nearest to a query."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import ClassVar

from combee_dspy.strategies import Strategy

Lookup = Callable[[str, int], Sequence[int]]
"""``lookup(query, most)``: positions of at most so many texts, the nearest first, each once.

What has nothing to do with the query is left out. Called from many threads at once.
"""


class Retriever(Strategy):
    """Finds the texts that a query needs.

    Attributes:
        waits: Whether a lookup waits for something else, such as a service. An asynchronous program
            then looks up in a thread of its own.
    """

    kind: ClassVar[str] = "retriever"
    waits: ClassVar[bool] = False

    @abstractmethod
    def index(self, texts: Sequence[str]) -> Lookup:
        """Return the lookup of n ≥ 0 texts of any length and script.

        The same texts and the same query give the same positions, in any process.
        """
