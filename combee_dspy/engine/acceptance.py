"""Which children join gepa's pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dspy
from gepa.strategies.acceptance import ImprovementOrEqualAcceptance, StrictImprovementAcceptance

from combee_dspy.hashing import row_hash

__all__ = ["AnchoredAcceptance", "with_anchors"]


def with_anchors(
    train: Sequence[dspy.Example], anchors: Sequence[dspy.Example]
) -> tuple[list[dspy.Example], tuple[int, ...]]:
    """Return the examples that minibatches are drawn from, and the positions of the anchors among them.

    Args:
        train: The training examples, which keep their positions.
        anchors: Those that are no training examples stand behind.
    """
    rows = list(train)
    known = {row_hash(row): position for position, row in enumerate(rows)} if anchors else {}
    for anchor in anchors:
        key = row_hash(anchor)
        if key not in known:
            known[key] = len(rows)
            rows.append(anchor)
    return rows, tuple(dict.fromkeys(known[row_hash(anchor)] for anchor in anchors))


_NAMED: dict[str, Callable[[], Any]] = {
    "strict_improvement": StrictImprovementAcceptance,
    "improvement_or_equal": ImprovementOrEqualAcceptance,
}


class AnchoredAcceptance:
    """Accepts what another criterion accepts, unless an anchor example regressed.

    Anchors are in every minibatch, so each child and its parent have run on all
    of them. A child that scores lower than its parent on one is refused, however
    much it gains elsewhere.

    Args:
        inner: The name of a criterion of gepa's, or an object of the user's own.
        anchors: Positions of the anchors in gepa's training set.
    """

    def __init__(self, inner: Any, anchors: Sequence[int]) -> None:
        self._inner = _NAMED[inner]() if isinstance(inner, str) else inner
        self._anchors = frozenset(anchors)

    def should_accept(self, proposal: Any, state: Any) -> bool:
        """Return whether the child is kept."""
        return not self._regressed(proposal) and bool(self._inner.should_accept(proposal, state))

    def reject_reason(self, proposal: Any, state: Any) -> str:
        """Return why it is not, in one sentence."""
        regressed = self._regressed(proposal)
        if regressed:
            listed = ", ".join(f"{before:g} → {after:g}" for before, after in regressed)
            return f"{len(regressed)} anchor examples would regress: {listed}"
        own = getattr(self._inner, "reject_reason", None)
        return str(own(proposal, state)) if own is not None else "it does not improve on its parent"

    def _regressed(self, proposal: Any) -> list[tuple[float, float]]:
        # A merge is compared on validation examples: their ids mean something else.
        if proposal.tag == "merge":
            return []
        scores = zip(
            proposal.subsample_indices,
            proposal.subsample_scores_before or (),
            proposal.subsample_scores_after or (),
            strict=False,
        )
        asked = [(before, after) for position, before, after in scores if position in self._anchors]
        # Written so that a score that is no number regresses.
        return [(before, after) for before, after in asked if not after >= before]
