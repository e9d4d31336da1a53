"""The playbook's core: text, deltas and refining, as properties."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from combee_dspy.artifacts import (
    Bullet,
    Delta,
    Playbook,
    apply_deltas,
    read_text,
    refine,
    render,
    write_text,
)
from combee_dspy.exceptions import ArgumentError, ArgumentValueError
from combee_dspy.reflections import estimate_tokens
from tests.artifacts.conftest import deltas, playbooks

ACE_LINES = """## STRATEGIES & INSIGHTS
[str-00001] helpful=5 harmful=0 :: Always verify data types before processing
[str-00002] helpful=3 harmful=1 :: Consider edge cases in financial data

## FORMULAS & CALCULATIONS
[cal-00003] helpful=8 harmful=0 :: NPV = Σ(Cash Flow / (1+r)^t)

## CODE SNIPPETS & TEMPLATES

## COMMON MISTAKES TO AVOID
[mis-00004] helpful=0 harmful=6 :: Don't forget timezone conversions"""

TWO = Playbook(
    (Bullet("a-1", "STRATEGIES", "first", 2, 1, 0), Bullet("b-2", "STRATEGIES", "second", 1, 0, 1)),
    ("STRATEGIES", "OTHER"),
)


def test_aces_own_lines_round_trip():
    read = read_text(ACE_LINES)
    assert not read.ignored
    assert write_text(read.playbook) == ACE_LINES
    assert read.playbook.get("cal-00003").helpful == 8
    assert [bullet.section for bullet in read.playbook.bullets][-1] == "COMMON MISTAKES TO AVOID"


@given(playbooks())
def test_text_and_json_round_trip(playbook):
    read = read_text(write_text(playbook))
    assert read.playbook == playbook
    assert not read.ignored
    assert Playbook.from_dict(playbook.to_dict()) == playbook


@given(playbooks())
def test_what_is_rendered_without_a_budget_reads_back_bullet_by_bullet(playbook):
    shown = render(playbook)
    assert read_text(shown.text).playbook.bullets == playbook.bullets
    assert not shown.left_out


@given(playbooks(), st.integers(min_value=1, max_value=120))
def test_a_budget_is_kept_and_leaves_out_the_worst(playbook, budget):
    shown = render(playbook, budget)
    assert estimate_tokens(shown.text) == shown.tokens <= budget
    assert sorted(shown.shown + shown.left_out) == sorted(bullet.id for bullet in playbook.bullets)


def test_of_equal_length_the_less_helpful_bullet_is_left_out():
    playbook = Playbook(tuple(Bullet(f"n-{value}", "OTHER", "same words", value) for value in (1, 3, 2)), ("OTHER",))
    budget = render(playbook).tokens - 4
    assert render(playbook, budget).left_out == ("n-1",)


@given(playbooks(), st.lists(deltas(), max_size=12))
def test_deltas_keep_ids_unique_are_idempotent_and_have_no_order(playbook, made):
    once = apply_deltas(playbook, made)
    ids = [bullet.id for bullet in once.playbook.bullets]
    assert len(ids) == len(set(ids))
    assert apply_deltas(once.playbook, made).playbook == once.playbook
    shuffled = list(made)
    random.Random(len(made)).shuffle(shuffled)
    again = apply_deltas(playbook, shuffled)
    assert (again.playbook, again.ignored) == (once.playbook, once.ignored)


@given(playbooks(), st.lists(deltas(), max_size=8), st.lists(deltas(), max_size=8))
@settings(max_examples=300)
def test_deltas_that_touch_different_bullets_commute(playbook, left, right):
    def touched(made):
        found = apply_deltas(playbook, made).playbook
        return {name for one in made for name in one.ids} | (
            {bullet.id.rpartition("-")[2] for bullet in found.bullets}
            - {b.id.rpartition("-")[2] for b in playbook.bullets}
        )

    if touched(left) & touched(right):
        return
    contents = {one.content for one in left if one.op == "ADD"} & {one.content for one in right if one.op == "ADD"}
    if contents:
        return
    one = apply_deltas(apply_deltas(playbook, left).playbook, right).playbook
    other = apply_deltas(apply_deltas(playbook, right).playbook, left).playbook
    assert {b.id: b for b in one.bullets} == {b.id: b for b in other.bullets}
    assert one == other


@given(playbooks(), st.lists(st.lists(deltas(), max_size=4), max_size=5))
def test_shards_join_in_any_order(playbook, shards):
    def joined(order):
        applied = apply_deltas(playbook, [delta for number in order for delta in shards[number]])
        return refine(applied.playbook).playbook

    order = list(range(len(shards)))
    assert joined(order) == joined(order[::-1])


@given(playbooks(), st.lists(deltas(), max_size=12))
def test_no_bullet_that_no_delta_names_is_changed(playbook, made):
    after = apply_deltas(playbook, made).playbook
    named = {name for delta in made for name in delta.ids}
    for bullet in playbook.bullets:
        if bullet.id not in named:
            assert after.get(bullet.id) == bullet


@given(playbooks())
def test_refining_again_changes_nothing(playbook):
    once = refine(playbook)
    assert refine(once.playbook).playbook == once.playbook
    assert len(once.playbook) + len(once.joined) + len(once.left) == len(playbook)


def test_the_delta_that_more_shards_agree_on_wins_and_the_other_is_said():
    drop, keep = Delta("DELETE", ("a-1",)), Delta("UPDATE", ("a-1",), "", "better")
    applied = apply_deltas(TWO, [drop, drop, keep])
    assert applied.playbook.get("a-1") is None
    assert len(applied.ignored) == 1
    assert "UPDATE a-1: better" in applied.ignored[0]
    # At equal support what keeps more of the bullet goes first.
    assert apply_deltas(TWO, [drop, keep]).playbook.get("a-1").content == "better"


def test_a_change_that_says_nothing_beats_no_other():
    good = Delta("UPDATE", ("a-1",), "", "better")
    for blank in (Delta("UPDATE", ("a-1",), "", " "), Delta("MERGE", ("a-1", "b-2"))):
        applied = apply_deltas(TWO, [blank, blank, good])
        assert applied.playbook.get("a-1").content == "better"
        assert len(applied.playbook) == 2
        assert "says nothing" in applied.ignored[0]


def test_a_loser_is_told_as_one_even_where_the_winner_changes_nothing():
    first = Delta("MERGE", ("a-1", "ghost"), "", "both")
    applied = apply_deltas(TWO, [first, Delta("DELETE", ("a-1",))])
    assert applied.playbook == TWO
    assert "DELETE a-1: MERGE a-1, ghost: both names the same bullet and goes first" in applied.ignored


def test_a_merge_keeps_the_first_bullet_and_all_counts():
    after = apply_deltas(TWO, [Delta("MERGE", ("b-2", "a-1"), "", "both")]).playbook
    assert after.bullets == (Bullet("a-1", "STRATEGIES", "both", 3, 1),)


def test_a_merge_with_an_unknown_bullet_changes_nothing():
    applied = apply_deltas(TWO, [Delta("MERGE", ("a-1", "ghost"), "", "both")])
    assert applied.playbook == TWO
    assert "ghost" in applied.ignored[0]


def test_the_same_advice_is_added_once_whatever_its_case():
    one = apply_deltas(TWO, [Delta("ADD", (), "STRATEGIES", "Round to two decimals.")]).playbook
    again = apply_deltas(one, [Delta("ADD", (), "OTHER", "round to two decimals")])
    assert again.playbook == one
    assert "already" in again.ignored[0]


def test_near_duplicates_become_one_with_the_longer_wording_and_both_counts():
    words = "Before you answer compute the ratio as a plain fraction and never as a percentage of the whole amount"
    playbook = Playbook(
        (Bullet("a", "OTHER", words, 1, 0, 0), Bullet("b", "OTHER", f"{words} here", 2, 1, 1)), ("OTHER",)
    )
    refined = refine(playbook)
    assert refined.joined == (("b", "a"),)
    assert refined.notes == ("b was joined into a: they say the same",)
    assert refined.playbook.bullets == (Bullet("a", "OTHER", f"{words} here", 3, 1),)


def test_what_harms_sinks_and_then_leaves():
    counted = TWO.with_counts({}, {"a-1": 2})
    assert [bullet.id for bullet in counted.bullets] == ["b-2", "a-1"]
    assert refine(counted, leave_at=2).playbook.get("a-1") is not None
    gone = refine(counted.with_counts({}, {"a-1": 2}), leave_at=3)
    assert gone.left == ("a-1",)
    assert gone.notes == ("a-1 left: it harms more than it helps",)


def test_text_that_is_no_playbook_is_said_and_bullets_twice_keep_the_first():
    read = read_text("hello\n[a] helpful=1 harmful=0 :: one\n[a] helpful=2 harmful=0 :: two")
    assert [bullet.content for bullet in read.playbook.bullets] == ["one"]
    assert len(read.ignored) == 2


@pytest.mark.parametrize("end", ["\r", "\t", " \r", "\x85"])
def test_a_heading_with_space_behind_it_is_read(end):
    assert read_text(f"## A{end}\n[a] helpful=1 harmful=0 :: one").playbook.sections == ("A",)


def test_a_file_with_carriage_returns_is_read_as_without_them():
    read = read_text(ACE_LINES.replace("\n", "\r\n"))
    assert read == read_text(ACE_LINES)


def test_a_line_that_a_model_broke_belongs_to_its_bullet():
    read = read_text("## S\n[a] helpful=0 harmful=0 :: def f():\nreturn 1\n\nafter")
    assert read.playbook.get("a").content == "def f():\nreturn 1"
    assert "after" in read.ignored[0]


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (lambda: Bullet("a b", "S", "x"), ArgumentValueError),
        (lambda: Bullet("a", "S", "x", -1), ArgumentValueError),
        (lambda: Playbook((), ()), ArgumentValueError),
        (lambda: Playbook((), ("S", "S")), ArgumentValueError),
        (lambda: Playbook((Bullet("a", "S", "x"), Bullet("a", "S", "y")), ("S",)), ArgumentValueError),
        (lambda: Playbook((Bullet("a", "T", "x"),), ("S",)), ArgumentValueError),
        (lambda: Playbook.from_dict({"bullets": [{"id": 1}], "sections": ["S"]}), ArgumentError),
        (lambda: render(TWO, 0), ArgumentValueError),
    ],
)
def test_what_cannot_be_used_is_refused(made, error):
    with pytest.raises(error):
        made()
