from __future__ import annotations

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.benchmarks.finer import LABELS, TagMetric, grade

A, B, C, D = LABELS[:4]
GOLD = dspy.Example(
    questions="…", tags=f"{A},{B},{C},{D}", entities=["1", "2", "3", "4"]
).with_inputs("questions")


def score(tags: object, **settings: object) -> float:
    return TagMetric(**settings)(GOLD, dspy.Prediction(tags=tags)).score


@pytest.mark.parametrize(
    ("answer", "official", "tolerant"),
    [
        (f"{A},{B},{C},{D}", 1.0, 1.0),
        (f" {A.upper()} , {B.lower()},{C},{D} ", 1.0, 1.0),
        ([A, B, C, D], 1.0, 1.0),
        (f"{B},{A},{C},{D}", 0.5, 0.5),
        (f"{A},{B}", 0.5, 0.5),
        (f"{A},{B},{C},{D},{A},{B}", 1.0, 1.0),
        (f"us-gaap:{A},{B},{C},{D}", 0.75, 1.0),
        (f"1. {A}\n2. {B}\n3. {C}\n4. {D}", 0.0, 1.0),
        (f'["{A}", "{B}", "{C}", "{D}"]', 0.0, 1.0),
        ("", 0.0, 0.0),
        (None, 0.0, 0.0),
        (",,,", 0.0, 0.0),
    ],
)
def test_official_and_tolerant_scores(answer, official, tolerant):
    assert score(answer) == official
    assert score(answer, tolerant=True) == tolerant
    assert score(answer, unit="record") == float(official == 1.0)


def test_feedback_names_entity_prediction_and_expectation_per_tag():
    result = TagMetric()(GOLD, dspy.Prediction(tags=f"{A},{A},Nonsense"))
    lines = result.feedback.splitlines()
    assert lines[0] == "1 of 4 tags are right."
    assert lines[1] == f'1. entity "1": right, {A}.'
    assert lines[2] == f'2. entity "2": predicted {A}; expected {B}.'
    assert (
        lines[3]
        == f'3. entity "3": predicted Nonsense, which is none of the 139 labels; expected {C}.'
    )
    assert lines[4] == f'4. entity "4": no answer; expected {D}.'
    assert (
        "2 answers too many"
        in TagMetric()(GOLD, dspy.Prediction(tags=f"{A},{B},{C},{D},x,y")).feedback
    )


def test_a_record_without_entities_is_graded_by_position():
    bare = dspy.Example(questions="…", tags=A)
    assert 'entity "#1"' in TagMetric()(bare, dspy.Prediction(tags="x")).feedback


@given(
    st.one_of(
        st.none(),
        st.text(),
        st.lists(st.text()),
        st.integers(),
        st.dictionaries(st.text(), st.text()),
    )
)
def test_any_answer_gets_a_score_and_the_tolerant_one_is_never_lower(answer):
    official, tolerant = (
        TagMetric(tolerant=loose)(GOLD, dspy.Prediction(tags=answer)) for loose in (False, True)
    )
    assert 0.0 <= official.score <= tolerant.score <= 1.0
    assert official.feedback and tolerant.feedback
    assert len(official.feedback) < 3_000


@given(st.lists(st.sampled_from(LABELS), min_size=1, max_size=6), st.booleans())
def test_the_labels_themselves_are_right_in_any_case(tags, shout):
    said = ",".join(tags)
    assert all(
        item.exact and item.is_label for item in grade(said.upper() if shout else said, tags)
    )
