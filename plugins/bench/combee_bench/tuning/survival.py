"""How many lessons a whole scan is expected to keep, given what its calls keep."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from combee_bench.tuning.laws import CallLaw, CallLaws
from combee_dspy.aggregators import shard_count
from combee_dspy.shuffle import plan_shards
from combee_dspy.streams import derive

__all__ = ["ScanPlan", "Survival", "plan_scan", "predicted_survival"]

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ScanPlan:
    """A scan by ``parallel-scan``, without a limit on tokens.

    Attributes:
        n: Reflections.
        shards: The reflections that each level-1 call reads.
        merges: Per level above, the positions of the nodes of the level below that each node joins.
    """

    n: int
    shards: tuple[tuple[int, ...], ...]
    merges: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def calls(self) -> tuple[int, ...]:
        """LM calls per level; a node over one node makes none."""
        return (len(self.shards), *(sum(len(node) > 1 for node in level) for level in self.merges))


def plan_scan(n: int, copies: int, fan_in: int, *, seed: int = 0) -> ScanPlan:
    """Return how ``parallel-scan`` deals and merges n reflections where no call is too long."""
    k = shard_count(n, copies, fan_in)
    shards = plan_shards(n, copies, k, derive(seed, "tune-scan", n, copies))
    merges = ((tuple(range(len(shards))),),) if len(shards) > 1 else ()
    return ScanPlan(n, shards, merges)


@dataclass(frozen=True, slots=True)
class Survival:
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


def predicted_survival(
    laws: CallLaws, plan: ScanPlan, *, max_lessons: int | None = None
) -> Survival:
    """Predict the survival of a lesson through a plan.

    It is the survival of a lesson that one reflection teaches: the worst case,
    since lessons that several reflections teach have several ways through.

    Level 1. A copy survives its shard of m entries with probability q = q_read(m). The p copies
    stand in different calls, which are independent, so one survives with 1 − (1 − q)^p.

    Above. A merge takes in M lines, the sum of what its children are expected
    to write. A lesson stands in x of them, x being the number of children that
    hold it, by the Poisson-binomial law of their probabilities. The merge keeps a lesson that
    stands in x lines with the probability of :class:`CallLaw`, and writes it once. With two
    copies in shards of m, one merge and no limit on writing:

        P = 2q(1 − q) · r(1) + q² · r(2),   q = q_read(m), r(x) = q_merge(M, x).

    Numbers of lines are replaced by their expectation, and a call's failures,
    token limits and lines that teach nothing are left out.

    Args:
        laws: What one call keeps.
        plan: The plan of the scan; its own placement counts.
        max_lessons: The most lessons that a level-1 call may return; ``None`` for one for each
            reflection.
    """
    levels = _levels(laws.reads.law, laws.merges.law, plan, max_lessons)
    drawn = [
        float(_levels(read, merge, plan, max_lessons)[-1].mean())
        for read, merge in zip(laws.reads.replicates, laws.merges.replicates, strict=False)
    ]
    low, high = np.quantile(drawn, (0.025, 0.975))
    first = 1.0 - np.prod(1.0 - levels[0], axis=0)
    lines = tuple(float(level.sum()) for level in levels)
    return Survival(float(levels[-1].mean()), float(low), float(high), float(first.mean()), lines)


def _levels(read: CallLaw, merge: CallLaw, plan: ScanPlan, max_lessons: int | None) -> list[Floats]:
    """Return, per level, the chance that each node (row) holds each lesson (column)."""
    capped = (
        read if max_lessons is None else replace(read, writes=min(read.writes, float(max_lessons)))
    )
    held = np.zeros((len(plan.shards), plan.n))
    for row, shard in zip(held, plan.shards, strict=True):
        row[list(shard)] = capped.q(len(shard))
    levels = [held]
    for nodes in plan.merges:
        levels.append(np.stack([_merged(merge, levels[-1][list(node)]) for node in nodes]))
    return levels


def _merged(law: CallLaw, children: Floats) -> Floats:
    if len(children) == 1:
        only: Floats = children[0]
        return only
    # Row x: the probability that x children hold each lesson.
    counts = np.zeros((len(children) + 1, children.shape[1]))
    counts[0] = 1.0
    for held in children:
        counts[1:] = counts[1:] * (1.0 - held) + counts[:-1] * held
        counts[0] *= 1.0 - held
    entries = float(children.sum())
    counted = np.zeros(children.shape[1])
    for count in range(1, len(counts)):
        counted += counts[count] * law.read(max(entries, float(count)), count)
    distinct = float(counted.sum())
    result: Floats = law.rate * counted * (min(1.0, law.writes / distinct) if distinct > 0 else 1.0)
    return result
