from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.operators._section import HEADER, read_section, write_section

LESSON = st.text(min_size=1).map(lambda text: " ".join(text.split())).filter(bool)


@given(own=st.text(), lessons=st.lists(LESSON, max_size=6))
def test_what_was_written_is_read_back(own: str, lessons: list[str]) -> None:
    if not lessons:
        assert write_section(own, lessons) == own
        return
    assert read_section(write_section(own, lessons)) == (own, lessons)


@given(text=st.lists(st.sampled_from(["a", "\n", "- ", HEADER, " "]), max_size=40).map("".join))
def test_no_word_of_any_instruction_is_lost(text: str) -> None:
    own, lessons = read_section(text)
    words = write_section(own, lessons).replace("-", " ").split()
    assert sorted(words) == sorted(text.replace("-", " ").split())


@pytest.mark.parametrize(
    "text", ["", "Answer.", "Lessons learned:", "Lessons learned:\nmany", "Lessons learned:\n\n- x"]
)
def test_no_section(text: str) -> None:
    assert read_section(text) == (text, [])


def test_text_after_the_section_belongs_to_the_instruction() -> None:
    assert read_section("Answer.\n\nLessons learned:\n- a\n- b\n\nBe brief.") == ("Answer.\n\nBe brief.", ["a", "b"])


def test_a_header_of_the_users_own_stays() -> None:
    own = "Lessons learned:\nnothing yet"
    assert read_section(write_section(own, ["a"])) == (own, ["a"])
