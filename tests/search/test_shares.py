"""What the candidates of a front hold of the books, and what they are offered of the rest."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from combee_dspy.edits import Contradict, Restore, Retire, Unite
from combee_dspy.lessons import Book, Taught, lesson_id
from combee_dspy.records import Lesson, Lessons
from combee_dspy.search._books import Share, Shares
from combee_dspy.search._candidates import Candidate

STUDENT = Candidate({"self": "Answer.", "other": "Answer."})
CHILD, GRANDCHILD = STUDENT.edited({"self": "Child."}), STUDENT.edited({"self": "Grandchild."})
WORDS = ("marble", "copper", "velvet", "timber", "saffron", "granite")


def text_of(update: int, length: int = 1) -> str:
    return " ".join([f"Deliveries of {WORDS[update]} use the {WORDS[update]} door."] * length)


def book_of(updates: Iterable[int], length: int = 1) -> Book:
    """Return a book in which each update taught one lesson, and the student's prompt held one."""
    book = Book().add([Taught("The user's own line.")], born=-1)
    for update in updates:
        book = book.add([Taught(text_of(update, length), (str(update),))], born=update)
    return book


def offer(shares: Shares, parent: Candidate, update: int, component: str = "self") -> Share:
    """Make the share of an update that teaches its lesson, in a book of all updates so far."""
    taught = Lessons(component, (Lesson(text_of(update), (0,)),))
    return shares.offer(update, component, parent, taught, book_of(range(update + 1)))


def updates_in(lessons: Iterable[str]) -> list[int]:
    return [next(n for n, word in enumerate(WORDS) if word in text) for text in lessons]


def taught_by(share: Share) -> list[int]:
    return updates_in(lesson.text for lesson in share.lessons.lessons)


def test_a_child_is_offered_what_its_parent_lacks_the_latest_first() -> None:
    shares = Shares(0)
    offer(shares, STUDENT, 0)
    offer(shares, STUDENT, 1)
    share = offer(shares, STUDENT, 2)
    assert taught_by(share) == [2, 1, 0]
    assert [lesson.sources for lesson in share.lessons.lessons] == [(0,), (), ()]
    assert [lesson.born for lesson in share.book.served] == [-1, 0, 1, 2]


def test_what_two_children_were_offered_is_offered_to_no_third() -> None:
    shares = Shares(0)
    for update in range(3):
        offer(shares, STUDENT, update)
    share = offer(shares, STUDENT, 3)
    assert taught_by(share) == [3, 2, 1]
    assert [lesson.born for lesson in share.book.served] == [-1, 1, 2, 3]


def test_children_keep_what_they_hold_and_are_not_offered_it_again() -> None:
    shares = Shares(0)
    offer(shares, STUDENT, 0)
    shares.note(CHILD, STUDENT, {"self": offer(shares, STUDENT, 1)})
    share = offer(shares, CHILD, 2)
    assert taught_by(share) == [2]
    assert [lesson.born for lesson in share.book.served] == [-1, 0, 1, 2]
    shares.note(GRANDCHILD, CHILD, {})
    assert [lesson.born for lesson in offer(shares, GRANDCHILD, 3).book.served] == [-1, 0, 1, 2, 3]


def test_a_child_of_which_no_lesson_was_made_is_offered_those_of_its_update() -> None:
    shares = Shares(0)
    offer(shares, STUDENT, 0)
    shares.note(CHILD, STUDENT, {})
    assert taught_by(offer(shares, CHILD, 1)) == [1, 0]


@pytest.mark.parametrize(("staleness", "offered"), [(0, [2, 1]), (1, [2, 1, 0])])
def test_what_came_into_a_child_that_was_worse_is_offered_no_more(
    staleness: int, offered: list[int]
) -> None:
    shares = Shares(staleness)
    shares.note(CHILD, STUDENT, {"self": offer(shares, STUDENT, 0)})
    shares.judge(1, CHILD, passed=False)
    assert taught_by(offer(shares, STUDENT, 2)) == offered, "update 2 may not know of update 1"


def test_a_lesson_is_offered_that_came_into_one_child_that_was_no_worse() -> None:
    shares = Shares(0)
    for child, passed in ((CHILD, False), (GRANDCHILD, True)):
        share = shares.offer(
            0, "self", STUDENT, Lessons("self", (Lesson(text_of(0)),)), book_of([0])
        )
        shares.note(child, STUDENT, {"self": share})
        shares.judge(0, child, passed=passed)
    assert taught_by(offer(shares, STUDENT, 2)) == [2, 1, 0]


def test_a_child_is_not_judged_by_what_its_parent_held() -> None:
    shares = Shares(0)
    shares.note(CHILD, STUDENT, {"self": offer(shares, STUDENT, 0)})
    shares.note(GRANDCHILD, CHILD, {"self": offer(shares, CHILD, 1)})
    shares.judge(1, GRANDCHILD, passed=False)
    assert taught_by(offer(shares, STUDENT, 2)) == [2, 0]


@pytest.mark.parametrize("passed", [0, 1])
def test_wordings_that_became_one_lesson_are_offered_if_any_came_into_a_child_that_was_no_worse(
    passed: int,
) -> None:
    shares, book = Shares(0), book_of(range(2))
    for update, child in enumerate((CHILD, GRANDCHILD)):
        taught = Lessons("self", (Lesson(text_of(update)),))
        share = shares.offer(0, "self", STUDENT, taught, book_of([update]))
        shares.note(child, STUDENT, {"self": share})
        shares.judge(0, child, passed=update == passed)
    united = book.edit([Unite((lesson_id(text_of(0)), lesson_id(text_of(1))))]).book
    *_, lesson = united.lessons
    share = shares.offer(2, "self", STUDENT, Lessons("self"), united)
    assert [each.text for each in share.lessons.lessons] == [lesson.text]


def test_a_child_does_not_get_its_parents_lesson_by_the_name_that_it_has_now() -> None:
    shares = Shares(0)
    taught = Lessons("self", (Lesson(text_of(1)),))
    share = shares.offer(1, "self", STUDENT, taught, book_of([1]))
    shares.note(CHILD, STUDENT, {"self": share})
    united = book_of(range(2)).edit([Unite((lesson_id(text_of(0)), lesson_id(text_of(1))))]).book
    share = shares.offer(2, "self", CHILD, Lessons("self"), united)
    shares.note(GRANDCHILD, CHILD, {"self": share})
    shares.judge(2, GRANDCHILD, passed=False)
    share = shares.offer(3, "self", STUDENT, Lessons("self"), united)
    assert len(share.lessons.lessons) == 1


def test_each_component_has_offers_of_its_own() -> None:
    shares = Shares(0)
    offer(shares, STUDENT, 0, "other")
    for update in range(4):
        offer(shares, STUDENT, update)
    assert taught_by(offer(shares, STUDENT, 4, "other")) == [4, 3, 2, 1, 0]


def test_what_is_offered_stays_short() -> None:
    book, taught = book_of(range(6), length=60), Lessons("self", (Lesson(text_of(5, 60)),))
    shares = Shares(0)
    assert taught_by(shares.offer(6, "self", STUDENT, taught, book)) == [5, 4]
    assert taught_by(shares.offer(6, "self", STUDENT, taught, book)) == [5, 4]
    assert taught_by(shares.offer(6, "self", STUDENT, taught, book)) == [5, 3], "there was no room"


def test_beside_a_whole_new_text_nothing_is_offered() -> None:
    whole = Lessons("self", rewrite="Answer in one word.")
    share = Shares(0).offer(2, "self", STUDENT, whole, book_of(range(2)))
    assert share.lessons == whole


def test_a_line_leaves_with_its_lesson_and_comes_back_with_it() -> None:
    shares, first = Shares(0), lesson_id(text_of(0))
    shares.note(CHILD, STUDENT, {"self": offer(shares, STUDENT, 0)})
    for edit, state in ((Retire(first, "It harms."), "retired"), (Restore(first, ""), "served")):
        book = book_of(range(2)).edit([edit]).book
        lesson = shares.offer(2, "self", CHILD, Lessons("self"), book).book.find(first)
        assert lesson is not None and lesson.state == state


def test_a_child_holds_what_took_the_place_of_its_lesson() -> None:
    shares = Shares(0)
    shares.note(CHILD, STUDENT, {"self": offer(shares, STUDENT, 0)})
    first, second = lesson_id(text_of(0)), lesson_id(text_of(1))
    for _ in range(2):
        offer(shares, STUDENT, 1)
    for _ in range(2):
        shares.offer(2, "self", STUDENT, Lessons("self"), book_of(range(2)))
    edits = [Contradict((first, second)), Retire(first, "Rows are right without it.")]
    share = shares.offer(2, "self", CHILD, Lessons("self"), book_of(range(2)).edit(edits).book)
    assert [lesson.born for lesson in share.book.served] == [-1, 1]
