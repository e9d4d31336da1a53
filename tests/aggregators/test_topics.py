from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from combee_dspy.aggregators._vectors import text_vectors, topic_groups
from combee_dspy.streams import derive


def grouped(texts: Sequence[str], groups: int, seed: int = 0, *, room: int = 10**6, most: int = 10**6) -> list[tuple]:
    return topic_groups(text_vectors(texts), [10] * len(texts), groups, derive(seed), room=room, most=most)


@settings(deadline=None)
@given(n=st.integers(1, 60), groups=st.integers(1, 12), seed=st.integers(0, 9))
def test_every_row_is_in_one_group_and_sizes_are_near_equal(n: int, groups: int, seed: int) -> None:
    texts = [f"row {number * 37 % 11} of {number % 3}" for number in range(n)]
    found = grouped(texts, groups, seed)
    assert sorted(member for group in found for member in group) == list(range(n))
    assert len(found) == min(groups, n)
    sizes = [len(group) for group in found]
    assert max(sizes) - min(sizes) <= 2
    assert found == grouped(texts, groups, seed)


@settings(deadline=None)
@given(n=st.integers(1, 60), most=st.integers(1, 9), by_tokens=st.booleans())
def test_groups_that_do_not_fit_are_divided_further(n: int, most: int, by_tokens: bool) -> None:
    texts = [f"row {number}" for number in range(n)]
    found = grouped(texts, 1, room=10 * most) if by_tokens else grouped(texts, 1, most=most)
    assert max(map(len, found)) <= most
    assert sorted(member for group in found for member in group) == list(range(n))


def test_one_row_that_never_fits_is_a_group() -> None:
    assert grouped(["a b"], 1, room=5) == [(0,)]


@pytest.mark.parametrize("seed", range(5))
def test_like_rows_are_together(seed: int) -> None:
    words = ("bonds and yields of the treasury", "verbs in the subjunctive mood")
    found = grouped([f"{words[number % 2]}, case {number // 2}" for number in range(20)], 2, seed)
    assert sorted(found) == [tuple(range(0, 20, 2)), tuple(range(1, 20, 2))]
