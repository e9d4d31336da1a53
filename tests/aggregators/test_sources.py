"""Which examples teach a lesson: the words of both say it, and nobody is asked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.aggregators._sources import find_sources
from combee_dspy.records import Reflection

RIGHT = "Right."


def items_of(*rows):
    """Return a reflection for each text of inputs and its feedback."""
    return [
        Reflection(
            place, {"Inputs": {"text": text}, "Feedback": feedback}, perfect=feedback == RIGHT
        )
        for place, (text, feedback) in enumerate(rows)
    ]


def sources(texts, items):
    return [lesson.sources for lesson in find_sources(texts, items)]


INSTRUMENTS = ("violin", "drum", "harp", "flute")
WRONG = items_of(*((f"A {word}", f"It is q{place}.") for place, word in enumerate(INSTRUMENTS)))


def test_a_lesson_comes_from_the_mistake_that_it_is_about():
    texts = [f"A {word} is q{place}." for place, word in enumerate(INSTRUMENTS)]
    assert sources(texts, WRONG) == [(0,), (1,), (2,), (3,)]
    assert sources(texts[::-1], WRONG) == [(3,), (2,), (1,), (0,)]


def test_a_lesson_comes_from_all_mistakes_that_it_is_nearly_as_near_to():
    rows = [("A red violin", "It is q0."), ("A drum", "It is q1."), ("A blue violin", "It is q0.")]
    assert sources(["A violin is q0.", "A drum is q1."], items_of(*rows)) == [(0, 2), (1,)]


def test_the_parts_of_a_record_are_a_single_source():
    parts = [
        Reflection(7, {"Inputs": {"text": "A violin"}, "Feedback": "It is q0."}, part=part)
        for part in (1, 2)
    ]
    assert sources(["A violin is q0."], parts) == [(7,)]


def test_what_shares_no_word_comes_from_a_mistake():
    rows = [("A harp", RIGHT), ("A violin", "It is q0.")]
    assert sources(["Beware!"], items_of(*rows)) == [(1,)]


def test_a_mistake_comes_before_a_right_answer_that_shares_little_more():
    lesson = "Letters to the north take a red stamp."
    rows = [(lesson, RIGHT), ("Letters to the north take a stamp", "Wrong: it must be red.")]
    assert sources([lesson], items_of(*rows)) == [(1,)]


def test_a_right_answer_that_shares_far_more_is_the_source():
    rows = [("A violin by courier", RIGHT), ("A drum by letter", "Wrong: it is seven.")]
    texts = ["What a courier brings is zero.", "For a drum it is seven."]
    assert sources(texts, items_of(*rows)) == [(0,), (1,)]


def test_a_right_answer_that_holds_as_much_is_the_source_of_what_no_feedback_says():
    rows = [("A heavy violin", RIGHT), ("A heavy drum", "Wrong: it is seven.")]
    doubtful = "Heavy things get nine."
    assert sources(["A drum is seven.", doubtful], items_of(*rows)) == [(1,), (0,)]
    assert sources([doubtful], items_of(*rows)) == [(1,)], "no lesson says what feedback says"
    assert sources(["Heavy things get seven."], items_of(*rows)) == [(1,)]


def test_a_verdict_that_names_the_answer_alone_lets_general_lessons_pass():
    rows = [("Two hours in minutes", RIGHT), ("Nine hours in minutes", "Wrong: expected amber.")]
    assert sources(["Turn hours into minutes first."], items_of(*rows)) == [(1,)]


def test_a_lone_paragraph_in_quotes_leaves_no_lesson_without_a_word():
    text = "".join(f"A {word} is q{place}. " for place, word in enumerate(INSTRUMENTS[:3])) + '. "'
    assert all(any(map(str.isalnum, lesson.text)) for lesson in find_sources([text], WRONG))


def test_a_lone_paragraph_about_several_mistakes_is_read_as_its_sentences():
    written = [f"A {word} is q{place}." for place, word in enumerate(INSTRUMENTS[:3])]
    question = "Is it a flute? Then q3 applies."
    lessons = find_sources([" ".join([*written, question])], WRONG)
    assert [lesson.text for lesson in lessons] == [*written, question]
    assert [lesson.sources for lesson in lessons] == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("A violin is q0. A drum is q1. Otherwise it is q3.", WRONG),
        ("A violin is q0. A drum is q1.", WRONG),
        ("A violin is q0. A drum is q1. A harp is q2.", WRONG[:1]),
        ("Choose option (1) for a violin and option [2] for a drum", WRONG),
    ],
    ids=["points back", "two sentences", "a single mistake", "numbers in brackets"],
)
def test_other_lone_texts_are_a_single_lesson(text, items):
    assert [lesson.text for lesson in find_sources([text], items)] == [text]


def test_a_long_record_counts_by_its_feedback_near_its_end():
    rows = [
        (first + " ".join(f"{first}{line} passed" for line in range(700)), f"Wrong. {feedback}")
        for first, feedback in (
            ("Alpha", "A lamp with a crack gets l7."),
            ("Crack of a lamp", "A tent gets t7."),
        )
    ]
    assert sources(["A lamp with a crack gets l7."], items_of(*rows)) == [(0,)]


def test_what_has_no_word_is_no_lesson():
    assert find_sources(["…", "?"], WRONG) == []


WORDS = st.lists(
    st.sampled_from(["violin", "drum", "harp", "heavy", "red", "q1", "q2", "the", "7", "är", "琴"]),
    max_size=5,
).map(" ".join)
CALLS = st.lists(st.tuples(WORDS, WORDS | st.just(RIGHT)), min_size=1, max_size=6)


@given(st.lists(WORDS | st.text(max_size=9), max_size=5), CALLS)
def test_every_lesson_has_a_source_in_the_call_and_mistakes_unless_it_is_refused(texts, rows):
    items = items_of(*rows)
    mistakes = {item.index for item in items if not item.perfect}
    for lesson in find_sources(texts, items):
        assert lesson.sources and lesson.sources == tuple(sorted(set(lesson.sources)))
        assert set(lesson.sources) <= {item.index for item in items}
        assert mistakes.isdisjoint(lesson.sources) or mistakes.issuperset(lesson.sources)
        assert lesson.text in " ".join(texts)
