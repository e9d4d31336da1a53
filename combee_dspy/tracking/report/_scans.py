"""Scans, as a report shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from combee_dspy.events import NodeFinished, RetentionMeasured, ScanFinished, ScanStarted
from combee_dspy.records import NodeOutput, Retained
from combee_dspy.tracking._text import cut
from combee_dspy.tracking.report._data import ScanNode, ScanView

__all__ = ["MAX_LESSON", "MAX_LESSONS", "TEXT_BUDGET", "Scans", "scan_view"]

MAX_LESSON = 400
"""Characters of a lesson that is shown."""

MAX_LESSONS = 12
"""Lessons of a node that are shown."""

TEXT_BUDGET = 600_000
"""Characters of lessons kept over all scans; beyond it the oldest keep only counts."""

Place = tuple[int, int]


def scan_view(
    event: ScanFinished,
    retention: RetentionMeasured | None = None,
    tokens: Mapping[Place, int] | None = None,
    reflections: int = 0,
) -> ScanView:
    """Return one scan with what each node kept.

    Args:
        event: Its end.
        retention: What became of its reflections, where it was measured.
        tokens: Estimated tokens of the lessons by (level, node).
        reflections: Reflections it received.
    """
    fates = {one.index: one for one in retention.reflections} if retention is not None else None
    nodes = sorted(event.nodes, key=lambda node: (node.level, node.node))
    sources = {index for node in nodes for index in node.sources}
    return ScanView(
        iteration=event.iteration,
        component=event.component,
        aggregator=event.aggregator,
        reflections=reflections or len(sources),
        nodes=tuple(_node(node, nodes, fates, (tokens or {}).get((node.level, node.node))) for node in nodes),
        lessons=len(event.lessons),
        seconds=event.seconds,
        covered=None if fates is None else sum(one.covered for one in fates.values()),
        measured=0 if fates is None else len(fates),
        rescued=0 if retention is None else len(retention.rescued),
        tokens_per_level=() if retention is None else tuple(retention.tokens_per_level),
    )


def _node(
    node: NodeOutput, nodes: Sequence[NodeOutput], fates: Mapping[int, Retained] | None, tokens: int | None
) -> ScanNode:
    place = (node.level, node.node)
    kept = lost = None
    if fates is not None:
        below = [fates[index] for index in node.sources if index in fates]
        kept = sum(one.covered or (one.lost_at is not None and one.lost_at[0] > node.level) for one in below)
        lost = sum(one.lost_at is not None and tuple(one.lost_at) == place for one in below)
    return ScanNode(
        level=node.level,
        node=node.node,
        sources=len(node.sources),
        parent=_parent(node, nodes),
        count=len(node.lessons),
        lessons=tuple(cut(lesson, MAX_LESSON) for lesson in node.lessons[:MAX_LESSONS]),
        tokens=tokens,
        kept=kept,
        lost=lost,
        failed="" if node.failed is None else cut(node.failed, MAX_LESSON),
    )


def _parent(node: NodeOutput, nodes: Sequence[NodeOutput]) -> int | None:
    """Return the position of the node above that read this one's lessons.

    A node says which reflections stand below it, not which nodes; where copies
    make several parents possible, the plan's even split of a level decides.
    """
    level = min((other.level for other in nodes if other.level > node.level), default=None)
    if level is None:
        return None
    above = [other for other in nodes if other.level == level]
    row = [other.node for other in nodes if other.level == node.level]
    own = set(node.sources)
    possible = [other.node for other in above if own <= set(other.sources)]
    rank, width, groups = row.index(node.node), len(row), len(above)
    even = next(
        (above[g].node for g in range(groups) if width * g // groups <= rank < width * (g + 1) // groups), above[0].node
    )
    return even if even in possible or not possible else possible[0]


@dataclass
class Scans:
    """Joins what is heard about scans. Not thread-safe."""

    views: list[ScanView] = field(default_factory=list)
    _tokens: dict[str, dict[Place, int]] = field(default_factory=dict)
    _reflections: dict[str, int] = field(default_factory=dict)
    _early: dict[str, RetentionMeasured] = field(default_factory=dict)
    _last: dict[str, tuple[int, ScanFinished]] = field(default_factory=dict)
    _characters: int = 0
    _stripped: int = 0

    def started(self, event: ScanStarted) -> None:
        """A scan begins."""
        self._reflections[event.component] = event.reflections
        self._tokens.pop(event.component, None)
        self._early.pop(event.component, None)
        self._last.pop(event.component, None)

    def node(self, event: NodeFinished) -> None:
        """A node has its lessons."""
        place = (event.output.level, event.output.node)
        self._tokens.setdefault(event.component, {})[place] = event.tokens

    def finished(self, event: ScanFinished) -> None:
        """A scan has ended."""
        self._last[event.component] = (len(self.views), event)
        self.views.append(self._view(event, self._early.pop(event.component, None)))
        self._characters += _characters(self.views[-1])
        while self._characters > TEXT_BUDGET and self._stripped < len(self.views) - 1:
            view = self.views[self._stripped]
            self._characters -= _characters(view)
            self.views[self._stripped] = replace(view, nodes=tuple(replace(n, lessons=()) for n in view.nodes))
            self._stripped += 1

    def retained(self, event: RetentionMeasured) -> None:
        """What became of the reflections of a scan, before or after its end is heard."""
        position, finished = self._last.get(event.component, (-1, None))
        if finished is None or self._stripped > position:
            self._early[event.component] = event
        else:
            self.views[position] = self._view(finished, event)

    def forget(self, iteration: int) -> None:
        """Leave out the scans of an iteration that begins again."""
        kept = [view for view in self.views if view.iteration != iteration]
        if len(kept) < len(self.views):
            self.views = kept
            self._stripped = min(self._stripped, len(kept))
            self._characters = sum(map(_characters, kept))
            self._last.clear()

    @property
    def stripped(self) -> int:
        """Scans of which only counts are left."""
        return self._stripped

    def _view(self, event: ScanFinished, retention: RetentionMeasured | None) -> ScanView:
        known = self._tokens.get(event.component), self._reflections.get(event.component, 0)
        return scan_view(event, retention, *known)


def _characters(view: ScanView) -> int:
    return sum(len(lesson) for node in view.nodes for lesson in node.lessons)
