from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from combee_dspy.aggregators import ParallelScan, measure_retention
from combee_dspy.records import Lesson, Lessons, NodeOutput, Reflection
from tests.aggregators.doubles import World

_GOODS = "belbak dordane fenfike gargorn hulhal jorick keljon lumlode mavmar nornix peloth quilpern"
_PORTS = "rosrus sarstad tamtor ulvumb vorvek wenwold yaryx zelzim bellode dormar fennix garoth"
GOODS, PORTS = _GOODS.split(), _PORTS.split()


def line(number):
    return (
        f"The {PORTS[number]} desk files shipments of {GOODS[number]} under Q{1234 + 7 * number}."
    )


def lines(*numbers):
    return tuple(map(line, numbers))


def record(number, feedback=None):
    said = (
        f"Wrong: got Q9. At the {PORTS[number]} desk, {GOODS[number]} shipments go under"
        f" Q{1234 + 7 * number}."
    )
    question = f"Under which code is a shipment of {GOODS[number]} from {PORTS[number]} filed?"
    return Reflection(
        number,
        {"Inputs": {"question": question}, "Feedback": said if feedback is None else feedback},
    )


RECORDS = [record(number) for number in range(12)]


def result(found, *nodes):
    return Lessons("answer", tuple(Lesson(text) for text in found), nodes=nodes)


def two_levels(first, second, root):
    return result(
        lines(*root),
        NodeOutput(1, 0, tuple(range(6)), lines(*first)),
        NodeOutput(1, 1, tuple(range(6, 12)), lines(*second)),
        NodeOutput(2, 0, tuple(range(12)), lines(*root)),
    )


def test_each_reflection_is_lost_where_its_lesson_was_last_seen():
    result = measure_retention(two_levels((0, 1, 2), (6, 7), (0, 6)), RECORDS)
    assert [one.index for one in result] == list(range(12))
    assert {one.index for one in result if one.covered} == {0, 6}
    lost = {one.index: one.lost_at for one in result}
    assert lost[0] is None
    # Written at level 1, gone after the merge; and never written by the node that read it.
    assert (lost[1], lost[7]) == ((1, 0), (1, 1))
    assert (lost[5], lost[11]) == ((1, 0), (1, 1))
    assert all(one.measurable for one in result)
    assert min(one.coverage for one in result if one.covered) > 0.8
    assert max(one.coverage for one in result if not one.covered) < 0.4


def test_the_last_node_that_covered_it_counts_in_a_deeper_tree():
    nodes = (
        NodeOutput(1, 0, (0, 1), lines(0, 1)),
        NodeOutput(1, 1, (2, 3), lines(2, 3)),
        NodeOutput(2, 0, (0, 1, 2, 3), lines(0, 1, 2)),
        NodeOutput(1, 2, (4, 5), lines(4, 5)),
        NodeOutput(2, 1, (4, 5), lines(4, 5)),
        NodeOutput(3, 0, (0, 1, 2, 3, 4, 5), lines(0, 4)),
    )
    by_name = {
        one.index: one.lost_at
        for one in measure_retention(result(lines(0, 4), *nodes), RECORDS[:6])
    }
    assert by_name == {0: None, 1: (2, 0), 2: (2, 0), 3: (1, 1), 4: None, 5: (2, 1)}


def test_a_merged_line_covers_each_of_its_parts():
    merged = " ".join(lines(0, 1, 2, 3))
    found = measure_retention(
        result((merged,), NodeOutput(1, 0, tuple(range(12)), lines(*range(12)))), RECORDS
    )
    assert {one.index for one in found if one.covered} == {0, 1, 2, 3}


def test_a_rewritten_text_is_read_line_by_line():
    text = f"Name the code.\n\n- {line(3)}\n- Read with care. {line(5)}"
    result = measure_retention(Lessons("answer", rewrite=text), RECORDS)
    assert {one.index for one in result if one.covered} == {3, 5}
    assert result[0].lost_at == (1, 0)


def test_what_no_node_read_was_lost_before_the_first():
    found = measure_retention(result(lines(0), NodeOutput(1, 0, (0, 1), lines(0))), RECORDS)
    assert [one.lost_at for one in found[:3]] == [None, (1, 0), (0, 0)]


@pytest.mark.parametrize(
    ("feedback", "measurable"),
    [
        ("", False),
        ("This trajectory got a score of 0.0.", False),
        ("Wrong: expected 12.5, got 13.", False),
        ("Correct.", False),
        ("Wrong: got 3. Divide by current liabilities, not by assets.", True),
        ("Неверно: нужно делить на активы", True),
    ],
)
def test_a_mere_verdict_is_not_measurable(feedback, measurable):
    (found,) = measure_retention(result(lines(1)), [Reflection(0, {"Feedback": feedback})])
    assert found.measurable is measurable
    assert 0 <= found.coverage <= 1


def test_without_useful_feedback_the_level_one_line_stands_for_it():
    result = measure_retention(
        two_levels((0, 1), (6,), (0,)), [record(number, "Wrong.") for number in range(12)]
    )
    assert {one.index for one in result if one.covered} == {0}
    assert not any(one.measurable for one in result)


def test_a_real_scan_says_which_merge_lost_what():
    def script(name, inputs):
        if name == "LearnFromExamples":
            records = inputs["examples_with_feedback"]
            shown = [number for number in range(12) if PORTS[number] in str(records)]
            return {"lessons": list(lines(*shown))}
        return {"lessons": list(lines(0, 1))}

    lessons = World(script).run(ParallelScan(copies=1), RECORDS)
    result = measure_retention(lessons, RECORDS)
    assert {one.index for one in result if one.covered} == {0, 1}
    shards = {
        index: (node.level, node.node)
        for node in lessons.nodes
        if node.level == 1
        for index in node.sources
    }
    assert {one.index: one.lost_at for one in result if not one.covered} == {
        n: shards[n] for n in range(2, 12)
    }


@given(st.permutations(range(12)), st.sets(st.integers(0, 11)))
@settings(max_examples=20, deadline=None)
def test_order_does_not_matter_and_truth_is_found(order, held):
    outcome = result(lines(*sorted(held)), NodeOutput(1, 0, tuple(range(12)), lines(*range(12))))
    found = measure_retention(outcome, [RECORDS[place] for place in order])
    assert {one.index for one in found if one.covered} == held
