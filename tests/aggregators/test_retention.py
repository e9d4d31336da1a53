"""Which reflections a result covers, and at which node the others were lost."""

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
ALL = tuple(range(12))


def line(number):
    code = f"Q{1234 + 7 * number}"
    return f"The {PORTS[number]} desk files shipments of {GOODS[number]} under {code}."


def lines(*numbers):
    return tuple(map(line, numbers))


def record(number, feedback=""):
    code = f"Q{1234 + 7 * number}"
    rule = f"At the {PORTS[number]} desk, {GOODS[number]} shipments go under {code}."
    question = f"Under which code is a shipment of {GOODS[number]} from {PORTS[number]} filed?"
    fields = {"Inputs": {"question": question}, "Feedback": feedback or f"Wrong: got Q9. {rule}"}
    return Reflection(number, fields)


RECORDS = [record(number) for number in ALL]


def fates(texts, *nodes, records=RECORDS):
    """Return what became of the reflections of a scan with these lessons and nodes, by index."""
    lessons = Lessons("answer", tuple(map(Lesson, texts)), nodes=nodes)
    return {fate.index: fate for fate in measure_retention(lessons, records)}


def covered(by_index):
    return {index for index, fate in by_index.items() if fate.covered}


def two_levels(records):
    nodes = (
        NodeOutput(1, 0, ALL[:6], lines(0, 1, 2)),
        NodeOutput(1, 1, ALL[6:], lines(6, 7)),
        NodeOutput(2, 0, ALL, lines(0, 6)),
    )
    return fates(lines(0, 6), *nodes, records=records)


def test_each_reflection_is_lost_where_its_lesson_was_last_seen():
    by_index = two_levels(RECORDS)
    assert list(by_index) == list(ALL)
    assert covered(by_index) == {0, 6}
    # Written at level 1, gone after the merge; and never written by the node that read it.
    places = {1: (1, 0), 7: (1, 1), 5: (1, 0), 11: (1, 1), 0: None}
    assert {index: by_index[index].lost_at for index in places} == places
    assert all(fate.measurable for fate in by_index.values())
    assert min(fate.coverage for fate in by_index.values() if fate.covered) > 0.8
    assert max(fate.coverage for fate in by_index.values() if not fate.covered) < 0.4


def test_the_last_node_that_covered_it_counts_in_a_deeper_tree():
    nodes = (
        NodeOutput(1, 0, (0, 1), lines(0, 1)),
        NodeOutput(1, 1, (2, 3), lines(2, 3)),
        NodeOutput(2, 0, (0, 1, 2, 3), lines(0, 1, 2)),
        NodeOutput(1, 2, (4, 5), lines(4, 5)),
        NodeOutput(2, 1, (4, 5), lines(4, 5)),
        NodeOutput(3, 0, (0, 1, 2, 3, 4, 5), lines(0, 4)),
    )
    by_index = fates(lines(0, 4), *nodes, records=RECORDS[:6])
    places = [None, (2, 0), (2, 0), (1, 1), None, (2, 1)]
    assert [fate.lost_at for fate in by_index.values()] == places


def test_a_merged_line_covers_each_of_its_parts():
    merged = " ".join(lines(0, 1, 2, 3))
    assert covered(fates([merged], NodeOutput(1, 0, ALL, lines(*ALL)))) == {0, 1, 2, 3}


def test_a_rewritten_text_is_read_line_by_line():
    text = f"Name the code.\n\n- {line(3)}\n- Read with care. {line(5)}"
    result = measure_retention(Lessons("answer", rewrite=text), RECORDS)
    assert {fate.index for fate in result if fate.covered} == {3, 5}
    assert result[0].lost_at == (1, 0)


def test_what_no_node_read_was_lost_before_the_first():
    by_index = fates(lines(0), NodeOutput(1, 0, (0, 1), lines(0)))
    assert [by_index[index].lost_at for index in range(3)] == [None, (1, 0), (0, 0)]


@pytest.mark.parametrize(
    ("feedback", "measurable"),
    [
        ("", False),
        ("This trajectory got a score of 0.0.", False),
        ("Wrong: expected 12.5, got 13.", False),
        ("Wrong: got 3. Divide by current liabilities, not by assets.", True),
        ("Неверно: нужно делить на активы", True),
    ],
)
def test_a_mere_verdict_is_not_measurable(feedback, measurable):
    by_index = fates(lines(1), records=[Reflection(0, {"Feedback": feedback})])
    assert by_index[0].measurable is measurable


def test_without_useful_feedback_the_level_one_line_replaces_it():
    by_index = two_levels([record(number, "Wrong.") for number in ALL])
    assert covered(by_index) == {0, 6}
    assert not any(fate.measurable for fate in by_index.values())


def test_a_real_scan_says_which_merge_lost_what():
    def script(name, inputs):
        if name == "MergeLessons":
            return {"lessons": list(lines(0, 1))}
        text = str(inputs["examples_with_feedback"])
        return {"lessons": list(lines(*(number for number in ALL if PORTS[number] in text)))}

    lessons = World(script).run(ParallelScan(copies=1), RECORDS)
    result = measure_retention(lessons, RECORDS)
    readers = [node for node in lessons.nodes if node.level == 1]
    home = {index: (1, node.node) for node in readers for index in node.sources}
    assert [fate.lost_at for fate in result] == [None, None, *(home[index] for index in ALL[2:])]


@given(st.permutations(ALL), st.sets(st.sampled_from(ALL)))
@settings(max_examples=20, deadline=None)
def test_the_order_of_reflections_does_not_matter(order, held):
    node = NodeOutput(1, 0, ALL, lines(*ALL))
    records = [RECORDS[place] for place in order]
    assert covered(fates(lines(*sorted(held)), node, records=records)) == held
