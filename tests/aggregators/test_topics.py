from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from combee_dspy.aggregators._topics import topic_groups
from combee_dspy.aggregators._vectors import text_vectors
from combee_dspy.streams import derive


@settings(deadline=None)
@given(n=st.integers(1, 60), groups=st.integers(1, 12), seed=st.integers(0, 9))
def test_every_row_is_in_one_group_and_sizes_are_near_equal(n: int, groups: int, seed: int) -> None:
    vectors = text_vectors([f"row {number * 37 % 11} of {number % 3}" for number in range(n)])
    found = topic_groups(vectors, groups, derive(seed), lambda members: True)
    assert sorted(member for group in found for member in group) == list(range(n))
    assert len(found) == min(groups, n)
    sizes = [len(group) for group in found]
    assert max(sizes) - min(sizes) <= 2
    assert found == topic_groups(vectors, groups, derive(seed), lambda members: True)


@settings(deadline=None)
@given(n=st.integers(1, 60), most=st.integers(1, 9))
def test_groups_that_do_not_fit_are_divided_further(n: int, most: int) -> None:
    vectors = text_vectors([f"row {number}" for number in range(n)])
    found = topic_groups(vectors, 1, derive(0), lambda members: len(members) <= most)
    assert max(map(len, found)) <= most
    assert sorted(member for group in found for member in group) == list(range(n))


def test_one_row_that_never_fits_is_a_group() -> None:
    assert topic_groups(text_vectors(["a b"]), 1, derive(0), lambda members: False) == [(0,)]


@pytest.mark.parametrize("seed", range(5))
def test_like_rows_are_together(seed: int) -> None:
    words = ("bonds and yields of the treasury", "verbs in the subjunctive mood")
    vectors = text_vectors([f"{words[number % 2]}, case {number // 2}" for number in range(20)])
    found = topic_groups(vectors, 2, derive(seed), lambda members: True)
    assert sorted(found) == [tuple(range(0, 20, 2)), tuple(range(1, 20, 2))]
