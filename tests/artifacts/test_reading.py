"""Answers of reflectors that nobody asked for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.artifacts import read_tags

json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


def test_tags_of_shown_bullets_are_read_and_others_are_said():
    shown = {"str-00001", "str-00002"}
    tags, ignored = read_tags(
        {"[str-00001]": "Helpful", "str-00002": "great", "ghost": "harmful"}, shown
    )
    assert tags == {"str-00001": "helpful"}
    assert len(ignored) == 2
    assert read_tags("helpful", shown) == ({}, ["the tags are no mapping: 'helpful'"])
    assert read_tags(None, shown) == ({}, [])


@given(json_like)
def test_no_tags_break_the_reading(answer):
    tags, _ = read_tags(answer, {"a"})
    assert set(tags) <= {"a"}
