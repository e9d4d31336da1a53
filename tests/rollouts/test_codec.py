"""Values come back as they were, or are refused; a file chooses no code."""

from __future__ import annotations

import datetime
import decimal
import enum
import json
import uuid
from dataclasses import dataclass
from typing import Any

import dspy
import numpy as np
import pydantic
import pytest
from dspy.teleprompt.bootstrap_trace import FailedPrediction
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.rollouts._codec import NotStorableError, decode, encode, encode_checked


class Colour(enum.StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    tags: tuple[str, ...] = ()


class Place(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str
    at: Point | None = None
    colour: Colour = Colour.RED


def _back(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode_checked(value))))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates() | st.uuids(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.text() | st.integers(), inner)
            | st.tuples(inner, inner)
            | st.frozensets(st.text() | st.integers())
        ),
        max_leaves=12,
    )
)
def test_plain_values_come_back(value: Any) -> None:
    found = _back(value)
    assert repr(found) == repr(value) or found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        Colour.RED,
        Point(1, ("a",)),
        Place(name="x", at=Point(2), more=[1]),
        [Place(name="y")],
        decimal.Decimal("1.50"),
        datetime.datetime(2024, 1, 2, 3, tzinfo=datetime.UTC),
        uuid.UUID(int=7),
        {"$": "not a mark"},
        dspy.Example(question="q", answer=None).with_inputs("question"),
        dspy.Example(question="q"),
        FailedPrediction("text", 0.0),
        dspy.Image("data:image/png;base64,iVBORw0KGgo="),
        dspy.History(messages=[{"question": "q", "answer": "a"}]),
        dspy.Prediction(score=1.0, feedback="f", objective_scores={"a": 0.5}),
    ],
)
def test_objects_come_back(value: Any) -> None:
    found = _back(value)
    assert found == value
    assert type(found) is type(value)
    assert repr(found) == repr(value)


def test_predictions_keep_completions_and_the_order_of_their_fields() -> None:
    value = dspy.Prediction.from_completions({"b": ["1", "2"], "a": ["x", "y"]})
    found = _back(value)
    assert list(found.keys()) == ["b", "a"]
    assert dict(found.completions.items()) == {"b": ["1", "2"], "a": ["x", "y"]}
    single = dspy.Prediction.from_completions([{"b": "1", "a": Point(1)}])
    assert encode(single)["completions"] == "own"
    assert dict(_back(single).completions.items()) == {"b": ["1"], "a": [Point(1)]}
    assert _back(dspy.Prediction(a=1)).completions is None
    value.set_lm_usage({"m": {"prompt_tokens": 3}})
    assert _back(value).get_lm_usage() == {"m": {"prompt_tokens": 3}}


def test_numbers_of_numpy_keep_their_type() -> None:
    found = _back(np.float32(0.1))
    assert found == np.float32(0.1)
    assert isinstance(found, np.float32)


class Private(pydantic.BaseModel):
    _hidden: int = pydantic.PrivateAttr(default=1)


def _local() -> Any:
    @dataclass
    class Local:
        x: int = 1

    return Local()


@pytest.mark.parametrize(
    "value", [object(), print, open, _local(), Private(), np.zeros(3), [{"deep": object()}], type("S", (str,), {})("x")]
)
def test_what_would_not_come_back_is_refused(value: Any) -> None:
    with pytest.raises(NotStorableError):
        encode_checked(value)


@pytest.mark.parametrize(
    "text",
    [
        {"$": "nothing"},
        {"$": ["model"]},
        {"$": "model", "class": "os:system", "fields": {}, "extra": {}, "set": []},
        {"$": "model", "class": "antigravity:Thing", "fields": {}, "extra": {}, "set": []},
        {"$": "dataclass", "class": "subprocess:Popen", "fields": {"args": ["id"]}},
        {"$": "enum", "class": f"{__name__}:Colour", "value": "GREEN"},
        {"$": "prediction", "class": "subprocess:Popen", "fields": [], "completions": None, "usage": None},
        {"$": "prediction", "class": "dspy.primitives.prediction:Prediction", "fields": 3, "completions": None},
        {"$": "float", "value": "__import__('os')"},
        {"$": "bytes", "value": "%%%"},
        {"$": "numpy", "type": "object", "value": 1},
        {"$": "tuple", "value": 3},
        {"$": "set", "value": [[1]]},
        {"$": "model", "class": f"{__name__}:Place", "fields": {"other": 1}, "extra": {}, "set": []},
    ],
)
def test_hostile_texts_are_refused(text: Any) -> None:
    with pytest.raises(NotStorableError):
        decode(text)


def test_no_constructor_runs_on_reading() -> None:
    calls: list[Any] = []

    class Loud(pydantic.BaseModel):
        name: str

        def model_post_init(self, context: Any) -> None:
            calls.append(self.name)

    globals()["Loud"] = Loud
    Loud.__qualname__ = "Loud"
    encoded = encode(Loud(name="x"))
    calls.clear()
    assert decode(encoded).name == "x"
    assert not calls
