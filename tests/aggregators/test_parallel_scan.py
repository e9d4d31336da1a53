from __future__ import annotations

from typing import Any

import pytest

from combee_dspy.aggregators import ParallelScan
from combee_dspy.records import FailedCall, Reflection
from tests.aggregators.doubles import World, facts, learner, made

WIDE: dict[str, Any] = {"max_lessons": 100, "max_call_tokens": 10**7}


def widths(nodes):
    levels = [node.level for node in nodes]
    return tuple(levels.count(level) for level in sorted(set(levels)))


@pytest.mark.parametrize(
    ("n", "calls"),
    [
        (1, (1,)),
        (3, (1,)),
        (4, (2, 1)),
        (9, (3, 1)),
        (40, (6, 1)),
        (56, (7, 1)),
        (240, (15, 1)),
        (1_300, (36, 1)),
    ],
)
def test_the_tree_is_the_papers_at_every_size_that_calls_can_take(n, calls):
    world = World.of(learner)
    lessons = world.run(ParallelScan(**WIDE), made(n))
    assert facts(lessons) == set(range(n))
    assert widths(lessons.nodes) == calls
    assert [(node.level, node.node) for node in lessons.nodes] == [
        (level, node) for level, width in enumerate(calls, 1) for node in range(width)
    ]
    assert lessons.nodes[-1].sources == tuple(range(n))
    assert world.service.counts.get("MergeLessons", 0) == sum(calls[1:])


def test_by_default_tokens_bound_a_call_and_no_count_does():
    world = World.of(learner)
    world.run(ParallelScan(), made(240))
    shards = [call for call in world.service.calls if call.name == "LearnFromExamples"]
    assert len(shards) == 15
    assert (
        {len(call.records) for call in shards}
        == {call.inputs["most_lessons"] for call in shards}
        == {32}
    )
    assert world.service.counts["MergeLessons"] == 1
    # The same number of longer reflections: as many shards, each read by the fewest calls that it
    # fits.
    world = World.of(learner)
    lessons = world.run(
        ParallelScan(),
        [Reflection(one.index, {**one.record, "Trace": "word " * 1_500}) for one in made(240)],
    )
    read = [call for call in world.service.calls if call.name == "LearnFromExamples"]
    assert {len(call.records) for call in read} <= {10, 11, 12}
    assert len(read) == 45
    assert facts(lessons) == set(range(240))


def test_lists_too_many_for_the_tokens_of_one_call_get_a_further_level():
    def script(name, inputs):
        if name == "LearnFromExamples":
            return {
                "lessons": [
                    f"Lesson {r['Feedback']}: " + "long " * 50
                    for r in inputs["examples_with_feedback"]
                ]
            }
        return {
            "lessons": sorted({text[:20] for texts in inputs["lesson_lists"] for text in texts})
        }

    world = World.of(script)
    lessons = world.run(ParallelScan(max_call_tokens=5_000), made(100))
    assert widths(lessons.nodes) == (10, 5, 1)
    assert {int(lesson.text.split()[2].rstrip(":")) for lesson in lessons.lessons} == set(
        range(100)
    )


def test_lists_no_two_of_which_fit_a_call_are_joined_by_code_and_it_is_said():
    def script(name, inputs):
        assert name == "LearnFromExamples"
        return {
            "lessons": [
                f"Lesson {r['Feedback']}: " + "long " * 150
                for r in inputs["examples_with_feedback"]
            ]
        }

    world = World.of(script)
    lessons = world.run(ParallelScan(copies=1, max_call_tokens=2_000, max_lessons=12), made(36))
    assert len(lessons.lessons) == 36
    assert widths(lessons.nodes) == (6, 1)
    assert "joined by code" in world.warnings[0]


@pytest.mark.parametrize("n", [1, 3, 25, 400])
def test_the_last_merge_is_left_to_whoever_joins_the_lessons(n):
    later, merged = World.of(learner, joined_later=True), World.of(learner)
    lessons = later.run(ParallelScan(**WIDE), made(n))
    assert facts(lessons) == set(range(n))
    assert lessons.nodes[-1].sources == tuple(range(n))
    merged.run(ParallelScan(**WIDE), made(n))
    assert len(merged.service.calls) - len(later.service.calls) == (n >= 4)


def test_lessons_name_the_reflections_they_came_from():
    def script(name, inputs):
        if name == "MergeLessons":
            return {"lessons": ["remember FACT 3", "a reworded lesson"]}
        return learner(name, inputs)

    lessons = World.of(script).run(ParallelScan(copies=1), made(9))
    shard = next(node for node in lessons.nodes if node.level == 1 and 3 in node.sources)
    assert lessons.lessons[0].sources == shard.sources
    assert lessons.lessons[1].sources == tuple(range(9))


def test_a_failed_shard_loses_its_lessons_only_there():
    def script(name, inputs):
        if name == "LearnFromExamples" and any(
            r["Feedback"] == "fact 0" for r in inputs["examples_with_feedback"]
        ):
            return FailedCall("TimeoutError: too slow")
        return learner(name, inputs)

    lessons = World.of(script).run(ParallelScan(copies=1), made(16))
    failed = [node for node in lessons.nodes if node.failed]
    assert [node.failed for node in failed] == ["TimeoutError: too slow"]
    assert facts(lessons) == set(range(16)) - set(failed[0].sources)


@pytest.mark.parametrize(
    "answer",
    [
        FailedCall("TimeoutError: too slow"),
        {"lessons": []},
        {"lessons": None},
        {"other": 1},
        {"lessons": 3},
    ],
)
def test_a_failed_merge_is_done_by_code(answer):
    world = World.of(
        lambda name, inputs: answer if name == "MergeLessons" else learner(name, inputs)
    )
    lessons = world.run(ParallelScan(), made(20))
    assert facts(lessons) == set(range(20))
    assert lessons.nodes[-1].level == 2
    assert lessons.nodes[-1].failed


@pytest.mark.parametrize(("merged", "warned"), [(8, False), (4, False), (3, True), (1, True)])
def test_a_merge_that_drops_most_lessons_is_warned_of(merged, warned):
    words = ["tent", "desk", "globe", "kettle", "violin", "shovel", "wallet", "teapot"]
    rules = [f"{word.title()}s go to {word}by." for word in words]

    def script(name, inputs):
        if name == "MergeLessons":
            return {"lessons": rules[:merged]}
        return {"lessons": [record["Feedback"] for record in inputs["examples_with_feedback"]]}

    world = World.of(script)
    mistakes = [Reflection(place, {"Feedback": rule}) for place, rule in enumerate(rules)]
    assert len(world.run(ParallelScan(copies=1), mistakes).lessons) == merged
    assert any("the merge lost" in text for text in world.warnings) is warned


def test_one_list_needs_no_merge():
    def script(name, inputs):
        assert name == "LearnFromExamples"
        result = any(r["Feedback"] == "fact 0" for r in inputs["examples_with_feedback"])
        return {"lessons": ["Only here."] if result else []}

    lessons = World.of(script).run(ParallelScan(copies=1), made(9))
    assert [lesson.text for lesson in lessons.lessons] == ["Only here."]


def test_too_many_lessons_are_cut_and_it_is_said():
    world = World.of(lambda name, inputs: {"lessons": [f"Lesson {i}." for i in range(50)]})
    lessons = world.run(ParallelScan(max_lessons=5), made(3))
    assert [lesson.text for lesson in lessons.lessons] == [f"Lesson {i}." for i in range(5)]
    assert world.warnings == ["level 1, node 0: 50 lessons came back, the first 5 were kept"]


def test_plain_placement_lets_copies_meet_and_keeps_every_copy():
    context = World.of(learner).context
    shards = ParallelScan(placement="plain").shards(25, context)
    assert shards is not None
    assert sorted(index for shard in shards for index in shard) == sorted([*range(25), *range(25)])
    assert any(len(set(shard)) < len(shard) for shard in shards)
