from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from combee_dspy.diversity import (
    CharNgrams,
    DiversityCounter,
    Embedder,
    SimilarityGuard,
    TooSimilar,
    candidate_text,
    fingerprint,
    front_similarity,
)
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.operators import encode_demonstrations
from combee_dspy.records import Demonstration, Refusal

PARENT = "Answer the question.\n\nLessons learned:\n" + "\n".join(
    f"- {lesson}"
    for lesson in (
        "Look for the answer in tables before the running text.",
        "Round the result to two decimals.",
        "Use the figures of the year that the question names.",
        "Quote the sentence that supports the answer.",
        "Amounts in thousands must be scaled before they are compared.",
    )
)
NEW = ("Footnotes may restate a figure of the table above them.", "Resolve pronouns to the last person named.")


def with_lessons(*lessons, parent=PARENT):
    return parent + "".join(f"\n- {lesson}" for lesson in lessons)


@pytest.fixture
def guard():
    return SimilarityGuard(CharNgrams(), CharNgrams.MEASURED_THRESHOLD)


@pytest.mark.parametrize(
    "text",
    [
        with_lessons(*NEW),
        with_lessons(NEW[0]),
        PARENT.replace("- Quote the sentence that supports the answer.\n", ""),
        PARENT.replace("two decimals", "four decimals"),
        PARENT.replace("Quote the", "Do not quote the"),
        PARENT.replace("- Look", "- Always look").replace("- Use", "- Make sure to use") + f"\n- {NEW[0]}",
        PARENT + " " + NEW[1],
    ],
    ids=["several lessons", "one lesson", "one fewer", "a number", "a negation", "among rewordings", "in one line"],
)
def test_a_child_that_says_something_new_passes(guard, text):
    assert guard.judge(text, [PARENT]) is None


@pytest.mark.parametrize(
    "text",
    [
        PARENT,
        PARENT.upper(),
        PARENT.replace("- ", "* ").replace(".", "!"),
        PARENT.replace("- Look", "- Always look").replace("- Quote", "- Make sure to quote"),
        "\n".join([*PARENT.splitlines()[:3], *reversed(PARENT.splitlines()[3:])]),
        with_lessons("Always round the result to two decimals."),
        with_lessons("Quote the sentence that supports the answer."),
    ],
    ids=["itself", "case", "punctuation", "rewordings", "order", "said again", "repeated"],
)
def test_a_child_that_says_nothing_new_is_refused_with_the_figures(guard, text):
    refusal = guard.judge(text, ["Something else altogether.", PARENT])
    assert isinstance(refusal, TooSimilar)
    assert isinstance(refusal, Refusal)
    assert refusal.similarity > guard.threshold
    assert refusal.against == 1
    assert f"{refusal.similarity:.3f}" in refusal.reason
    assert "candidate 2 of the 2" in refusal.reason
    assert not refusal.repeated


def test_the_same_edit_in_other_words_is_refused_beside_its_sibling(guard):
    sibling = with_lessons(NEW[0])
    again = with_lessons("Remember that footnotes may restate a figure of the table above them!")
    assert guard.judge(again, [PARENT]) is None
    assert guard.judge(again, [PARENT, sibling]).against == 1


def test_one_more_lesson_is_seen_however_long_the_prompt_has_grown(guard):
    grown = with_lessons(*(f"Question type {n} needs method {n * 7}." for n in range(300)))
    assert guard.judge(with_lessons(NEW[0], parent=grown), [grown]) is None
    whole = CharNgrams().embed([grown, with_lessons(NEW[0], parent=grown)])
    assert float(whole[0] @ whole[1]) > 0.98


def test_nothing_to_compare_with_refuses_nothing(guard):
    assert guard.judge(PARENT, []) is None
    assert guard.judge("", []) is None


def test_a_refused_text_is_refused_again_with_nothing_to_compare(guard):
    refusal = guard.judge(PARENT.upper(), [], {fingerprint(PARENT)})
    assert refusal.repeated
    assert refusal.against is None
    assert "refused before" in refusal.reason


def test_order_counts_where_the_operator_says_so(guard):
    moved = "\n".join([*PARENT.splitlines()[:3], *reversed(PARENT.splitlines()[3:])])
    assert guard.judge(moved, [PARENT]) is not None
    assert guard.judge(moved, [PARENT], order_counts=True) is None
    assert guard.judge(moved.upper(), [PARENT, moved], order_counts=True).against == 1


def test_demonstrations_count_and_their_order_does_not(guard):
    demos = [
        Demonstration({"question": question}, {"answer": answer})
        for question, answer in (
            ("Capital of France?", "Paris"),
            ("Largest planet?", "Jupiter"),
            ("Red fruit?", "Apple"),
        )
    ]

    def text(*chosen):
        return candidate_text({"a": "Answer.", "a::demonstrations": encode_demonstrations(chosen)})

    assert guard.judge(text(demos[1], demos[0]), [text(demos[0], demos[1])]) is not None
    assert guard.judge(text(demos[0], demos[2]), [text(demos[0], demos[1])]) is None
    assert guard.judge(text(), [text(demos[0])]) is None


def test_content_that_was_moved_to_another_component_is_a_change(guard):
    before = candidate_text({"a": "Answer. Check the sign of the result.", "b": "Summarise."})
    after = candidate_text({"a": "Answer.", "b": "Summarise. Check the sign of the result."})
    assert guard.judge(after, [before]) is None


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=120), st.text(max_size=120))
def test_similarity_is_symmetric_within_bounds_and_one_for_the_same(first, second):
    guard = SimilarityGuard(CharNgrams(), 0.5)
    assert guard.similarity(first, second) == pytest.approx(guard.similarity(second, first), abs=1e-6)
    assert 0 <= guard.similarity(first, second) <= 1
    assert guard.similarity(first, first) == 1


def test_lone_surrogates_reach_no_embedder():
    seen = []

    class Spy(Embedder):
        name: ClassVar[str] = "spy"

        def embed(self, texts):
            seen.extend(texts)
            return CharNgrams().embed(texts)

    SimilarityGuard(Spy(), 0.5).judge("Lone \ud800 here.", ["Other text."])
    assert all(text.encode() for text in seen)
    assert len(seen) == 2


def test_a_statement_is_embedded_once():
    asked = []

    class Counting(Embedder):
        name: ClassVar[str] = "counting"

        def embed(self, texts):
            asked.extend(texts)
            return CharNgrams().embed(texts)

    guard = SimilarityGuard(Counting(), 0.7)
    for number in range(5):
        guard.judge(with_lessons(f"Lesson number {number}."), [PARENT, with_lessons(*NEW)])
    assert len(asked) == len(set(asked)) == 14


def test_threads_share_a_guard(guard):
    texts = [with_lessons(f"Question type {number} needs another method.") for number in range(8)]
    alone = [guard.similarity(text, PARENT) for text in texts]
    shared = SimilarityGuard(CharNgrams(), 0.5)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda text: shared.similarity(text, PARENT), texts)) == alone


@pytest.mark.parametrize("threshold", [0, 1, -0.5, float("nan")])
def test_a_threshold_out_of_range_is_refused(threshold):
    with pytest.raises(ArgumentValueError, match="threshold"):
        SimilarityGuard(CharNgrams(), threshold)


def test_the_counter_counts_and_survives_a_checkpoint():
    refusal, repeat = TooSimilar("too similar", similarity=0.97, against=0), TooSimilar("again", repeated=True)
    counter = DiversityCounter().after_proposal("One.").after_proposal("one!").after_proposal("Two.")
    counter = counter.after_refusal("Three.", refusal).after_refusal("three", repeat)
    assert (counter.distinct, counter.refused, counter.repeated) == (2, 1, 1)
    assert counter.refused_texts == {fingerprint("Three.")}
    assert DiversityCounter.from_dict(counter.to_dict()) == counter
    assert DiversityCounter() == DiversityCounter.from_dict(DiversityCounter().to_dict())


@pytest.mark.parametrize("data", [{}, {"refused": "x"}, {"refused": 1, "repeated": 1, "refused_texts": None}])
def test_a_broken_checkpoint_is_refused(data):
    with pytest.raises(ArgumentValueError):
        DiversityCounter.from_dict(data)


def test_front_similarity_is_the_mean_over_the_pairs(guard):
    rows = np.array([[1, 0], [0, 1], [0.6, 0.8]], dtype=np.float32)
    assert front_similarity(rows) == pytest.approx((0 + 0.6 + 0.8) / 3)
    assert front_similarity(np.array([[1, 0], [-1, 0]], dtype=np.float32)) == 0
    assert front_similarity(rows[:1]) is None
    assert guard.front_similarity([PARENT]) is None
    assert guard.front_similarity([PARENT, PARENT.upper()]) == 1
    alike = guard.front_similarity([PARENT, with_lessons("Check the result against a table.")])
    assert guard.front_similarity([PARENT, "Ignore everything. Say hello."]) < alike < 1
