from __future__ import annotations

import json
from typing import Any

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.operators import decode_fields, describe_fields, encode_fields, field_descriptions


class Route(dspy.Signature):
    """Route."""

    question: str = dspy.InputField()
    formula: str = dspy.OutputField(desc="Its short name.")


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=60), max_size=6))
def test_what_was_encoded_comes_back(descriptions: dict[str, str]) -> None:
    text = encode_fields(descriptions)
    assert decode_fields(text) == descriptions
    assert encode_fields(dict(reversed(descriptions.items()))) == text
    assert text.isascii()


def test_the_empty_text_means_none() -> None:
    assert decode_fields("") == {}


@pytest.mark.parametrize("wrong", [{"a": 1}, {1: "a"}, {"a": None}])
def test_only_texts_are_encoded(wrong: Any) -> None:
    with pytest.raises(ArgumentTypeError):
        encode_fields(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "[]",
        "{}",
        '{"fields":{}}',
        '{"fields":[],"version":1}',
        '{"fields":{"a":1},"version":1}',
        '{"fields":{"a":"b"},"version":2}',
        '{"fields":{"a":"b"},"version":true}',
        '{"fields":{"a":"b"},"version":1,"more":0}',
        '{"fields":{"a":"b","a":"c"},"version":1}',
        "[" * 100_000,
        '{"fields":' * 9 + "1" * 5_000,
    ],
)
def test_hostile_text_is_refused(text: str) -> None:
    with pytest.raises(ArgumentValueError):
        decode_fields(text)


def test_a_field_that_is_not_there_is_refused() -> None:
    text = json.dumps({"fields": {"answer": "x"}, "version": 1})
    with pytest.raises(ArgumentValueError, match="answer"):
        decode_fields(text, Route)
    with pytest.raises(ArgumentValueError, match="answer"):
        describe_fields(Route, {"answer": "x"})


def test_descriptions_go_into_a_signature_and_come_out() -> None:
    assert field_descriptions(Route) == {"question": "", "formula": "Its short name."}
    assert describe_fields(Route, field_descriptions(Route)) is Route
    assert describe_fields(Route, {"question": "${question}"}) is Route
    changed = describe_fields(Route, {"question": "Free text.", "formula": "Its short name."})
    assert field_descriptions(changed) == {"question": "Free text.", "formula": "Its short name."}
    assert field_descriptions(Route)["question"] == ""
    assert changed.instructions == Route.instructions
