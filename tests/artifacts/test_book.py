"""The playbook's content: text, deltas and refining, as properties."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.artifacts import Bullet, BulletBook, Delta, apply_deltas, read_text, refine, render, write_text
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.reflections import estimate_tokens
from tests.artifacts.books import books, deltas

ACE_LINES = """## STRATEGIES & INSIGHTS
[str-00001] helpful=5 harmful=0 :: Always verify data types before processing
[str-00002] helpful=3 harmful=1 :: Consider edge cases in financial data

## FORMULAS & CALCULATIONS
[cal-00003] helpful=8 harmful=0 :: NPV = Σ(Cash Flow / (1+r)^t)

## CODE SNIPPETS & TEMPLATES

## COMMON MISTAKES TO AVOID
[mis-00004] helpful=0 harmful=6 :: Don't forget timezone conversions"""

TWO = BulletBook(
    (Bullet("a-1", "STRATEGIES", "first", 2, 1), Bullet("b-2", "STRATEGIES", "second", 1, 0)),
    ("STRATEGIES", "OTHER"),
)


def test_aces_own_lines_round_trip():
    read = read_text(ACE_LINES)
    assert not read.ignored
    assert write_text(read.book) == ACE_LINES
    assert read.book.get("cal-00003").helpful == 8
    assert [bullet.section for bullet in read.book.bullets][-1] == "COMMON MISTAKES TO AVOID"


@given(books())
def test_text_round_trips(book):
    read = read_text(write_text(book))
    assert read.book == book
    assert not read.ignored


@given(books(), st.integers(min_value=1, max_value=120))
def test_a_budget_is_kept_and_leaves_out_the_worst(book, budget):
    text, shown = render(book, budget)
    assert estimate_tokens(text) <= budget
    assert read_text(text).book.bullets == shown
    assert shown == tuple(bullet for bullet in book.bullets if bullet in shown)
    assert render(book, 10_000)[1] == book.bullets


def test_of_equal_length_the_less_helpful_bullet_is_left_out():
    book = BulletBook(tuple(Bullet(f"n-{value}", "OTHER", "same words", value) for value in (1, 3, 2)), ("OTHER",))
    budget = estimate_tokens(write_text(book)) - 4
    assert [bullet.id for bullet in render(book, budget)[1]] == ["n-3", "n-2"]


@given(books(), st.lists(deltas(), max_size=12))
def test_deltas_keep_ids_unique_are_idempotent_and_have_no_order(book, made):
    once = apply_deltas(book, made)
    assert apply_deltas(once.book, made).book == once.book
    shuffled = list(made)
    random.Random(len(made)).shuffle(shuffled)
    assert apply_deltas(book, shuffled) == once
    assert read_text(write_text(once.book)).book == once.book, "what was learned survives as text"


@given(books(), st.lists(st.lists(deltas(), max_size=4), max_size=5))
def test_shards_join_in_any_order(book, shards):
    def joined(order):
        return refine(apply_deltas(book, [delta for number in order for delta in shards[number]]).book).book

    order = list(range(len(shards)))
    assert joined(order) == joined(order[::-1])


@given(books(), st.lists(deltas(), max_size=12))
def test_no_bullet_that_no_delta_names_is_changed_or_moved(book, made):
    after = apply_deltas(book, made).book
    named = {name for delta in made for name in delta.ids}
    spared = [bullet for bullet in book.bullets if bullet.id not in named]
    assert [bullet for bullet in after.bullets if bullet in spared] == spared


@given(books())
def test_refining_again_changes_nothing(book):
    once = refine(book)
    assert refine(once.book).book == once.book
    assert len(once.book.bullets) + len(once.notes) == len(book.bullets)


def test_what_is_added_stands_behind_what_was_there_in_its_section():
    made = [Delta("ADD", (), "STRATEGIES", f"advice {number}") for number in range(4)]
    after = apply_deltas(TWO, [*made, Delta("ADD", (), "elsewhere", "odd")])
    ids = [bullet.id for bullet in after.book.bullets]
    assert ids[:2] == ["a-1", "b-2"]
    assert ids[2:6] == sorted(ids[2:6])
    assert after.book.bullets[-1].section == "OTHER"
    assert "there is no section 'elsewhere'" in after.notes[0]


def test_the_delta_that_more_shards_agree_on_wins_and_the_other_is_said():
    drop, keep = Delta("DELETE", ("a-1",)), Delta("UPDATE", ("a-1",), "", "better")
    applied = apply_deltas(TWO, [drop, drop, keep])
    assert applied.book.get("a-1") is None
    assert len(applied.notes) == 1
    assert "UPDATE a-1: better" in applied.notes[0]
    # At equal support what keeps more of the bullet goes first.
    assert apply_deltas(TWO, [drop, keep]).book.get("a-1").content == "better"


def test_a_change_that_says_nothing_beats_no_other():
    good = Delta("UPDATE", ("a-1",), "", "better")
    for blank in (Delta("UPDATE", ("a-1",), "", " "), Delta("MERGE", ("a-1", "b-2"))):
        applied = apply_deltas(TWO, [blank, blank, good])
        assert applied.book.get("a-1").content == "better"
        assert len(applied.book.bullets) == 2
        assert "says nothing" in applied.notes[0]


def test_a_loser_is_told_as_one_even_where_the_winner_changes_nothing():
    first = Delta("MERGE", ("a-1", "ghost"), "", "both")
    applied = apply_deltas(TWO, [first, Delta("DELETE", ("a-1",))])
    assert applied.book == TWO
    assert "DELETE a-1: MERGE a-1, ghost: both names the same bullet and goes first" in applied.notes
    assert any("it names ghost" in note for note in applied.notes)


def test_a_merge_keeps_the_first_bullet_and_all_counts():
    after = apply_deltas(TWO, [Delta("MERGE", ("b-2", "a-1"), "", "both")]).book
    assert after.bullets == (Bullet("a-1", "STRATEGIES", "both", 3, 1),)


def test_the_same_advice_is_added_once_whatever_its_case():
    one = apply_deltas(TWO, [Delta("ADD", (), "STRATEGIES", "Round to two decimals.")]).book
    again = apply_deltas(one, [Delta("ADD", (), "OTHER", "round to two decimals")])
    assert again.book == one
    assert "already" in again.notes[0]


def test_deltas_are_kept_as_json():
    made = Delta("MERGE", ("b-2", "a-1"), "", "both")
    assert Delta.from_json(made.to_json()) == made


def test_near_duplicates_become_one_with_the_longer_wording_and_both_counts():
    words = "Before you answer compute the ratio as a plain fraction and never as a percentage of the whole amount"
    book = BulletBook((Bullet("a", "OTHER", words, 1, 0), Bullet("b", "OTHER", f"{words} here", 2, 1)), ("OTHER",))
    refined = refine(book)
    assert refined.notes == ("b was joined into a: they say the same",)
    assert refined.book.bullets == (Bullet("a", "OTHER", f"{words} here", 3, 1),)


def test_what_harms_sinks_and_then_leaves():
    counted = TWO.counted({}, {"a-1": 2})
    assert [bullet.id for bullet in counted.bullets] == ["b-2", "a-1"]
    assert refine(counted, leave_at=2).book.get("a-1") is not None
    gone = refine(counted.counted({}, {"a-1": 2, "ghost": 9}), leave_at=3)
    assert gone.notes == ("a-1 left: it harms more than it helps",)


def test_text_that_is_no_playbook_is_said_and_bullets_twice_keep_the_first():
    read = read_text("hello\n[a] helpful=1 harmful=0 :: one\n[a] helpful=2 harmful=0 :: two")
    assert [bullet.content for bullet in read.book.bullets] == ["one"]
    assert len(read.ignored) == 2


@pytest.mark.parametrize("end", ["\r", "\t", " \r", "\x85"])
def test_a_heading_with_space_behind_it_is_read(end):
    assert read_text(f"## A{end}\n[a] helpful=1 harmful=0 :: one").book.sections == ("A",)


def test_a_file_with_carriage_returns_is_read_as_without_them():
    assert read_text(ACE_LINES.replace("\n", "\r\n")) == read_text(ACE_LINES)


def test_a_line_that_a_model_broke_belongs_to_its_bullet():
    read = read_text("## S\n[a] helpful=0 harmful=0 :: def f():\nreturn 1\n\nafter")
    assert read.book.get("a").content == "def f():\nreturn 1"
    assert "after" in read.ignored[0]


@pytest.mark.parametrize(
    "made",
    [
        lambda: Bullet("a b", "S", "x"),
        lambda: BulletBook((), ()),
        lambda: BulletBook((), ("S", "S")),
        lambda: BulletBook((), ("S\nT",)),
        lambda: BulletBook((Bullet("a", "S", "x"), Bullet("a", "S", "y")), ("S",)),
        lambda: BulletBook((Bullet("a", "T", "x"),), ("S",)),
    ],
)
def test_what_cannot_be_used_is_refused(made):
    with pytest.raises(ArgumentValueError):
        made()
