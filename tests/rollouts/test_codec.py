"""Rollouts come back from JSON as they were, or are bought again."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import math
import sys
import uuid
import zoneinfo
from functools import cached_property
from typing import Any

import dspy
import numpy as np
import orjson
import pandas as pd
import pydantic
import pytest
from PIL import Image

from combee_dspy.records import CallUsage, FailedCall, PredictorCall, Rollout
from combee_dspy.rollouts import (
    Answer,
    Codec,
    NotStorableError,
    add_codec,
    decode_answer,
    decode_rollout,
    decode_value,
    encode_answer,
    encode_rollout,
    encode_value,
    note_classes,
    unkept_reason,
)


class Colour(enum.Enum):
    RED = "red"


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    tags: tuple[str, ...] = ()


@dataclasses.dataclass
class Counted:
    words: list[str]

    def __post_init__(self) -> None:
        self.count = len(self.words)


@dataclasses.dataclass
class Measured:
    words: list[str]

    @cached_property
    def count(self) -> int:
        return len(self.words)


class Zone(datetime.tzinfo):
    def utcoffset(self, when: datetime.datetime | None) -> datetime.timedelta:
        return datetime.timedelta(hours=1)


class Inner(pydantic.BaseModel):
    count: int = 0


class Outer(pydantic.BaseModel):
    inner: Inner
    label: str | None = None
    when: datetime.date = datetime.date(2026, 1, 2)


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")


class Numbers(pydantic.RootModel[list[int]]):
    pass


class Secretive(pydantic.BaseModel):
    _hidden: int = pydantic.PrivateAttr(default=1)


def again(value: Any) -> Any:
    return decode_value(orjson.loads(orjson.dumps(encode_value(value))))


VALUES = [
    "text",
    "größe",
    "lone \ud800 surrogate",
    5,
    2**80,
    -0.5,
    True,
    None,
    [1, [2]],
    {"a": {"b": [None]}},
    {"$": 1},
    {1: "one", (2, 3): "two"},
    (1, (2,)),
    {1, 2},
    frozenset({"a"}),
    b"\x00\xff",
    datetime.datetime(2026, 1, 2, 3, 4, tzinfo=datetime.UTC),
    datetime.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin")),
    datetime.date(2026, 1, 2),
    decimal.Decimal("1.10"),
    uuid.UUID(int=7),
    Colour.RED,
    Point(1, ("a",)),
    [Point(2)],
    Outer(inner=Inner(count=3)),
    Open(extra={"a": 1}),
    dspy.Image("https://example.org/a.png"),
    dspy.History(messages=[{"question": "q", "answer": Inner()}]),
    dspy.Prediction(answer="a", n=1),
    Secretive(),
    np.float32(0.1),
    np.datetime64("2026-01-02"),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_come_back_equal_and_of_their_type(value):
    arrived = again(value)
    assert type(arrived) is type(value)
    assert arrived == value


def test_what_equality_does_not_show():
    assert math.isnan(again(math.nan))
    assert again(Outer(inner=Inner())).model_fields_set == {"inner"}
    assert vars(again(Numbers([1]))) == vars(Numbers([1]))
    example = again(dspy.Example(q=1, a=2).with_inputs("q"))
    assert example.inputs().toDict() == {"q": 1}
    assert str(again(dspy.Image("https://example.org/a.png"))) == str(
        dspy.Image("https://example.org/a.png")
    )
    late = datetime.datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    assert (again(late).tzinfo, again(late).fold) == (late.tzinfo, 1)


def test_an_object_with_more_than_its_fields_is_refused_and_a_cached_property_made_again():
    with pytest.raises(NotStorableError, match="'count'"):
        encode_value(Counted(["a"]))
    measured = Measured(["a"])
    assert measured.count == 1
    assert again(measured).count == 1


def test_a_time_zone_of_the_users_own_is_refused():
    with pytest.raises(ValueError, match="time zone"):
        encode_value(datetime.datetime(2026, 1, 2, tzinfo=Zone()))


def test_local_classes_of_no_signature_and_unknown_types_are_refused():
    @dataclasses.dataclass
    class Local:
        x: int = 1

    for value in (Local(), object(), len, [object()], {"a": {1: object()}}):
        with pytest.raises(NotStorableError):
            encode_value(value)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">i2").reshape(2, 3),
        np.array([[1.5, np.nan]]),
        np.array(["ü", "text"]),
        np.array([{"a": 1}, None], dtype=object),
    ],
    ids=str,
)
def test_arrays_come_back(array):
    arrived = again(array)
    assert arrived.dtype == array.dtype
    np.testing.assert_array_equal(arrived, array)


PICTURE = Image.linear_gradient("L").resize((5, 3)).convert("RGB")
TABLE = pd.DataFrame(
    {
        "n": [1, 2],
        "text": ["a", None],
        "kind": pd.Categorical(["x", "y"]),
        "at": pd.to_datetime(["2026-01-02", None], utc=True),
        "whole": pd.array([1, None], dtype="Int64"),
    },
    index=["first", "second"],
)


@pytest.mark.parametrize("mode", ["1", "L", "P", "PA", "RGB", "RGBA", "CMYK", "F", "I;16"])
def test_pictures_come_back(mode):
    picture = PICTURE.convert("L").convert("LA" if mode == "PA" else "L").convert(mode)
    assert again(picture) == picture


def test_a_picture_of_a_file_comes_back_with_its_pixels(tmp_path):
    PICTURE.save(tmp_path / "picture.png")
    with Image.open(tmp_path / "picture.png") as picture:
        assert again(picture) == PICTURE


def test_a_picture_of_several_frames_is_refused(tmp_path):
    place = tmp_path / "pages.tiff"
    PICTURE.save(place, save_all=True, append_images=[PICTURE.rotate(180)])
    with Image.open(place) as pages, pytest.raises(ValueError, match="frames"):
        encode_value(pages)


@pytest.mark.parametrize("table", [TABLE, TABLE["whole"], TABLE.set_axis(list("aabcd"), axis=1)])
def test_tables_come_back(table):
    arrived = again(table)
    assert arrived.equals(table)
    assert str(arrived.dtypes) == str(table.dtypes)


@pytest.mark.parametrize(
    "value",
    [
        PICTURE.convert("RGBA").quantize(method=Image.Quantize.FASTOCTREE),
        TABLE.set_index(["n", "text"]),
        TABLE.rename_axis("names"),
        pd.DataFrame({"x": pd.Categorical([1, 2])}),
        pd.Series(pd.Categorical(["x", "y"], categories=["y", "x"])),
        pd.Series([1, 2], index=pd.date_range("2026-01-02", periods=2, freq="D")),
    ],
    ids=["transparency", "two indexes", "named index", "categories", "their order", "frequency"],
)
def test_pictures_and_tables_that_would_lose_something_are_refused(value):
    with pytest.raises((NotStorableError, ValueError, AssertionError)):
        encode_value(value)


def test_a_table_is_read_only_where_the_program_has_loaded_its_package(monkeypatch):
    data = encode_value(TABLE)
    monkeypatch.delitem(sys.modules, "pandas")
    with pytest.raises(NotStorableError, match="no codec"):
        decode_value(data)
    assert "pandas" not in sys.modules


def test_local_classes_of_signatures_come_back():
    @dataclasses.dataclass
    class Part:
        n: int = 0

    class Reply(pydantic.BaseModel):
        parts: list[Part] = []

    ask = dspy.Signature("place -> reply").with_updated_fields("reply", type_=Reply | None)
    note_classes(dspy.Predict(ask))
    value = Reply(parts=[Part(n=2)])
    assert again(value) == value
    assert type(again(value)) is Reply


class Molecule:
    def __init__(self, smiles: str) -> None:
        self.smiles = smiles


def test_a_class_with_a_codec_of_the_user_comes_back():
    add_codec(Codec("molecule", Molecule, lambda molecule: molecule.smiles, Molecule))
    assert again([Molecule("CCO")])[0].smiles == "CCO"


def test_what_a_row_holds_is_kept_by_its_field():
    handle = object()
    call = PredictorCall("ask", {"handle": handle}, {"answer": "a"})
    rollout = Rollout("id", 1.0, prediction={"answer": "a", "handle": handle}, calls=(call,))
    data = orjson.loads(orjson.dumps(encode_rollout(rollout, {"tool": handle})))

    assert decode_rollout(data, {"tool": handle}) == rollout
    assert decode_rollout(data) is None
    assert decode_rollout(data, {"other": handle}) is None


@dataclasses.dataclass
class Doubling:
    x: int

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return 2 * value if name == "x" else value


def test_value_that_its_class_changes_is_refused():
    with pytest.raises(NotStorableError, match="come back"):
        encode_value(Doubling(3))


@pytest.mark.parametrize(
    "data",
    [
        {"$": "nothing"},
        {"$": "decimal", "value": "x"},
        {"$": "dataclass", "class": "os:system", "fields": {}},
        {"$": "codec", "name": "builtins.eval", "value": "1"},
        {"$": "codec", "name": "numpy.ndarray", "value": {"$": "bytes", "value": "gANjCg=="}},
        {"$": "codec", "name": "numpy.ndarray", "value": {"shape": [9], "items": [1]}},
        {"$": "enum", "class": "not.loaded:Colour", "value": "RED"},
        {"$": "model", "class": f"{__name__}:Inner", "fields": {}, "extra": {}, "set": []},
    ],
)
def test_a_hostile_text_runs_nothing_and_is_refused(data):
    with pytest.raises(NotStorableError):
        decode_value(data)


ROLLOUT = Rollout(
    "id",
    0.5,
    "größer",
    {"exact": 1.0},
    None,
    None,
    {"answer": Point(1)},
    (
        PredictorCall(
            "ask",
            {"question": "q", "image": dspy.Image("https://example.org/a.png")},
            {"answer": Point(1)},
        ),
        PredictorCall("", {"question": "q"}, None, "raw \ud800"),
    ),
    (CallUsage("task", "m", 2, 1, 0, 5, 2, None, None, 0.25),),
    1.5,
    0.25,
    "ab",
)


def test_rollout_comes_back_equal():
    assert decode_rollout(orjson.loads(orjson.dumps(encode_rollout(ROLLOUT)))) == ROLLOUT
    failed = Rollout("id", -1.0, error="KeyError: 'x'", failed_in="program")
    assert decode_rollout(orjson.loads(orjson.dumps(encode_rollout(failed)))) == failed


def test_what_has_no_json_form_is_marked_and_the_rollout_is_bought_again():
    rollout = dataclasses.replace(ROLLOUT, prediction={"answer": "a", "handle": object()})
    data = orjson.loads(orjson.dumps(encode_rollout(rollout)))

    assert data["partial"] is True
    assert data["score"] == 0.5
    assert data["prediction"]["answer"] == "a"
    assert data["prediction"]["handle"]["class"] == "object"
    assert decode_rollout(data) is None
    assert "'handle', a object" in unkept_reason(data)


def test_class_that_is_gone_has_the_rollout_bought_again():
    data = encode_rollout(ROLLOUT)
    data["prediction"]["answer"]["class"] = "not.loaded:Point"

    assert decode_rollout(data) is None


@pytest.mark.parametrize(
    "outcome",
    [
        dspy.Prediction(lessons=["a", "ü"], point=Point(1)),
        dspy.Prediction.from_completions(
            {"base": ["what __init__ calls its own"], "self": ["so too"]}
        ),
        FailedCall("ValueError: x"),
    ],
)
def test_answer_comes_back_equal(outcome):
    answer = Answer(outcome, (CallUsage("proposer", "m", 1),), 1.0, 0.5)

    assert decode_answer(orjson.loads(orjson.dumps(encode_answer(answer)))) == answer


def test_answer_without_a_json_form_is_bought_again():
    assert decode_answer(encode_answer(Answer(dspy.Prediction(x=object())))) is None
