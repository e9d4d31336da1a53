"""What a scan's result could be replaced by: the nodes right below its root. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from combee_dspy.records import Lesson, Lessons, NodeOutput
from combee_dspy.reflections import normalised

__all__ = ["NodeAlternative", "node_lessons"]


@dataclass(frozen=True, slots=True)
class NodeAlternative:
    """One node's output in the form of a scan's result.

    Attributes:
        level: The node's level.
        node: Its position in the level.
        root: Whether it is the result itself.
        lessons: Its lessons, each with the sources it has in the result or else
            all of the node's; ``nodes`` holds the node alone, or all of them for the root.
    """

    level: int
    node: int
    root: bool
    lessons: Lessons


def node_lessons(lessons: Lessons) -> tuple[NodeAlternative, ...]:
    """Return a scan's result and the outputs of the nodes right below its root that could stand in for it.

    A node that holds nothing, that failed and holds what others found, or that
    says what the root or an earlier node says, is left out.

    Args:
        lessons: What an aggregator returned.

    Returns:
        The root first, then its children in node order. Nothing where the scan has
        no nodes or learned nothing; the root alone where it has one level, or
        where the result is a whole text, which no list of lessons can stand in for.
    """
    if not lessons.nodes or not (lessons.lessons or lessons.rewrite):
        return ()
    top = lessons.nodes[-1]
    found = [NodeAlternative(top.level, top.node, True, lessons)]
    if lessons.rewrite is not None:
        return tuple(found)
    sources = {normalised(lesson.text): lesson.sources for lesson in lessons.lessons}
    said = {_said([lesson.text for lesson in lessons.lessons])}
    for node in lessons.nodes:
        if node.level != top.level - 1 or node.failed or not node.lessons or _said(node.lessons) in said:
            continue
        said.add(_said(node.lessons))
        found.append(NodeAlternative(node.level, node.node, False, _as_lessons(lessons.component, node, sources)))
    return tuple(found)


def _as_lessons(component: str, node: NodeOutput, known: dict[str, tuple[int, ...]]) -> Lessons:
    below = set(node.sources)
    own = []
    for text in node.lessons:
        # The root joins the sources of all nodes that said it; this node's part of them is what it saw.
        shared = tuple(source for source in known.get(normalised(text), ()) if source in below)
        own.append(Lesson(text, shared or node.sources))
    return Lessons(component, lessons=tuple(own), nodes=(node,))


def _said(texts: Sequence[str]) -> frozenset[str]:
    return frozenset(normalised(text) for text in texts)
