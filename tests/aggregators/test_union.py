"""The union: what code joins, and with which sources."""

from __future__ import annotations

import pytest

from combee_dspy.aggregators import ParallelScan, Union
from combee_dspy.exceptions import ArgumentValueError
from tests.aggregators.doubles import World, facts, learner, mistakes


@pytest.mark.parametrize("n", [1, 3, 97, 240])
def test_every_lesson_is_kept_and_only_shards_cost_calls(n):
    world = World(learner)
    lessons = world.run(Union(max_lessons=100), mistakes(n))
    assert facts(lessons) == set(range(n))
    assert set(world.counts) == {"AddLessons"}
    *shards, joined = lessons.nodes
    assert [(node.level, node.node) for node in shards] == [(1, i) for i in range(len(world.calls))]
    assert (joined.level, joined.sources) == (2, tuple(range(n)))


def test_the_shards_are_those_of_the_parallel_scan():
    context = World(learner).context
    assert Union(window=None).shards(50, context) == ParallelScan().shards(50, context)


def test_near_duplicates_become_one_with_all_sources_and_the_longer_wording():
    words = "Give the growth rate as a percentage with two decimals and no sign"

    def script(name, inputs):
        first = any(item["Feedback"] == "fact 0" for item in inputs["examples_with_feedback"])
        number = f"Round every monetary result of a question to {2 if first else 4} decimals."
        return {"lessons": [f"{words}." if first else f"{words} today.", number]}

    lessons = World(script).run(Union(copies=1), mistakes(9)).lessons
    assert lessons[0].text == f"{words} today."
    assert lessons[0].sources == tuple(range(9))
    assert len(lessons) == 3, "two that differ in a number stay two"


@pytest.mark.parametrize("params", [{"copies": 2, "window": 2}, {"copies": 4}])
def test_more_copies_than_a_window_has_room_for_are_refused(params):
    with pytest.raises(ArgumentValueError, match="copies of one reflection do not fit"):
        Union(**params)
    with pytest.raises(ArgumentValueError, match="Give copies=2"):
        ParallelScan(copies=3, placement="plain", fan_in=2, window=1)
