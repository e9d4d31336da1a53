"""Answers of curators and reflectors that nobody asked for."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import AdapterParseError
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.artifacts import Bullet, BulletBook, Delta, apply_deltas, read_deltas, read_tags, write_text
from combee_dspy.artifacts._curating import CurateInsights

BOOK = BulletBook(
    (Bullet("str-00001", "STRATEGIES", "Check units.", 4, 0), Bullet("str-00002", "STRATEGIES", "Round.", 0, 1)),
    ("STRATEGIES", "OTHER"),
)
ADD = {"op": "ADD", "section": "OTHER", "content": "Use decimals."}
json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("row", [ADD, {"type": "add", "section": "OTHER", "content": " Use decimals. "}])
def test_operations_are_read_in_every_usual_form(row):
    assert read_deltas([row], 8) == ([Delta("ADD", (), "OTHER", "Use decimals.")], [])
    named = [{"op": "DELETE", name: value} for name, value in (("ids", ["x"]), ("id", "[x]"), ("bullet_id", "x"))]
    assert all(read_deltas([one], 8)[0] == [Delta("DELETE", ("x",))] for one in named)


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


def test_a_whole_playbook_in_place_of_deltas_loses_no_bullet():
    rows = [{"id": "str-00001", "section": "STRATEGIES", "content": "Check nothing.", "helpful": 9}]
    deltas, ignored = read_deltas(rows, 8)
    assert not deltas
    assert "no operation ''" in ignored[0]


def test_unknown_ids_change_nothing_and_are_said():
    rows = [{"op": "DELETE", "ids": ["ghost"]}, {"op": "UPDATE", "id": "ghost", "content": "x"}]
    deltas, _ = read_deltas(rows, 8)
    applied = apply_deltas(BOOK, deltas)
    assert applied.book == BOOK
    assert len(applied.notes) == 2


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
    deltas, ignored = read_deltas([row], 8)
    assert not deltas
    assert len(ignored) == 1


def test_an_answer_that_repeats_itself_has_one_voice():
    row = {"op": "DELETE", "ids": ["str-00001"]}
    deltas, ignored = read_deltas([row, row, ADD, row], 2)
    assert deltas == [Delta("DELETE", ("str-00001",)), Delta("ADD", (), "OTHER", "Use decimals.")]
    assert ignored == ["2 operations that repeat another one of the same answer"]


def test_operations_beyond_what_was_asked_for_are_cut():
    rows = [{"op": "ADD", "section": "", "content": f"advice {number}"} for number in range(5)]
    deltas, ignored = read_deltas(rows, 3)
    assert len(deltas) == 3
    assert "2 operations beyond" in ignored[0]


@given(json_like | st.text(max_size=80))
def test_no_answer_breaks_the_reading_or_loses_a_bullet_that_it_does_not_name(answer):
    deltas, _ = read_deltas(answer, 8)
    after = apply_deltas(BOOK, deltas).book
    named = {name for delta in deltas for name in delta.ids}
    assert all(after.get(bullet.id) == bullet for bullet in BOOK.bullets if bullet.id not in named)
    write_text(after).encode()


def test_tags_of_shown_bullets_are_read_and_others_are_said():
    shown = {"str-00001", "str-00002"}
    tags, ignored = read_tags({"[str-00001]": "Helpful", "str-00002": "great", "ghost": "harmful"}, shown)
    assert tags == {"str-00001": "helpful"}
    assert len(ignored) == 2
    assert read_tags("helpful", shown) == ({}, ["the tags are no mapping: 'helpful'"])
    assert read_tags(None, shown) == ({}, [])


@given(json_like)
def test_no_tags_break_the_reading(answer):
    tags, _ = read_tags(answer, {"a"})
    assert set(tags) <= {"a"}
