"""What a scan of a run is expected to keep, by what the run's earlier scans kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from combee_dspy.aggregators import PlanNode, ScanPlan
from combee_dspy.records import NodeOutput
from combee_dspy.retention._fit import fit_retention
from combee_dspy.retention._law import RetentionLaws, RetentionSample
from combee_dspy.retention._predict import PredictedSurvival, predicted_survival
from combee_dspy.retention._similar import load
from combee_dspy.retention._tree import children_of, levels_of

__all__ = ["RetentionBook", "plan_of"]

# An interval for a picture needs fewer draws than one for a table, and is made once a scan.
_REPLICATES = 40


def plan_of(nodes: Sequence[NodeOutput]) -> ScanPlan:
    """Return the plan behind a scan's nodes, as far as their sources tell it.

    Args:
        nodes: A scan's nodes, in any order.
    """
    levels = levels_of(nodes)
    if not levels:
        return ScanPlan(0, 1, ())
    position = {index: place for place, index in enumerate(sorted({i for node in levels[0] for i in node.sources}))}
    first = tuple(PlanNode(tuple(position[index] for index in node.sources)) for node in levels[0])
    above = tuple(tuple(PlanNode(places) for places in children_of(lower, upper)) for lower, upper in pairwise(levels))
    read = sum(len(node.sources) for node in first)
    return ScanPlan(len(position), max(1, round(read / max(1, len(position)))), (first, *above))


@dataclass(slots=True)
class RetentionBook:
    """The samples of a run's scans. Not thread-safe.

    Attributes:
        reads: Of calls over reflections.
        merges: Of calls over lists of lessons.
    """

    reads: list[RetentionSample] = field(default_factory=list)
    merges: list[RetentionSample] = field(default_factory=list)
    _laws: RetentionLaws | None = field(default=None, init=False, repr=False, compare=False)
    _fitted: tuple[int, int] = field(default=(0, 0), init=False, repr=False, compare=False)

    def add(self, samples: tuple[Sequence[RetentionSample], Sequence[RetentionSample]]) -> None:
        """Note what :func:`~combee_dspy.retention.node_samples` read from a scan."""
        self.reads.extend(samples[0])
        self.merges.extend(samples[1])

    def prepare(self) -> None:
        """Do what measuring a scan will need and what can be done before it ends: for while its calls run.

        The laws are fitted to what is there, so that :meth:`expect` finds them fitted.
        """
        load()
        self._fit()

    def _fit(self) -> None:
        size = (len(self.reads), len(self.merges))
        if self._fitted == size or not self.reads:
            return
        reads = fit_retention(self.reads, replicates=_REPLICATES)
        merges = fit_retention(self.merges, replicates=_REPLICATES) if self.merges else reads
        self._laws, self._fitted = RetentionLaws(reads, merges), size

    def expect(self, nodes: Sequence[NodeOutput]) -> PredictedSurvival | None:
        """Return what the scan with these nodes was expected to keep; ``None`` where nothing has been sampled before.

        A scan without merges before it tells nothing about merging: a merge is then taken to keep what a
        reading call of its size does.
        """
        self._fit()
        return None if self._laws is None else predicted_survival(self._laws, plan_of(nodes))
