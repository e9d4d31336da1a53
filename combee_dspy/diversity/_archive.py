"""The candidates of a run by what they say: refuses one that is nearly there already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from combee_dspy.diversity._options import Diversity
from combee_dspy.records import Refusal

__all__ = ["Archive"]


class Archive:
    """The candidates of a run, to tell a new one from them.

    Deterministic: what it says depends on what was added before, in order, and
    on nothing else. Made once a run; asks the embedder inside :meth:`refuses` and
    :meth:`similarity`, so call these in a worker thread, one at a time.

    Args:
        options: The run's options.

    Raises:
        ArgumentError: The embedder cannot be used, or its threshold is not known.
        PluginError: The embedder cannot be loaded.
    """

    def __init__(self, options: Diversity) -> None:
        self._built = options.build_embedder()

    def refuses(self, texts: Mapping[str, str], parent: Mapping[str, str], near_parent: bool = False) -> Refusal | None:
        """Return why a child is refused as too similar to its parent or to a candidate added before, or ``None``.

        Args:
            texts: The child: text per component, encoded demonstrations and field descriptions among them.
            parent: Its parent, likewise.
            near_parent: Whether the operator's edit says the same in other words or another order
                (:attr:`combee_dspy.operators.Operator.near_parent`): then only a repeated text is refused.
        """
        raise NotImplementedError

    def add(self, texts: Mapping[str, str]) -> None:
        """Take a candidate in: every one that was proposed, in the order of updates and children."""
        raise NotImplementedError

    def similarity(self, candidates: Sequence[Mapping[str, str]]) -> float | None:
        """Return the mean similarity of each two candidates, 0 to 1; ``None`` below two, or without an embedder."""
        raise NotImplementedError
