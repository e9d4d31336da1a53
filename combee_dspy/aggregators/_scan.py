"""One aggregation under way: nodes by level, each with the lessons that a call or code made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import dspy

from combee_dspy.aggregators._dealing import data_room
from combee_dspy.aggregators._lessons import join_lessons, parse_lessons
from combee_dspy.events import WarningRaised
from combee_dspy.records import FailedCall, Lesson, Lessons, NodeOutput
from combee_dspy.reflections import estimate_tokens
from combee_dspy.strategies import StrategyContext


@dataclass(frozen=True, slots=True)
class Node:
    """Lessons, the indices of the reflections below them, and why a call gave none."""

    lessons: tuple[Lesson, ...]
    sources: tuple[int, ...]
    failed: str | None = None


class Scan:
    """The levels of one aggregation. Strategies append to ``levels``, level 1 first.

    Attributes:
        room: Estimated tokens that the data of one call may take.
        levels: The nodes of each level, in an order that no arrival decides.
    """

    def __init__(self, context: StrategyContext, max_call_tokens: int) -> None:
        self.context = context
        self.room = data_room(max_call_tokens, context.text)
        if (too_long := context.too_long) is not None:
            # Half of the data that did not fit; the text may have grown since.
            data = too_long - estimate_tokens(context.text)
            self.room = min(self.room, max(data // 2, too_long // 4))
        self.levels: list[list[Node]] = []

    @property
    def top(self) -> list[Node]:
        """The nodes of the highest level; none before anything was read."""
        return self.levels[-1] if self.levels else []

    def join(self, similarity: float | None = None) -> None:
        """Add a level of one node, whose lessons code joins from the level below."""
        lessons = join_lessons((node.lessons for node in self.top), similarity)
        self.levels.append([Node(lessons, sources_below(self.top))])

    def result(self) -> Lessons:
        """Return the lessons of the root, and the outputs of all nodes."""
        nodes = tuple(
            NodeOutput(
                level,
                number,
                node.sources,
                tuple(lesson.text for lesson in node.lessons),
                node.failed,
            )
            for level, nodes in enumerate(self.levels, start=1)
            for number, node in enumerate(nodes)
        )
        lessons = self.top[0].lessons if self.levels else ()
        return Lessons(self.context.component, lessons, nodes=nodes)

    def warn(self, number: int, text: str) -> None:
        """Warn of a node of the next level; the scan goes on."""
        self.context.emit(WarningRaised(f"level {len(self.levels) + 1}, node {number}: {text}"))

    def texts_in(
        self, number: int, answer: dspy.Prediction | FailedCall, most: int
    ) -> tuple[list[str], str | None]:
        """Return the lessons in a node's answer, ``most`` at most, or why there are none.

        Warns of what is cut.
        """
        if isinstance(answer, FailedCall):
            return [], answer.error
        value = answer.get("lessons")
        if value is None:
            return [], "EmptyAnswer: the answer has no lessons field"
        texts, notes = parse_lessons(value, most)
        for note in notes:
            self.warn(number, note)
        return texts, None


def sources_below(nodes: Iterable[Node]) -> tuple[int, ...]:
    """Return the indices of the reflections below some nodes, ascending, each once."""
    return tuple(sorted({source for node in nodes for source in node.sources}))
