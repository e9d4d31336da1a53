from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.bench import MARGIN, compare
from combee_dspy.exceptions import ArgumentValueError

SCORES = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=1, max_size=40)


def of(reference: list[float], scores: list[float]):
    return compare("gepa", reference, scores, seconds=(120.0, 10.0), seed=0)


def test_the_same_scores_in_less_time_get_a_multiple() -> None:
    found = of([1.0, 0.0] * 50, [1.0, 0.0] * 50)
    assert (found.comparable, found.times_faster, found.reference) == (True, 12.0, "gepa")
    assert (found.difference, found.low, found.high) == (0.0, 0.0, 0.0)


def test_a_method_that_learned_less_gets_no_multiple() -> None:
    found = of([1.0] * 100, [1.0] * 80 + [0.0] * 20)
    assert found.high < 0
    assert (found.comparable, found.times_faster) == (False, None)


def test_a_sample_too_small_to_tell_gets_no_multiple() -> None:
    found = of([1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 0.0])
    assert found.difference == 0.0
    assert (found.comparable, found.times_faster) == (False, None)


def test_a_slower_method_that_learned_more_gets_what_it_is() -> None:
    found = compare("gepa", [0.0] * 50, [1.0] * 50, seconds=(10.0, 20.0), seed=0)
    assert (found.comparable, found.times_faster) == (True, 0.5)


def test_scores_must_pair() -> None:
    with pytest.raises(ArgumentValueError, match="pair"):
        of([1.0, 1.0], [1.0])


@given(SCORES, st.data())
def test_a_multiple_is_given_exactly_above_the_margin(reference: list[float], data: st.DataObject) -> None:
    scores = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=len(reference), max_size=len(reference)))
    found = of(reference, scores)
    assert found.low <= found.difference + 1e-9
    assert found.difference <= found.high + 1e-9
    assert (found.times_faster is None) is (found.low <= -MARGIN)
