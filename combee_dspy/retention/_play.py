"""Scans played through under a law, to know how far a few scans may stray from what is expected."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from combee_dspy.aggregators import ScanPlan
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.retention._law import RetentionLaw, RetentionLaws
from combee_dspy.streams import derive

__all__ = ["play_scan", "survival_range"]

_TAIL = 0.025


def survival_range(
    laws: RetentionLaws, plan: ScanPlan, scans: int, *, max_lessons: int = 16, seed: int = 0
) -> tuple[float, float]:
    """Return the 95 % prediction interval of the mean survival of a few scans.

    Unlike the interval of :func:`~combee_dspy.retention.predicted_survival`,
    which is about the expectation, it holds what chance does to single scans
    too: for each pair of replicates of the laws, so many scans are played.

    Args:
        laws: What one call keeps.
        plan: The plan of every scan.
        scans: Scans whose mean will be observed, at least 1.
        max_lessons: The most lessons that a level-1 call may return.
        seed: Where chance comes from.

    Raises:
        ArgumentValueError: ``scans`` is below 1, or the plan has no reflection.
    """
    if scans < 1:
        raise ArgumentValueError("scans", scans, "is below 1", "Give the number of scans that are observed.")
    if plan.n < 1:
        raise ArgumentValueError("plan", plan, "has no reflections", "Plan a scan of at least one.")
    means = []
    for number, (read, merge) in enumerate(zip(laws.reads.replicates, laws.merges.replicates, strict=False)):
        stream = derive(seed, "survival range", number)
        capped = RetentionLaw(read.rate, read.reads, min(read.writes, float(max_lessons)))
        kept = sum(len(play_scan(capped, merge, plan, stream)) for _ in range(scans))
        means.append(kept / scans / plan.n)
    means.sort()
    # The outermost ranks that leave at most the tail outside.
    cut = math.floor(_TAIL * len(means))
    return means[cut], means[len(means) - 1 - cut]


def play_scan(read: RetentionLaw, merge: RetentionLaw, plan: ScanPlan, stream: random.Random) -> frozenset[int]:
    """Return the reflections whose lesson the root holds in one scan under the laws.

    A limit that is no whole number is rounded up as often as its fraction says.

    Args:
        read: Of level-1 calls.
        merge: Of the calls above.
        plan: The plan.
        stream: Where chance comes from.
    """
    held: list[list[int]] = []
    for level, nodes in enumerate(plan.levels):
        above: list[list[int]] = []
        for node in nodes:
            if level and len(node.sources) == 1:
                above.append(held[node.sources[0]])
            elif level:
                above.append(_call(merge, [one for child in node.sources for one in held[child]], stream))
            else:
                above.append(_call(read, node.sources, stream))
        held = above
    return frozenset(held[0]) if held else frozenset()


def _call(law: RetentionLaw, entries: Sequence[int], stream: random.Random) -> list[int]:
    taken = sorted(set(_some(entries, law.reads, stream)))
    written = _some(taken, law.writes, stream)
    return list(written) if law.rate >= 1 else [one for one in written if stream.random() < law.rate]


def _some(entries: Sequence[int], limit: float, stream: random.Random) -> Sequence[int]:
    if limit >= len(entries):
        return entries
    whole = math.floor(limit)
    return stream.sample(entries, min(len(entries), whole + (stream.random() < limit - whole)))
