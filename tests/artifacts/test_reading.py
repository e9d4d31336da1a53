"""Answers of curators and reflectors that nobody asked for."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import AdapterParseError
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.artifacts import Book, Bullet, Delta, apply_deltas, read_deltas, read_tags, write_text
from combee_dspy.artifacts._prompts import CurateInsights

BOOK = Book(
    (Bullet("str-00001", "STRATEGIES", "Check units.", 4, 0), Bullet("str-00002", "STRATEGIES", "Round.", 0, 1)),
    ("STRATEGIES", "OTHER"),
)
ADD = {"op": "ADD", "section": "OTHER", "content": "Use decimals."}
json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize(
    "answer",
    [
        [ADD],
        ADD,
        {"operations": [ADD]},
        json.dumps([ADD]),
        f"Here you are:\n```json\n{json.dumps({'operations': [ADD]})}\n```",
        [{"type": "add", "section": "OTHER", "content": "Use decimals."}],
    ],
)
def test_operations_are_read_in_every_usual_form(answer):
    read = read_deltas(answer, BOOK, 8)
    assert read.deltas == (Delta("ADD", (), "OTHER", "Use decimals."),)
    assert not read.ignored


def test_broken_json_gives_what_stands_before_the_break():
    broken = json.dumps({"operations": [ADD, {"op": "DELETE", "ids": ["str-00001"]}]})[:-12]
    read = read_deltas(broken, BOOK, 8)
    assert read.deltas == (Delta("ADD", (), "OTHER", "Use decimals."),)
    assert "broken JSON" in read.ignored[0]


@pytest.mark.parametrize("adapter", [dspy.JSONAdapter(), dspy.ChatAdapter()], ids=["json", "chat"])
def test_an_answer_that_was_cut_parses_only_where_no_operation_is_missing(adapter: Any):
    rows = [ADD, {"op": "UPDATE", "ids": ["str-00001"], "content": "Use the metric units."}]
    fields = {"operations": rows, "complete": True}
    text = json.dumps(fields)
    if isinstance(adapter, dspy.ChatAdapter) and not isinstance(adapter, dspy.JSONAdapter):
        text = f"[[ ## operations ## ]]\n{json.dumps(rows)}\n\n[[ ## complete ## ]]\ntrue\n\n[[ ## completed ## ]]"
    assert adapter.parse(CurateInsights, text) == fields
    read = 0
    for end in range(len(text)):
        with contextlib.suppress(AdapterParseError):
            assert adapter.parse(CurateInsights, text[:end])["operations"] == rows
            read += 1
    assert read < 40


@pytest.mark.parametrize("form", ["text", "data"])
def test_a_whole_playbook_in_place_of_deltas_loses_no_bullet(form):
    other = Book(
        (Bullet("str-00001", "STRATEGIES", "Check nothing.", 9, 9), Bullet("new-1", "OTHER", "New advice.")),
        ("STRATEGIES", "OTHER"),
    )
    answer: Any = write_text(other) if form == "text" else {"bullets": [asdict(bullet) for bullet in other.bullets]}
    read = read_deltas(answer, BOOK, 8)
    after = apply_deltas(BOOK, read.deltas).book
    assert all(after.get(bullet.id) == bullet for bullet in BOOK.bullets)
    assert [bullet.content for bullet in after.bullets if bullet not in BOOK.bullets] == ["New advice."]
    assert "whole playbook" in read.ignored[0]
    assert any("another wording of str-00001" in note for note in read.ignored)


def test_unknown_ids_change_nothing_and_are_said():
    read = read_deltas([{"op": "DELETE", "ids": ["ghost"]}, {"op": "UPDATE", "id": "ghost", "content": "x"}], BOOK, 8)
    applied = apply_deltas(BOOK, read.deltas)
    assert applied.book == BOOK
    assert len(applied.ignored) == 2


@pytest.mark.parametrize(
    "row",
    [
        "DELETE everything",
        {"op": "DROP", "ids": ["str-00001"]},
        {"op": "ADD", "content": ["x"]},
        {"op": "ADD", "content": "x" * 5_000},
        {"op": "DELETE"},
        {"op": "DELETE", "ids": ["str-00001", "str-00002"]},
        {"op": "MERGE", "ids": ["str-00001"], "content": "x"},
        {"op": "UPDATE", "ids": {"a": 1}, "content": "x"},
        {"op": "UPDATE", "ids": ["str-00001"]},
        {"op": "MERGE", "ids": ["str-00001", "str-00002"], "content": " \n"},
        {"op": "ADD", "section": "OTHER"},
        None,
    ],
)
def test_what_is_no_operation_is_said(row):
    read = read_deltas([row], BOOK, 8)
    assert not read.deltas
    assert len(read.ignored) == 1


def test_an_answer_that_repeats_itself_has_one_voice():
    row = {"op": "DELETE", "ids": ["str-00001"]}
    read = read_deltas([row, row, ADD, row], BOOK, 2)
    assert read.deltas == (Delta("DELETE", ("str-00001",)), Delta("ADD", (), "OTHER", "Use decimals."))
    assert read.ignored == ("2 operations that repeat another one of the same answer",)


def test_operations_beyond_what_was_asked_for_are_cut():
    rows = [{"op": "ADD", "section": "", "content": f"advice {number}"} for number in range(5)]
    read = read_deltas(rows, BOOK, 3)
    assert len(read.deltas) == 3
    assert "2 operations beyond" in read.ignored[0]


@given(json_like | st.text(max_size=80))
def test_no_answer_breaks_the_reading_or_loses_a_bullet_that_it_does_not_name(answer):
    read = read_deltas(answer, BOOK, 8)
    after = apply_deltas(BOOK, read.deltas).book
    named = {name for delta in read.deltas for name in delta.ids}
    assert all(after.get(bullet.id) == bullet for bullet in BOOK.bullets if bullet.id not in named)
    write_text(after).encode()


def test_tags_of_shown_bullets_are_read_and_others_are_said():
    shown = {"str-00001", "str-00002"}
    tags, ignored = read_tags({"[str-00001]": "Helpful", "str-00002": "great", "ghost": "harmful"}, shown)
    assert tags == {"str-00001": "helpful"}
    assert len(ignored) == 2
    assert read_tags([{"id": "str-00002", "tag": "harmful"}], shown)[0] == {"str-00002": "harmful"}
    assert read_tags("helpful", shown) == ({}, ("the tags are no mapping: 'helpful'",))


@given(json_like)
def test_no_tags_break_the_reading(answer):
    tags, _ = read_tags(answer, {"a"})
    assert set(tags) <= {"a"}
