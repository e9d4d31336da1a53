from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.tracking._where import And, Compare, Not, Or, expression_of, parse_where

pa = pytest.importorskip("pyarrow")

ROWS: list[dict[str, Any]] = [
    {"score": 0.1, "split": "train", "cached": True, "calls": 1, "error": 'it\'s "odd"'},
    {"score": 0.7, "split": "validation", "cached": False, "calls": 2, "error": ""},
    {"score": None, "split": "train", "cached": False, "calls": None, "error": None},
]
TABLE = pa.Table.from_pylist(ROWS)


def chosen(where: str) -> list[int]:
    mask = TABLE.append_column("n", pa.array(range(len(ROWS))))
    return mask.filter(expression_of(parse_where(where), TABLE.schema))["n"].to_pylist()


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("score < 0.5 and split = 'train'", [0]),
        ("score <= .7", [0, 1]),
        ("score > 1e-3 AND score <> 0.1", [1]),
        ('split == "train" or calls >= 2', [0, 1, 2]),
        ("split = 'train' and calls = 1 or calls = 2", [0, 1]),
        ("split = 'train' and (calls = 2 or cached)", [0]),
        ("cached", [0]),
        ("not cached", [1, 2]),
        ("not not cached = true", [0]),
        ("calls is null", [2]),
        ("calls is not null", [0, 1]),
        ("calls in (1, 2.0)", [0, 1]),
        ("calls not in (1)", [1]),
        ("score in (0.7, 3)", [1]),
        ("split in ('train', 'heldout')", [0, 2]),
        ("error contains 'odd'", [0]),
        ("error = 'it''s \"odd\"'", [0]),
        ("error != ''", [0]),
        ("score = -1", []),
    ],
)
def test_conditions_choose_rows(where: str, rows: list[int]) -> None:
    assert chosen(where) == rows


def test_and_binds_more_tightly_than_or() -> None:
    a, b, c = (Compare(name, "=", (1,)) for name in "abc")
    assert parse_where("a = 1 or b = 1 and c = 1") == Or((a, And((b, c))))
    assert parse_where("not a = 1 and b = 1") == And((Not(a), b))


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        ("", "lacks a column's name here, at character 1"),
        ("score <", "lacks a value here, at character 8"),
        ("score < oops", "lacks a value here"),
        ("score 0.5", "lacks a comparison here, at character 7"),
        ("(score < 1", "lacks ) here"),
        ("score < 1)", "goes on where it should end, at character 10"),
        ("score < 1; drop table", "cannot be read, at character 10"),
        ("score < 'open", "cannot be read"),
        ("calls in ()", "lacks a value here"),
        ("error contains 3", "lacks a text in quotes here"),
        ("score < 1e999", "lacks a value here"),
        ("score < 0x10", "cannot be read"),
        ("__import__('os').system('true')", "cannot be read, at character 17"),
        ("(" * 60 + "cached" + ")" * 60, "is nested deeper than 50"),
        ("not " * 60 + "cached", "is nested deeper than 50"),
        ("cached or " * 2_000 + "cached", "is longer than 10000 characters"),
    ],
)
def test_what_is_no_condition_is_refused_with_its_place(where: str, problem: str) -> None:
    with pytest.raises(ArgumentValueError, match="where") as caught:
        parse_where(where)
    assert problem in caught.value.problem


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("scor < 1", "Columns: score, split, cached, calls, error"),
        ("score = 'a'", "cannot be compared with score"),
        ("split < 1", "Give a text in quotes"),
        ("cached = 1", "Give true or false"),
        ("calls = true", "Give a number"),
        ("calls contains 'a'", "holds no text to look into"),
    ],
)
def test_what_does_not_fit_the_columns_is_refused(where: str, words: str) -> None:
    with pytest.raises(ArgumentValueError) as caught:
        chosen(where)
    assert words in str(caught.value)


def test_the_longest_condition_that_is_allowed_is_answered() -> None:
    assert chosen(" or ".join(["cached"] * 900)) == [0]


@given(st.text(max_size=40))
def test_any_text_is_a_condition_or_refused(text: str) -> None:
    try:
        parse_where(text)
    except ArgumentValueError as error:
        assert error.argument == "where"


@given(st.text(alphabet=st.characters(exclude_categories=("Cs",)), max_size=20))
def test_any_text_can_be_looked_for(text: str) -> None:
    quoted = text.replace("'", "''")
    assert parse_where(f"error = '{quoted}'") == Compare("error", "=", (text,))
