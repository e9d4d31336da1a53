from __future__ import annotations

import dspy
import pytest
from dspy.adapters import utils

from combee_dspy.lms import types_once

ORIGINAL = utils.TypeAdapter


@pytest.mark.parametrize("value", ["a \u00e9", 3, 0.5, True, None, [1, "a", {"b": (2, 3)}], {"a": [1]}, (1, "x")])
def test_values_are_written_as_without(value):
    before = utils.serialize_for_json(value)
    with types_once():
        assert utils.serialize_for_json(value) == before
        assert utils.serialize_for_json(value) == before


def test_an_adapter_is_made_once_for_a_plain_type_and_each_time_for_others(monkeypatch):
    made = []

    def make(kind, *args, **kwargs):
        made.append(kind)
        return ORIGINAL(kind, *args, **kwargs)

    class Text(str):
        """Not to be taken for its base."""

    monkeypatch.setattr(utils, "TypeAdapter", make)
    with types_once():
        begun = len(made)
        for _ in range(3):
            assert utils.serialize_for_json("plain") == "plain"
        assert len(made) == begun
        for _ in range(3):
            utils.serialize_for_json(Text("own"))
        assert utils.TypeAdapter(list[int]).validate_python(["1"]) == [1]
    assert made[begun:] == [Text, Text, Text, list[int]]


def test_a_prompt_with_demonstrations_is_the_same():
    signature = dspy.Signature("question, tags: list[str] -> answer: int")
    demos = [{"question": "how many?", "tags": ["a", "b"], "answer": 2}, {"question": "none?", "tags": [], "answer": 0}]
    inputs = {"question": "and now?", "tags": ["c"]}
    before = dspy.ChatAdapter().format(signature, demos, inputs)
    with types_once():
        assert dspy.ChatAdapter().format(signature, demos, inputs) == before


def test_nothing_is_left_behind_and_blocks_may_overlap():
    first, second = types_once(), types_once()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert utils.TypeAdapter is not ORIGINAL
    second.__exit__(None, None, None)
    assert utils.TypeAdapter is ORIGINAL


def test_another_replacement_is_left_where_it_is(monkeypatch):
    monkeypatch.setattr(utils, "TypeAdapter", ORIGINAL)
    with types_once():
        utils.TypeAdapter = other = lambda *_, **__: None
    assert utils.TypeAdapter is other
