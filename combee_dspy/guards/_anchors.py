"""Anchor examples: what worked must go on working."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from combee_dspy.records import Refusal

__all__ = ["check_anchors"]


def check_anchors(
    anchors: Iterable[str], before: Mapping[str, float], after: Mapping[str, float], tolerance: float = 0.0
) -> Refusal | None:
    """Return why a child may not pass its anchors, or ``None`` where none of them regressed.

    A child that was not run on an anchor is refused too, and so is one whose score is no number: what was not
    shown to hold does not hold.

    Args:
        anchors: Row hashes of the anchor examples.
        before: Score by row hash of the reference, the best known or the parent. An anchor
            without a score in it cannot have regressed.
        after: The child's score by row hash, a mean where an example was drawn several times.
        tolerance: How many points an anchor may fall.
    """
    for anchor in anchors:
        if anchor not in before:
            continue
        if anchor not in after:
            return Refusal(f"anchor example {anchor[:12]} was not run on the child")
        # Written so that a score that is no number fails.
        if not after[anchor] >= before[anchor] - tolerance:
            return Refusal(f"anchor example {anchor[:12]} fell from {before[anchor]:g} to {after[anchor]:g}")
    return None
