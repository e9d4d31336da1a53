"""How many lessons a scan is expected to keep, given what its calls keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from combee_dspy.aggregators import PlanNode, ScanPlan
from combee_dspy.retention._law import Floats, RetentionLaw, RetentionLaws

__all__ = ["PredictedSurvival", "predicted_survival"]


@dataclass(frozen=True, slots=True)
class PredictedSurvival:
    """The expectation of one plan.

    Attributes:
        survival: Share of the reflections whose lesson the root is expected to hold.
        low: Lower end of the 95 % interval that comes from not knowing the laws exactly.
        high: Upper end.
        level_one: The same share after level 1, in any shard: what a lossless join would keep.
        lines: Expected lessons written at each level, lowest first.
    """

    survival: float
    low: float
    high: float
    level_one: float
    lines: tuple[float, ...]


def predicted_survival(laws: RetentionLaws, plan: ScanPlan, *, max_lessons: int = 16) -> PredictedSurvival:
    """Predict the survival of a lesson through a plan.

    It is the survival of a lesson that one reflection teaches: the worst case,
    since lessons that several reflections teach have several ways through.

    Level 1. A copy survives its shard of m entries with probability
    q = q_read(m). With distinct placement the p copies stand in different
    calls, which are independent, so one survives with 1 − (1 − q)^p.

    Above. A merge takes in M lines, the sum of what its children are expected
    to write. A lesson stands in x of them, x being the number of children that
    hold it. Children are independent, because their shards are disjoint and
    copies differ in shards, so x follows the Poisson-binomial law of their
    probabilities. The merge keeps a lesson that stands in x lines with the
    probability of :class:`RetentionLaw`: copies that reach the same merge are
    redundant there too, as far as reading goes. It writes a lesson once, so
    above it the copies are one. A node with one child makes no call and loses nothing.

    Numbers of lines are replaced by their expectation, and a call's failures,
    token limits and lines that teach nothing are left out. With two copies in
    shards of m1, one merge and no limit on writing:

        P = 2q(1 − q) · r(1) + q² · r(2),   q = q_read(m1), r(x) = q_merge(M, x).

    Args:
        laws: What one call keeps.
        plan: The plan of the scan; its own placement counts.
        max_lessons: The most lessons that a level-1 call may return.

    Returns:
        The expectation, averaged over the plan's reflections. An interval takes
        the replicates of both laws in pairs.
    """
    shards = [_entries(node, plan.n) for node in plan.levels[0]] if plan.levels else []
    levels = _expected(laws.reads.law, laws.merges.law, plan, shards, max_lessons)
    if not levels:
        return PredictedSurvival(0.0, 0.0, 0.0, 0.0, ())
    drawn = [
        float(_expected(read, merge, plan, shards, max_lessons)[-1].mean())
        for read, merge in zip(laws.reads.replicates, laws.merges.replicates, strict=False)
    ]
    low, high = np.quantile(drawn, (0.025, 0.975))
    first = 1.0 - np.prod(1.0 - levels[0], axis=0)
    lines = tuple(float(level.sum()) for level in levels)
    return PredictedSurvival(float(levels[-1].mean()), float(low), float(high), float(first.mean()), lines)


def _expected(
    read: RetentionLaw, merge: RetentionLaw, plan: ScanPlan, shards: Sequence[Floats], max_lessons: int
) -> list[Floats]:
    """Return, per level, the probability that each node (row) holds each reflection's lesson (column)."""
    if not plan.levels:
        return []
    capped = replace(read, writes=min(read.writes, float(max_lessons)))
    levels = [np.stack([_through(capped, entries) for entries in shards])]
    for nodes in plan.levels[1:]:
        levels.append(np.stack([_merged(merge, levels[-1][list(node.sources)]) for node in nodes]))
    return levels


def _entries(node: PlanNode, n: int) -> Floats:
    """Return the law of how many entries of a shard each thing has: the same whatever the call keeps."""
    entries = np.bincount(np.asarray(node.sources, dtype=int), minlength=n)
    most = int(entries.max())
    # One row a number of entries: here the numbers are certain.
    return np.stack([(entries == count).astype(float) for count in range(most + 1)])


def _merged(law: RetentionLaw, children: Floats) -> Floats:
    if len(children) == 1:
        result: Floats = children[0]
        return result
    return _through(law, _count_law(children))


def _count_law(children: Sequence[Floats] | Floats) -> Floats:
    """Return the Poisson-binomial law of how many children hold each lesson: one row a number."""
    most = int(np.count_nonzero(np.asarray(children) > 0, axis=0).max(initial=0))
    law = np.zeros((most + 1, np.asarray(children).shape[1]))
    law[0] = 1.0
    for held in children:
        for count in range(most, 0, -1):
            law[count] = law[count] * (1.0 - held) + law[count - 1] * held
        law[0] = law[0] * (1.0 - held)
    return law


def _through(law: RetentionLaw, counts: Floats) -> Floats:
    """Return the probability that a call keeps each thing, given the law of its number of entries."""
    entries = float(sum(count * row.sum() for count, row in enumerate(counts)))
    taken = np.zeros(counts.shape[1])
    for count in range(1, len(counts)):
        taken += counts[count] * law.read(max(entries, float(count)), count)
    distinct = float(taken.sum())
    result: Floats = law.rate * taken * (min(1.0, law.writes / distinct) if distinct > 0 else 1.0)
    return result
