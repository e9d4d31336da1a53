from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from decimal import Decimal
from enum import Enum

import dspy
import numpy as np
import pandas as pd
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from combee_dspy.exceptions import ArgumentTypeError
from combee_dspy.hashing import canonical_json, digest_of, holds_address, row_hash

JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


class Colour(Enum):
    RED = 1
    BLUE = 2


class Model(pydantic.BaseModel):
    value: int


@dataclasses.dataclass
class Record:
    value: object


class Tensor:
    """What is read of a tensor, whose class has a ``repr`` of its own."""

    shape, dtype = (9,), "int64"

    def __init__(self, items: list[int]) -> None:
        self.items = items

    def tolist(self) -> list[int]:
        return self.items

    def __repr__(self) -> str:
        return "tensor([0, ..., 8])"


def table_of(column: Iterable[object]) -> pd.DataFrame:
    return pd.DataFrame({"a": list(column)})


def picture_of(colour: int) -> Image.Image:
    """Return a picture whose pixels are places in a palette."""
    picture = Image.new("P", (2, 2), 0)
    picture.putpalette([colour] * 768)
    return picture


class Plain:
    def __init__(self, value: object) -> None:
        self.value = value


@given(st.dictionaries(st.text(), JSON_VALUES, max_size=4))
def test_a_json_row_hashes_as_anyone_can_recompute(row):
    text = json.dumps(row, sort_keys=True, separators=(",", ":"))
    assert row_hash(row) == hashlib.sha256(text.encode()).hexdigest()


@given(st.dictionaries(st.text(), JSON_VALUES, min_size=2, max_size=4))
def test_key_order_does_not_count(row):
    assert row_hash(dict(reversed(row.items()))) == row_hash(row)


def test_example_hashes_all_fields_and_no_input_marks():
    bare = dspy.Example(question="q", answer="a")
    assert (
        row_hash(bare)
        == row_hash(bare.with_inputs("question"))
        == row_hash({"answer": "a", "question": "q"})
    )
    assert row_hash(dspy.Example(question="q", answer="b")) != row_hash(bare)


def test_internal_fields_of_dspy_do_not_count():
    assert row_hash(dspy.Example(question="q", dspy_uuid="1")) == row_hash(
        dspy.Example(question="q")
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "1"),
        (1, 1.0),
        (1, True),
        (None, "null"),
        (float("nan"), float("inf")),
        ({1: "a"}, {"1": "a"}),
        ({"a", "b"}, {"a", "c"}),
        (b"ab", b"ac"),
        (Colour.RED, Colour.BLUE),
        (Decimal("1.0"), Decimal("1.1")),
        (dt.date(2024, 1, 1), dt.date(2024, 1, 2)),
        (Model(value=1), Model(value=2)),
        (Record(1), Record(2)),
        (Plain(1), Plain(2)),
        (np.zeros(2), np.zeros(3)),
        (np.zeros(2), np.ones(2)),
        (np.array(["a", None]), np.array(["b", None])),
        (dspy.Image(url="https://example.org/a.png"), dspy.Image(url="https://example.org/b.png")),
        # A repr of these leaves out the middle, digits, and what is a text.
        (table_of(range(1000)), table_of([*range(500), 7, *range(501, 1000)])),
        (table_of(range(1000))["a"], table_of([*range(500), 7, *range(501, 1000)])["a"]),
        (pa.table({"a": range(1000)}), pa.table({"a": [*range(500), 7, *range(501, 1000)]})),
        (pa.array(range(1000)), pa.array([*range(500), 7, *range(501, 1000)])),
        (pa.array([1]), pa.array(["1"])),
        (table_of(pd.to_datetime(["2024-01-01"])), table_of(pd.to_datetime(["2024-01-02"]))),
        (table_of([1.000000001]), table_of([1.000000002])),
        (table_of([1]), table_of(["1"])),
        (table_of([1]), pd.DataFrame({"a": [1]}, index=[1])),
        (Tensor([*range(9)]), Tensor([*range(8), 9])),
        (picture_of(1), picture_of(2)),
    ],
)
def test_different_values_hash_differently(one, other):
    assert row_hash({"x": one}) != row_hash({"x": other})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Model(value=1),
        lambda: Record(Plain([1, {2}])),
        lambda: Plain({"a": Colour.RED}),
        lambda: np.arange(3),
        lambda: np.array(["-".join("ab"), [2**80], None], dtype=object),
        lambda: {"b", "a", 3},
        lambda: dspy.Image(url="https://example.org/a.png"),
        lambda: dspy.Prediction(a=1),
        lambda: object(),
        lambda: table_of([1, None]),
        lambda: picture_of(1),
    ],
)
def test_equal_content_in_other_objects_hashes_the_same(make):
    assert row_hash({"x": make()}) == row_hash({"x": make()})


def test_what_only_its_address_tells_from_others_is_known():
    assert holds_address({"x": [lambda: 1]})
    assert holds_address({"x": Plain("").__init__, "y": "z"})
    assert holds_address({"x": functools.partial(lambda y: y, 1)})
    assert not holds_address({"x": [object(), "<y at 0x7f>", np.ones(2), Plain(print)]})
    assert not holds_address({"value": "a fault at 0x7f", "y": dt.date(2024, 1, 1)})


def test_a_class_of_ones_own_may_have_the_methods_of_a_table():
    class Clip(Plain):
        schema, shape = "mp4", (1,)

        def to_frame(self, second):
            raise NotImplementedError

        to_dict = to_pydict = to_pylist = tolist = to_frame

    assert row_hash({"x": Clip(1)}) != row_hash({"x": Clip(2)})


def test_a_large_table_is_hashed_in_no_time():
    table = pd.DataFrame(np.zeros((1_000_000, 4))).assign(at=pd.Timestamp(0))
    started = time.perf_counter()
    row_hash({"x": table})
    assert time.perf_counter() - started < 2  # a cell at a time takes over a minute


def test_a_value_that_holds_itself_can_be_hashed():
    loop: list[object] = [1]
    loop.append(loop)
    assert len(row_hash({"x": loop})) == 64


def test_the_hash_is_the_same_in_a_process_with_another_hash_seed():
    row = "{'x': {'b', 'a', 'c'}, 'y': frozenset({1, 2, 'z'})}"
    code = f"from combee_dspy.hashing import row_hash; print(row_hash({row}))"
    seen = set()
    for seed in ("1", "2"):
        done = subprocess.run(  # noqa: S603 - this interpreter, with a fixed program
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        seen.add(done.stdout.strip())
    assert seen == {row_hash({"x": {"b", "a", "c"}, "y": frozenset({1, 2, "z"})})}


def test_what_is_no_row_is_refused():
    with pytest.raises(ArgumentTypeError, match=r"dspy\.Example or a mapping"):
        row_hash("question")


def test_the_digest_depends_on_order_and_on_every_hash():
    assert digest_of(["a", "b"]) != digest_of(["b", "a"])
    assert digest_of(["ab"]) != digest_of(["a", "b"])
    assert canonical_json({"b": 1, "a": "é"}) == '{"a":"\\u00e9","b":1}'
