from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.operators import decode_demonstrations, encode_demonstrations
from combee_dspy.records import Demonstration

VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**60), 2**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.dictionaries(st.text(), VALUE, max_size=3)
DEMONSTRATION = st.builds(Demonstration, FIELDS, FIELDS, st.none() | st.text())


@given(demonstrations=st.lists(DEMONSTRATION, max_size=4))
def test_round_trip(demonstrations: list[Demonstration]) -> None:
    text = encode_demonstrations(demonstrations)
    assert text.isascii()
    assert "\n" not in text
    assert decode_demonstrations(text) == tuple(demonstrations)
    assert encode_demonstrations(decode_demonstrations(text)) == text


def test_none_are_a_stable_text() -> None:
    assert encode_demonstrations(()) == '{"demonstrations":[],"version":1}'
    assert decode_demonstrations("") == ()


def test_equal_demonstrations_are_equal_text() -> None:
    one = Demonstration({"a": 1, "b": 2}, {"c": 3})
    other = Demonstration({"b": 2, "a": 1}, {"c": 3})
    assert encode_demonstrations([one]) == encode_demonstrations([other])


@pytest.mark.parametrize("value", [object(), math.nan, math.inf, (1, 2), {1: "a"}, {1, 2}, b"x"])
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    with pytest.raises(ArgumentTypeError):
        encode_demonstrations([Demonstration({"a": value}, {})])


def _text(**changes: Any) -> str:
    return json.dumps({"demonstrations": [], "version": 1, **changes})


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        "null",
        "{}",
        "[" * 100_000,
        _text(version=2),
        _text(version=True),
        _text(extra=1),
        _text(demonstrations={}),
        _text(demonstrations=[1]),
        _text(demonstrations=[{"inputs": {}}]),
        _text(demonstrations=[{"inputs": [], "outputs": {}}]),
        _text(demonstrations=[{"inputs": {}, "outputs": {}, "example_id": 3}]),
        _text(demonstrations=[{"inputs": {}, "outputs": {}, "other": 3}]),
        '{"demonstrations":[{"inputs":{"a":NaN},"outputs":{}}],"version":1}',
    ],
)
def test_garbage_is_refused(text: str) -> None:
    with pytest.raises(ArgumentValueError):
        decode_demonstrations(text)


@given(text=st.text(min_size=1))
def test_no_text_crashes_the_decoder(text: str) -> None:
    with pytest.raises(ArgumentValueError):
        decode_demonstrations(text)
