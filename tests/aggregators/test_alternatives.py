from __future__ import annotations

from typing import Any

import pytest

from combee_dspy.aggregators import ParallelScan, SingleCall, Summarize, TopK, Union, node_lessons
from combee_dspy.records import FailedCall, Lesson, Lessons, NodeOutput


@pytest.mark.parametrize("aggregator", [ParallelScan(), Union(), Summarize()])
def test_the_nodes_below_the_root_can_stand_in_for_it(
    aggregator: Any, context_of: Any, learner: Any, reflections: Any
) -> None:
    context, _, _ = context_of(learner)
    lessons = aggregator.aggregate(reflections(40), context)
    root, *children = node_lessons(lessons)
    assert root.root
    assert root.lessons == lessons
    shards = [node for node in lessons.nodes if node.level == 1]
    assert [(child.level, child.node, child.root) for child in children] == [(1, n.node, False) for n in shards]
    for child, node in zip(children, shards, strict=True):
        assert child.lessons.component == "answer"
        assert child.lessons.nodes == (node,)
        assert tuple(lesson.text for lesson in child.lessons.lessons) == node.lessons
        assert all(set(lesson.sources) <= set(node.sources) and lesson.sources for lesson in child.lessons.lessons)


def test_one_level_has_no_children(context_of: Any, learner: Any, reflections: Any) -> None:
    context, _, _ = context_of(learner)
    (only,) = node_lessons(TopK().aggregate(reflections(40), context))
    assert only.root


def test_a_whole_text_has_no_stand_in(context_of: Any, reflections: Any) -> None:
    context, _, _ = context_of(lambda name, values: {"new_instruction": "Do better."})
    (only,) = node_lessons(SingleCall().aggregate(reflections(4), context))
    assert only.lessons.rewrite == "Do better."


def test_nothing_learned_has_no_alternatives(context_of: Any, reflections: Any) -> None:
    context, _, _ = context_of(lambda name, values: FailedCall("E: x"))
    assert node_lessons(ParallelScan().aggregate(reflections(9), context)) == ()
    assert node_lessons(Lessons("answer")) == ()


def test_failed_empty_and_repeated_nodes_are_left_out() -> None:
    nodes = (
        NodeOutput(1, 0, (0,), ("Only a.",)),
        NodeOutput(1, 1, (1,), ("only A",)),
        NodeOutput(1, 2, (2,), ()),
        NodeOutput(1, 3, (3,), ("b", "c"), failed="E: x"),
        NodeOutput(1, 4, (4,), ("Root lesson.", "Only a.")),
        NodeOutput(2, 0, (0, 1, 2, 3, 4), ("Root lesson.", "Only a.")),
    )
    root = (Lesson("Root lesson.", (0, 4)), Lesson("Only a.", (0, 1)))
    found = node_lessons(Lessons("answer", root, nodes=nodes))
    assert [(one.level, one.node) for one in found] == [(2, 0), (1, 0)]
    assert found[1].lessons.lessons == (Lesson("Only a.", (0,)),)
