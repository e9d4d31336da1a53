import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.lessons import bullets, read_section, write_section

LESSON = st.text(min_size=1).map(lambda text: " ".join(text.split())).filter(bool)


@given(own=st.text(), lessons=st.lists(LESSON, min_size=1, max_size=6))
def test_what_was_written_is_read_back(own, lessons):
    assert read_section(write_section(own, lessons)) == (own, lessons)
    assert write_section(own, []) == own


@given(
    text=st.lists(st.sampled_from(["a", "\n", "- ", "Lessons learned:", " "]), max_size=40).map(
        "".join
    )
)
def test_no_word_of_any_instruction_is_lost(text):
    own, lessons = read_section(text)
    words = write_section(own, lessons).replace("-", " ").split()
    assert sorted(words) == sorted(text.replace("-", " ").split())


@pytest.mark.parametrize(
    "text", ["", "Answer.", "Lessons learned:", "Lessons learned:\nmany", "Lessons learned:\n\n- x"]
)
def test_no_section(text):
    assert read_section(text) == (text, [])


def test_text_around_the_section_is_the_users():
    assert read_section("Answer.\n\nLessons learned:\n- a\n- b\n\nBe brief.") == (
        "Answer.\n\nBe brief.",
        ["a", "b"],
    )
    own = "Lessons learned:\nnothing yet"
    assert read_section(write_section(own, ["a"])) == (own, ["a"])


def test_a_description_ends_in_its_lessons():
    assert bullets("- x\nIts name.\n- One word.\n- Lower case.") == ["One word.", "Lower case."]
    assert bullets("Its name.") == bullets("") == []
