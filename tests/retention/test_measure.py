from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import Lesson, Lessons, NodeOutput, Reflection, Retained
from combee_dspy.retention import (
    gram_similarity,
    lost_once,
    measure_retention,
    measure_scan,
    node_samples,
    plant,
    planted_in,
    planted_record,
    tokens_per_level,
    with_rescued,
)
from combee_dspy.retention._teaching import teaches

FACTS = plant(12, 3)
RECORDS = [planted_record(fact, index) for index, fact in enumerate(FACTS)]


def lines(*indices: int) -> tuple[str, ...]:
    return tuple(FACTS[index].line for index in indices)


def result(kept: tuple[str, ...], nodes: tuple[NodeOutput, ...] = ()) -> Lessons:
    return Lessons("answer", tuple(Lesson(text) for text in kept), nodes=nodes)


def two_levels(first: tuple[int, ...], second: tuple[int, ...], root: tuple[int, ...]) -> Lessons:
    nodes = (
        NodeOutput(1, 0, tuple(range(6)), lines(*first)),
        NodeOutput(1, 1, tuple(range(6, 12)), lines(*second)),
        NodeOutput(2, 0, tuple(range(12)), lines(*root)),
    )
    return result(lines(*root), nodes)


def test_each_reflection_is_lost_where_its_lesson_was_last_seen() -> None:
    found = measure_retention(RECORDS, two_levels((0, 1, 2), (6, 7), (0, 6)))
    assert [one.index for one in found] == list(range(12))
    assert {one.index for one in found if one.covered} == {0, 6}
    lost = {one.index: one.lost_at for one in found}
    assert lost[0] is None
    # Written at level 1, gone after the merge; and never written by the node that read it.
    assert (lost[1], lost[7]) == ((1, 0), (1, 1))
    assert (lost[5], lost[11]) == ((1, 0), (1, 1))
    assert all(one.measurable for one in found)


def test_coverage_is_high_where_the_line_is_there_and_low_where_it_is_not() -> None:
    found = measure_retention(RECORDS, two_levels(tuple(range(6)), tuple(range(6, 12)), (0, 6)))
    assert min(one.coverage for one in found if one.covered) > 0.8
    assert max(one.coverage for one in found if not one.covered) < 0.4


def test_the_last_node_that_covered_it_counts_in_a_deeper_tree() -> None:
    nodes = (
        NodeOutput(1, 0, (0, 1), lines(0, 1)),
        NodeOutput(1, 1, (2, 3), lines(2, 3)),
        NodeOutput(2, 0, (0, 1, 2, 3), lines(0, 1, 2)),
        NodeOutput(1, 2, (4, 5), lines(4, 5)),
        NodeOutput(2, 1, (4, 5), lines(4, 5)),
        NodeOutput(3, 0, (0, 1, 2, 3, 4, 5), lines(0, 4)),
    )
    found = {one.index: one.lost_at for one in measure_retention(RECORDS[:6], result(lines(0, 4), nodes))}
    assert found == {0: None, 1: (2, 0), 2: (2, 0), 3: (1, 1), 4: None, 5: (2, 1)}


def test_a_merged_line_covers_each_of_its_parts() -> None:
    merged = " ".join(fact.lesson for fact in FACTS[:4])
    found = measure_retention(RECORDS, result((merged,), (NodeOutput(1, 0, tuple(range(12)), lines(*range(12))),)))
    assert {one.index for one in found if one.covered} == {0, 1, 2, 3}


def test_a_rewritten_text_is_read_line_by_line() -> None:
    text = f"Name the code.\n\n- {FACTS[3].lesson}\n- Read with care. {FACTS[5].lesson}"
    found = measure_retention(RECORDS, Lessons("answer", rewrite=text))
    assert {one.index for one in found if one.covered} == {3, 5}
    assert found[0].lost_at == (1, 0)


def test_what_no_node_read_was_lost_before_the_first() -> None:
    found = measure_retention(RECORDS, result(lines(0), (NodeOutput(1, 0, (0, 1), lines(0)),)))
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
def test_a_mere_verdict_is_not_measurable(feedback: str, measurable: bool) -> None:
    assert teaches(feedback) is measurable
    (found,) = measure_retention([Reflection(0, {"Feedback": feedback})], result(lines(1)))
    assert found.measurable is measurable
    assert 0 <= found.coverage <= 1


def test_without_useful_feedback_the_level_one_line_stands_for_it() -> None:
    records = [
        Reflection(
            n, {"Inputs": {"question": f"the {fact.port} desk files shipments of {fact.goods}"}, "Feedback": "Wrong."}
        )
        for n, fact in enumerate(FACTS)
    ]
    found = measure_retention(records, two_levels((0, 1), (6,), (0,)))
    assert {one.index for one in found if one.covered} == {0}
    assert not any(one.measurable for one in found)


def test_parts_of_one_record_count_as_one_reflection() -> None:
    whole = RECORDS[2].record
    parts = [
        Reflection(0, {"Inputs": whole["Inputs"], "Feedback": whole["Feedback"]}, part=1),
        Reflection(0, {"Inputs": "more of it", "Feedback": whole["Feedback"]}, part=2),
    ]
    found = measure_retention(parts, result(lines(2)))
    assert [(one.index, one.covered) for one in found] == [(0, True)]


def test_nothing_in_nothing_out() -> None:
    assert measure_retention([], result(())) == ()
    assert [one.covered for one in measure_retention(RECORDS[:2], result(()))] == [False, False]


def test_a_threshold_outside_its_range_is_refused() -> None:
    for wrong in (0.0, 1.1, -1.0):
        with pytest.raises(ArgumentValueError, match="threshold"):
            measure_retention(RECORDS, result(()), threshold=wrong)


def test_the_measure_can_be_replaced() -> None:
    import numpy as np

    found = measure_retention(RECORDS, result(("x",)), similarity=lambda texts, rows: np.ones((len(texts), len(rows))))
    assert all(one.covered for one in found)


@given(st.permutations(range(12)), st.sets(st.integers(0, 11)))
@settings(max_examples=20, deadline=None)
def test_order_does_not_matter_and_truth_is_found(order: list[int], kept: set[int]) -> None:
    outcome = result(lines(*sorted(kept)), (NodeOutput(1, 0, tuple(range(12)), lines(*range(12))),))
    found = measure_retention([RECORDS[place] for place in order], outcome)
    assert {one.index for one in found if one.covered} == kept
    assert planted_in(FACTS, lines(*kept)) == {FACTS[place].code for place in kept}


@given(st.lists(st.text(max_size=60), max_size=4), st.lists(st.text(max_size=60), max_size=4))
@settings(max_examples=60, deadline=None)
def test_similarity_stays_within_its_range_for_any_text(texts: list[str], others: list[str]) -> None:
    found = gram_similarity(texts, others)
    assert found.shape == (len(texts), len(others))
    assert ((found >= 0) & (found <= 1)).all()


def test_equal_texts_are_equal_and_unlike_ones_are_not() -> None:
    long = "Divide net income by equity and answer in percent."
    found = gram_similarity([long, "Hi", ""], [long, "Round to two decimals.", "hi!", ""])
    assert found[0, 0] == pytest.approx(1.0)
    assert found[0, 1] < 0.2
    assert found[1].tolist() == [0, 0, 1, 0]
    assert found[2].tolist() == [0, 0, 0, 0]


def test_tokens_are_summed_by_level() -> None:
    first = (NodeOutput(1, 1, (1,), ("x" * 40,)), NodeOutput(1, 0, (0,), ("y" * 8,)))
    nodes = (NodeOutput(2, 0, (0, 1), ("abcd",)), *first)
    assert tokens_per_level(nodes) == (12, 1)


def test_what_was_lost_is_offered_again_once() -> None:
    verdicts = [
        Retained(0, 0.9, True),
        Retained(1, 0.1, False, (1, 0)),
        Retained(2, 0.1, False, (1, 0), measurable=False),
        Retained(4, 0.0, False, (2, 0)),
    ]
    assert lost_once(verdicts) == (1, 4)
    assert lost_once(verdicts, offered_before={4}) == (1,)
    assert lost_once(verdicts, offered_before=(1, 4)) == ()


def test_rescued_reflections_get_free_indices_and_fresh_ones_win() -> None:
    now = [Reflection(index, {"Feedback": "x"}, example_id=f"e{index}") for index in range(3)]
    before = [
        Reflection(7, {"Feedback": "lost"}, example_id="e9"),
        Reflection(1, {"Feedback": "lost too"}, example_id="e2"),
        Reflection(7, {"Feedback": "lost, second part"}, example_id="e9", part=2),
    ]
    together, offered = with_rescued(now, before)
    assert offered == (3,)
    assert [(one.index, one.example_id) for one in together] == [(0, "e0"), (1, "e1"), (2, "e2"), (3, "e9"), (3, "e9")]
    assert with_rescued([], before[:1])[1] == (0,)


def test_an_ordinary_scan_gives_samples_of_its_calls() -> None:
    reads, merges = node_samples(RECORDS, two_levels((0, 1, 2), (6, 7), (0, 6)))
    assert [(one.items, one.kept, one.total) for one in reads] == [(6, 3, 6), (6, 2, 6)]
    assert [(one.items, one.kept, one.total, one.copies, one.lines) for one in merges] == [(5, 2, 5, 1, 5)]


def test_copies_that_reach_a_merge_are_told_apart_and_failed_nodes_are_no_sample() -> None:
    nodes = (
        NodeOutput(1, 0, (0, 1, 2), lines(0, 1)),
        NodeOutput(1, 1, (0, 2, 3), lines(0, 3)),
        NodeOutput(1, 2, (4,), (), failed="TimeoutError: none"),
        NodeOutput(2, 0, (0, 1, 2, 3, 4), lines(0, 3)),
    )
    reads, merges = node_samples(RECORDS[:5], result(lines(0, 3), nodes))
    assert len(reads) == 2
    found = [(one.copies, one.kept, one.total, one.items, one.lines) for one in merges]
    assert found == [(1, 1, 2, 3, 4), (2, 1, 1, 3, 4)]


def test_a_matrix_in_parts_says_what_the_whole_one_says(monkeypatch: pytest.MonkeyPatch) -> None:
    given = two_levels((0, 1, 2), (6, 7), (0, 6))
    whole = measure_retention(RECORDS, given)
    monkeypatch.setattr("combee_dspy.retention._similar._CELLS", 4)
    assert measure_retention(RECORDS, given) == whole
    # A measure of the user's own is asked for all at once.
    own = measure_retention(RECORDS, given, similarity=lambda texts, told: gram_similarity(texts, told))
    assert [replace(one, coverage=0.0) for one in own] == [replace(one, coverage=0.0) for one in whole]
    assert [one.coverage for one in own] == pytest.approx([one.coverage for one in whole], abs=1e-9)


@pytest.mark.parametrize("root", [(), (0, 6), (1, 2, 3)])
def test_measured_at_once_a_scan_is_the_same(root: tuple[int, ...]) -> None:
    found = two_levels((0, 1, 2), (6, 7, 1), root)
    expected = measure_retention(RECORDS, found), node_samples(RECORDS, found)
    assert measure_scan(RECORDS, found) == expected
    assert measure_scan(RECORDS, found, sample=False) == (expected[0], ((), ()))
    assert expected[1][0]
