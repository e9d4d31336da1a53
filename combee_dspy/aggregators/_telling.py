"""What a scan says while it runs: its start, every node of a level once the level is done, its end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from combee_dspy.events import ErrorRaised, NodeFinished, ScanFinished, ScanStarted
from combee_dspy.records import Lesson, NodeOutput
from combee_dspy.reflections import estimate_tokens
from combee_dspy.strategies import StrategyContext

__all__ = ["ScanTeller"]


@dataclass(frozen=True, slots=True)
class ScanTeller:
    """Emits the events of one scan. Its clock starts when it is made.

    Attributes:
        context: The scan's context.
        aggregator: The aggregator's name.
    """

    context: StrategyContext
    aggregator: str
    _since: float = field(default_factory=time.monotonic)

    def started(self, reflections: int, levels: tuple[int, ...]) -> None:
        """Say that the scan begins, with its LM calls per level as planned."""
        self.context.emit(
            ScanStarted(
                iteration=self.context.iteration,
                component=self.context.component,
                aggregator=self.aggregator,
                reflections=reflections,
                levels=levels,
            )
        )

    def level_done(self, nodes: Iterable[NodeOutput]) -> None:
        """Say what every node of a level returned."""
        for node in nodes:
            self.context.emit(
                NodeFinished(
                    iteration=self.context.iteration,
                    component=self.context.component,
                    aggregator=self.aggregator,
                    output=node,
                    tokens=sum(estimate_tokens(lesson) for lesson in node.lessons),
                )
            )

    def note(self, level: int, node: int, error: str) -> None:
        """Say that something of a node was cut or given up; the scan goes on."""
        self.context.emit(
            ErrorRaised(
                iteration=self.context.iteration,
                where=f"scan of {self.context.component}, level {level}, node {node}",
                error=error,
                fatal=False,
            )
        )

    def finished(self, nodes: Sequence[NodeOutput], lessons: Sequence[Lesson]) -> None:
        """Say that the scan has ended."""
        self.context.emit(
            ScanFinished(
                iteration=self.context.iteration,
                component=self.context.component,
                aggregator=self.aggregator,
                nodes=tuple(nodes),
                lessons=tuple(lesson.text for lesson in lessons),
                seconds=time.monotonic() - self._since,
            )
        )
