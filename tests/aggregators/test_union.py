from __future__ import annotations

from typing import Any

import pytest

from combee_dspy.aggregators import ParallelScan, Union
from tests.aggregators.doubles import World, facts, learner, made

WIDE: dict[str, Any] = {"max_lessons": 100}


@pytest.mark.parametrize("n", [1, 3, 13, 97, 240])
def test_every_lesson_is_kept_and_only_shards_cost_calls(n):
    world = World.of(learner)
    lessons = world.run(Union(**WIDE), made(n))
    assert facts(lessons) == set(range(n))
    assert set(world.service.counts) == {"AddLessons"}
    *shards, joined = lessons.nodes
    assert [(node.level, node.node) for node in shards] == [
        (1, i) for i in range(len(world.service.calls))
    ]
    assert (joined.level, joined.sources) == (2, tuple(range(n)))


def test_the_shards_are_those_of_the_parallel_scan():
    context = World.of(learner).context
    assert Union(window=None).shards(50, context) == ParallelScan().shards(50, context)


def test_near_duplicates_become_one_with_all_sources_and_the_longer_wording():
    words = (
        "Give the growth rate as a percentage with two decimals and no sign when the question asks"
        " for a rate"
    )

    def script(name, inputs):
        holds_first = any(
            record["Feedback"] == "fact 0" for record in inputs["examples_with_feedback"]
        )
        return {"lessons": [f"{words}." if holds_first else f"{words} today.", "Divide by 4."]}

    lessons = World.of(script).run(Union(copies=1), made(9))
    assert [lesson.text for lesson in lessons.lessons] == [f"{words} today.", "Divide by 4."]
    assert {lesson.sources for lesson in lessons.lessons} == {tuple(range(9))}


def test_lessons_that_differ_in_a_number_stay_two():
    def script(name, inputs):
        first = any(record["Feedback"] == "fact 0" for record in inputs["examples_with_feedback"])
        return {
            "lessons": [
                f"Round every monetary result of a question to {2 if first else 4} decimals."
            ]
        }

    assert len(World.of(script).run(Union(copies=1), made(9)).lessons) == 2
