"""The books of a run: what one candidate is offered of what others learned."""

from __future__ import annotations

import pytest

from combee_dspy.artifacts import Instruction
from combee_dspy.lessons import Book, Taught
from combee_dspy.search._books import Books
from combee_dspy.search._candidates import Candidate
from combee_dspy.weighers import Trusting

WORDS = ("marble", "copper", "velvet", "timber", "saffron", "granite")


def books_of(length: int = 1) -> Books:
    """Return books in which update n taught one lesson, and the student's prompt held one."""
    books = Books(
        Instruction(), Candidate({"self": ""}), ("self",), Trusting(), lambda *_, **__: None
    )
    book = Book().add([Taught("The user's own line.")], born=-1)
    for update, word in enumerate(WORDS):
        text = " ".join([f"Deliveries of {word} go through the {word} door."] * length)
        book = book.add([Taught(text, (str(update),))], born=update)
    books.now["self"] = book
    return books


@pytest.mark.parametrize(
    ("lineage", "update", "born"),
    [
        (set(), 6, [5, 4]),
        ({-1, 5}, 6, [4]),
        ({-1, 4, 5}, 6, []),
        (set(), 5, [4, 3]),
        ({-1}, 0, []),
        (set(), 9, []),
    ],
)
def test_a_candidate_is_offered_what_the_last_two_updates_taught_others(
    lineage: set[int], update: int, born: list[int]
) -> None:
    offered = books_of().elsewhere("self", lineage, update)
    assert [lesson.born for lesson in offered] == born


def test_what_is_offered_stays_short() -> None:
    assert [lesson.born for lesson in books_of(length=70).elsewhere("self", set(), 6)] == [5]
    assert books_of(length=400).elsewhere("self", set(), 6) == ()
