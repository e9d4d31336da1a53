"""A playbook as text, and a book as a playbook, as properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.artifacts import BulletText, Playbook, read_text
from combee_dspy.edits import Credit
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lessons import Book, Taught
from combee_dspy.reflections import estimate_tokens
from tests.artifacts.books import books, contents

ACE_LINES = """## STRATEGIES & INSIGHTS
[str-00001] helpful=5 harmful=0 :: Always verify data types before processing
[str-00002] helpful=3 harmful=1 :: Consider edge cases in financial data

## FORMULAS & CALCULATIONS
[cal-00003] helpful=8 harmful=0 :: NPV = Σ(Cash Flow / (1+r)^t)

## CODE SNIPPETS & TEMPLATES

## COMMON MISTAKES TO AVOID
[mis-00004] helpful=0 harmful=6 :: Don't forget timezone conversions"""


def test_aces_own_lines_round_trip():
    read = read_text(ACE_LINES)
    assert not read.ignored
    assert str(read) == ACE_LINES
    assert [bullet.helpful for bullet in read.bullets] == [5, 3, 8, 0]
    assert read.bullets[-1].section == "COMMON MISTAKES TO AVOID"


@given(books())
def test_text_round_trips(book):
    assert read_text(str(book)) == book


@given(books(), st.integers(min_value=1, max_value=120))
def test_a_budget_is_kept_and_leaves_out_the_worst(book, budget):
    within = book.within(budget)
    assert not within.bullets or estimate_tokens(str(within)) <= budget
    assert within.bullets == tuple(bullet for bullet in book.bullets if bullet in within.bullets)
    assert book.within(10_000).bullets == book.bullets


def test_text_that_is_no_playbook_is_said_and_bullets_twice_keep_the_first():
    read = read_text("hello\n[a] helpful=1 harmful=0 :: one\n[a] helpful=2 harmful=0 :: two")
    assert [bullet.content for bullet in read.bullets] == ["one"]
    assert len(read.ignored) == 2


def test_a_file_with_carriage_returns_is_read_as_without_them():
    assert read_text(ACE_LINES.replace("\n", "\r\n")) == read_text(ACE_LINES)


def test_a_line_that_a_model_broke_belongs_to_its_bullet():
    read = read_text("## S\n[a] helpful=0 harmful=0 :: def f():\nreturn 1\n\nafter")
    assert [bullet.content for bullet in read.bullets] == ["def f():\nreturn 1"]
    assert "after" in read.ignored[0]


@pytest.mark.parametrize("sections", [(), ("S", "S"), ("S\nT",), (" S",)])
def test_sections_that_cannot_be_used_are_refused(sections):
    with pytest.raises(ArgumentValueError, match="are no names of sections"):
        BulletText((), sections)


def served(book, text="", **options):
    return read_text(Playbook(**options).serve(text, book))  # type: ignore[arg-type]  # the options of a playbook


@given(books())
def test_a_playbook_is_the_same_after_it_was_read_into_a_book(book):
    artifact = Playbook(sections=book.sections)
    assert artifact.serve(str(book), artifact.read(str(book))) == str(book)


@given(books(), st.lists(contents.filter(str.strip), max_size=6, unique=True))
def test_what_is_learned_stands_beside_what_was_there(book, learned):
    artifact = Playbook(sections=book.sections)
    before = artifact.read(str(book))
    after = before.add([Taught(" ".join(text.split()), ("row",)) for text in learned], 0)
    read = read_text(artifact.serve(str(book), after))
    assert sum(before.find(bullet.id) is not None for bullet in read.bullets) == len(book.bullets)
    assert {bullet.id for bullet in read.bullets} == {lesson.id for lesson in after.lessons}
    assert artifact.serve(str(read), after) == str(read)


def test_counters_are_the_examples_on_each_side_and_what_an_earlier_run_counted():
    playbook = Playbook()
    book = playbook.read(ACE_LINES)
    votes = [
        Credit("cal-00003", ("row 1", "row 2"), ("row 3",)),
        Credit("cal-00003", ("row 2",)),
        Credit("ghost", ("x",)),
    ]
    edited = book.add(
        [Taught("Round last.", ("row 1", "row 4"), "FORMULAS & CALCULATIONS")], 0
    ).edit(votes)
    assert len(edited.refused) == 1
    bullets = {
        bullet.id: bullet for bullet in read_text(playbook.serve(ACE_LINES, edited.book)).bullets
    }
    assert (bullets["cal-00003"].helpful, bullets["cal-00003"].harmful) == (10, 1)
    (new,) = bullets.keys() - {bullet.id for bullet in read_text(ACE_LINES).bullets}
    assert (bullets[new].helpful, bullets[new].section) == (2, "FORMULAS & CALCULATIONS")


def test_a_section_that_nobody_has_is_the_last():
    book = Book().add([Taught("Round.", ("a",), "ELSEWHERE"), Taught("Add units.", ("b",), "A")], 0)
    read = served(book, sections=("A", "REST"))
    assert [(bullet.content, bullet.section) for bullet in read.bullets] == [
        ("Add units.", "A"),
        ("Round.", "REST"),
    ]
