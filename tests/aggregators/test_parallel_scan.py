"""The paper's scan: its tree, what a merge may lose, and where lessons come from."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from combee_dspy.aggregators import ParallelScan
from combee_dspy.records import FailedCall, Reflection
from tests.aggregators.doubles import World, facts, learner, mistakes

WIDE = {"max_lessons": 100, "max_call_tokens": 10**7}


def widths(lessons):
    counts = Counter(node.level for node in lessons.nodes)
    return tuple(counts[level] for level in sorted(counts))


def sizes_read(world):
    return [len(call.records) for call in world.calls if call.name == "LearnFromExamples"]


@pytest.mark.parametrize(
    ("n", "calls"),
    [(1, (1,)), (3, (1,)), (4, (2, 1)), (9, (3, 1)), (56, (7, 1)), (1_300, (36, 1))],
)
def test_the_tree_is_the_papers_at_every_size_that_calls_can_take(n, calls):
    world = World(learner)
    lessons = world.run(ParallelScan(**WIDE), mistakes(n))
    assert facts(lessons) == set(range(n))
    assert widths(lessons) == calls
    assert lessons.nodes[-1].sources == tuple(range(n))
    assert world.counts.get("MergeLessons", 0) == sum(calls[1:])


def test_by_default_tokens_bound_a_call_and_no_count_does():
    world = World(learner)
    world.run(ParallelScan(), mistakes(240))
    assert sizes_read(world) == [32] * 15
    assert {call.inputs.get("most_lessons", 32) for call in world.calls} == {32}
    # The same number of longer reflections: as many shards, each read by the fewest calls that it
    # fits.
    world = World(learner)
    longer = [
        replace(item, record={**item.record, "Trace": "word " * 1_500}) for item in mistakes(240)
    ]
    assert facts(world.run(ParallelScan(), longer)) == set(range(240))
    assert len(sizes_read(world)) == 45
    assert set(sizes_read(world)) <= {10, 11, 12}


@pytest.mark.parametrize(
    ("words", "params", "n", "tree"),
    [
        (50, {"max_call_tokens": 5_000}, 100, (10, 5, 1)),
        (150, {"copies": 1, "max_call_tokens": 2_000, "max_lessons": 12}, 36, (6, 1)),
    ],
    ids=["a further level", "no two lists fit a call"],
)
def test_lists_too_long_for_one_call_are_merged_by_levels_or_by_code(words, params, n, tree):
    def script(name, inputs):
        if name == "MergeLessons":
            texts = {text[:20] for texts in inputs["lesson_lists"] for text in texts}
            return {"lessons": sorted(texts)}
        long = "long " * words
        records = inputs["examples_with_feedback"]
        return {"lessons": [f"Lesson {record['Feedback']}: {long}" for record in records]}

    world = World(script)
    lessons = world.run(ParallelScan(**params), mistakes(n))
    assert widths(lessons) == tree
    assert {int(lesson.text.split()[2].rstrip(":")) for lesson in lessons.lessons} == set(range(n))
    assert any("joined by code" in text for text in world.warnings) == (len(tree) == 2)


@pytest.mark.parametrize("n", [1, 3, 25, 400])
def test_the_last_merge_is_left_to_whoever_joins_the_lessons(n):
    later, merged = World(learner, joined_later=True), World(learner)
    lessons = later.run(ParallelScan(**WIDE), mistakes(n))
    assert facts(lessons) == set(range(n))
    assert lessons.nodes[-1].sources == tuple(range(n))
    merged.run(ParallelScan(**WIDE), mistakes(n))
    assert len(merged.calls) - len(later.calls) == (n >= 4)


def test_lessons_name_the_reflections_they_came_from():
    def script(name, inputs):
        if name == "MergeLessons":
            return {"lessons": ["remember FACT 3", "a reworded lesson"]}
        return learner(name, inputs)

    lessons = World(script).run(ParallelScan(copies=1), mistakes(9))
    shard = next(node for node in lessons.nodes if node.level == 1 and 3 in node.sources)
    assert lessons.lessons[0].sources == shard.sources
    assert lessons.lessons[1].sources == tuple(range(9))


def test_a_failed_shard_loses_its_lessons_only_there():
    def script(name, inputs):
        answer = learner(name, inputs)
        shard = name == "LearnFromExamples" and "Remember fact 0." in answer["lessons"]
        return FailedCall("TimeoutError: too slow") if shard else answer

    lessons = World(script).run(ParallelScan(copies=1), mistakes(16))
    (failed,) = (node for node in lessons.nodes if node.failed)
    assert failed.failed == "TimeoutError: too slow"
    assert facts(lessons) == set(range(16)) - set(failed.sources)


@pytest.mark.parametrize(
    "answer", [FailedCall("TimeoutError: late"), {"lessons": []}, {"lessons": 3}, {"other": 1}]
)
def test_a_failed_merge_is_done_by_code(answer):
    world = World(lambda name, inputs: answer if name == "MergeLessons" else learner(name, inputs))
    lessons = world.run(ParallelScan(), mistakes(20))
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

    world = World(script)
    reflections = [Reflection(place, {"Feedback": rule}) for place, rule in enumerate(rules)]
    assert len(world.run(ParallelScan(copies=1), reflections).lessons) == merged
    assert any("the merge lost" in text for text in world.warnings) is warned


def test_one_list_needs_no_merge():
    def script(name, inputs):
        assert name == "LearnFromExamples"
        answer = learner(name, inputs)["lessons"]
        return {"lessons": ["Only here."] if "Remember fact 0." in answer else []}

    lessons = World(script).run(ParallelScan(copies=1), mistakes(9))
    assert [lesson.text for lesson in lessons.lessons] == ["Only here."]


def test_too_many_lessons_are_cut_with_a_warning():
    world = World(lambda name, inputs: {"lessons": [f"Lesson {i}." for i in range(50)]})
    lessons = world.run(ParallelScan(max_lessons=5), mistakes(3))
    assert [lesson.text for lesson in lessons.lessons] == [f"Lesson {i}." for i in range(5)]
    assert world.warnings == ["level 1, node 0: 50 lessons came back, the first 5 were kept"]


def test_plain_placement_lets_copies_meet_and_keeps_every_copy():
    shards = ParallelScan(placement="plain").shards(25, World(learner).context)
    assert sorted(index for shard in shards for index in shard) == sorted([*range(25), *range(25)])
    assert any(len(set(shard)) < len(shard) for shard in shards)
