"""Finding known questions and lesson keys in prompts."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_simulator.matching import QuestionIndex, stretches_of, words_of

PREFIX = (
    "Use the formula below to answer the question with a plain number and no other text at all. "
)
QUESTIONS = [
    PREFIX + 'A bakery, "Chez β", lists assets of $1,000 and debts of $500.\nFind the ratio.',
    PREFIX + 'A bakery, "Chez β", lists assets of $1,000 and debts of $250.\nFind the ratio.',
    PREFIX + "A bank lends 3.5% for 2 years; what is due?",
    "What is 3 + 4?",
    "What is 3 - 4?",
]


@pytest.fixture(scope="module")
def index() -> QuestionIndex:
    return QuestionIndex(QUESTIONS, ["F1", "F2"])


def found(index: QuestionIndex, text: str) -> list[int]:
    return [hit.question for hit in index.scan(text).hits]


@pytest.mark.parametrize("nested", range(4))
@pytest.mark.parametrize("ascii_only", [True, False])
def test_questions_are_found_however_often_they_are_escaped(
    index: QuestionIndex, nested: int, ascii_only: bool
) -> None:
    text = "\n\n".join(QUESTIONS)
    for _ in range(nested):
        text = json.dumps([{"question": text}], ensure_ascii=ascii_only)
    assert found(index, text) == [0, 1, 2, 3, 4]


def test_a_repr_is_read_like_its_text(index: QuestionIndex) -> None:
    assert found(index, repr({"q": QUESTIONS[1]})) == [1]


def test_order_and_copies_are_kept(index: QuestionIndex) -> None:
    assert found(index, " | ".join(QUESTIONS[place] for place in (3, 0, 3, 2, 0))) == [
        3,
        0,
        3,
        2,
        0,
    ]


def test_a_shared_beginning_is_no_question(index: QuestionIndex) -> None:
    assert found(index, PREFIX + "A ferry sails 12 km in 3 hours; how fast is it?") == []


def test_a_question_that_differs_in_one_number_is_told_apart(index: QuestionIndex) -> None:
    assert found(index, QUESTIONS[0].replace("500", "700")) == []


def test_a_trimmed_question_is_found_by_what_is_left(index: QuestionIndex) -> None:
    tail = QUESTIONS[2][len(PREFIX) // 2 :]
    assert found(index, "… " + tail) == [2]


def test_a_few_words_of_a_question_are_not_the_question(index: QuestionIndex) -> None:
    assert found(index, QUESTIONS[2][len(PREFIX) :]) == []


def test_a_question_inside_another_is_not_asked() -> None:
    outer = "Before you answer what is 3 + 4? say why you know it"
    index = QuestionIndex(["What is 3 + 4?", outer], [])
    assert found(index, outer) == [1]
    assert found(index, "Now: what is 3 + 4?") == [0]


def test_keys_are_found_in_brackets_only_and_in_place(index: QuestionIndex) -> None:
    scan = index.scan(
        json.dumps(["- [F2] x", "F1 is not it, nor [F10] or [1]", QUESTIONS[3], "[f1]: y"])
    )
    assert [key for _, key in scan.keys] == ["F2", "F1"]
    assert scan.keys[0][0] < scan.hits[0].start < scan.keys[1][0]


@given(st.text(max_size=200), st.sets(st.integers(0, 40)))
def test_stretches_begin_at_their_words_and_lose_nothing_between(
    text: str, wanted: set[int]
) -> None:
    words = words_of(text)
    places = sorted(place for place in wanted if place < len(words))
    stretches = stretches_of(text, places)
    assert [words_of(stretch)[:1] for stretch in stretches] == [(words[place],) for place in places]
    assert sum(len(words_of(stretch)) for stretch in stretches) == (
        len(words) - places[0] if places else 0
    )


def test_questions_that_share_every_window_are_told_apart() -> None:
    # Each window of eight words occurs in ten questions: no anchor is unique.
    filler = " ".join(f"w{number}" for number in range(12))
    questions = [f"a{one} {filler} b{two}" for one in range(10) for two in range(10)]
    index = QuestionIndex(questions, [])
    assert found(index, " . ".join(questions)) == list(range(100))


@given(st.lists(st.text(max_size=30), max_size=6))
def test_any_text_is_scanned_without_error(parts: list[str]) -> None:
    index = QuestionIndex(QUESTIONS, ["F1"])
    text = "\\u12 \\x \\".join(parts)
    assert index.scan(text).hits == ()


@given(st.lists(st.integers(0, len(QUESTIONS) - 1), max_size=8), st.integers(0, 2))
def test_what_is_put_in_is_found(chosen: list[int], nested: int) -> None:
    text = "\n\n---\n\n".join(QUESTIONS[place] for place in chosen)
    for _ in range(nested):
        text = json.dumps({"text": text})
    assert found(QuestionIndex(QUESTIONS, []), text) == chosen
