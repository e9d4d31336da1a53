from __future__ import annotations

import dspy
import pytest

from combee_dspy.lms import redact
from combee_dspy.tracking import Redactor
from combee_dspy.tracking._redact import known_secrets
from combee_dspy.tracking._text import clean, cut, one_line, show


def test_values_of_secret_variables_are_known_and_others_are_not() -> None:
    environ = {
        "OPENAI_API_KEY": "plain-value-1",
        "HF_TOKEN": "plain-value-2",
        "DB_PASSWORD": "plain-value-3",
        "SHORT_SECRET": "abc",
        "HOME": "/home/somebody",
        "MAX_TOKENS": "100000000",
    }
    assert known_secrets(environ) >= {"plain-value-1", "plain-value-2", "plain-value-3"}
    assert not known_secrets(environ) & {"abc", "/home/somebody", "100000000"}


def test_the_configured_lms_key_is_known() -> None:
    with dspy.context(lm=dspy.LM("openai/none", api_key="not-shaped-like-a-key")):
        assert "not-shaped-like-a-key" in known_secrets({})
    with dspy.context(lm=dspy.LM("openai/simulated", api_key="simulated")):
        assert "simulated" not in known_secrets({})


# One text a shape that scrub() knows, in its order. A new shape needs a text here.
SHAPED = [
    "Authorization: Bearer abc.def-ghi_jkl1",
    "Incorrect key: sk-proj-abcdefghijklmnop",
    "token hf_abcdefghijklmnopqrst was refused",
    "AIzaabcdefghijklmnopqrstuvwxyz",
    "AKIAABCDEFGHIJKLMNOP",
    "http://ann:geheim@host:5000/x",
    "postgresql://host/db?user=ann&password=geheim",
    "GET /v1?key=geheimgeheim",
]


@pytest.mark.parametrize("place", range(len(redact.SHAPES)))
def test_every_shape_of_a_key_is_removed(place: int) -> None:
    text = SHAPED[place]
    shape = redact.SHAPES[place]
    assert shape.pattern.search(text)
    assert Redactor().text(text) == redact.scrub(text) != text
    # Case is no way around the hints.
    found = shape.pattern.search(text.upper())
    assert (Redactor().text(text.upper()) == text.upper()) is (found is None)


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("api_key", True),
        ("OPENAI_API_KEY", True),
        ("apiKey", True),
        ("x-api-key", True),
        ("key", True),
        ("MY_KEY", True),
        ("aws_access_key_id", True),
        ("aws_secret_access_key", True),
        ("aws_session_token", True),
        ("HF_TOKEN", True),
        ("Authorization", True),
        ("vertex_credentials", True),
        ("db_passwd", True),
        ("max_tokens", False),
        ("monkey", False),
        ("KEYBOARD", False),
        ("tokenizer", False),
        ("model", False),
    ],
)
def test_one_rule_says_which_names_hold_a_secret(name: str, secret: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    value = "plain-looking-value"
    monkeypatch.setenv(name, value)
    shown = "[redacted]" if secret else value
    assert Redactor().data({name: value}) == {name: shown}
    assert Redactor().text(value) == redact.scrub(value) == shown
    lm = dspy.LM("openai/none")
    lm.kwargs = {name: value}
    assert redact.secrets_of(lm) == ((value,) if secret else ())


def test_known_values_are_removed_longest_first() -> None:
    assert Redactor({"abcdefgh", "abcdefghij"}).text("x abcdefghij y") == "x [redacted] y"


@pytest.mark.parametrize("removed", [0, 12])
@pytest.mark.parametrize("after", [0, 60, 5000])
def test_a_cut_leaves_no_piece_of_a_secret(removed: int, after: int) -> None:
    key, redactor = "0123456789abcdef0123456789abcdef", Redactor({"0123456789abcdef0123456789abcdef"})
    # Across the cut, and across what is searched beyond it.
    for start in (*range(440, 520), *range(960, 1020)):
        text = (f"{key} " * removed).ljust(start, "y") + key + "z" * after
        short, long = redactor.cells(["y", text], 500)
        assert short == "y"
        assert len(long) <= 500
        assert "0123" not in long, start
        assert long.endswith(f"… [cut, {len(text)} characters]") or len(long) == len(redactor.text(text))


def test_cells_are_what_show_makes_where_there_is_no_secret() -> None:
    values = ["a" * 3000, {"b": "ü" * 2500}, None, "c", ["d"] * 600]
    assert Redactor().cells(values, 2000) == [show(value, 2000) for value in values]


def test_a_secret_that_holds_what_stands_between_two_texts_joins_none() -> None:
    assert Redactor({"abcd\n\0\nefgh"}).cells(["abcd", "efgh"], 100) == ["abcd", "efgh"]


def test_data_is_cleaned_by_name_and_by_value() -> None:
    nested = [{"lm": "has sk-abcdefghijklmnop1234"}]
    data = {"api_key": "zzz", "nested": nested, "copies": 2, "max_tokens": 5, "lm": None}
    assert Redactor().data(data) == {
        "api_key": "[redacted]",
        "nested": [{"lm": "has [redacted]"}],
        "copies": 2,
        "max_tokens": 5,
        "lm": None,
    }


def test_ordinary_text_is_left_alone() -> None:
    text = "The risk-adjusted return (sk-ill) of token ring: ask-me-anything. user: x@y.z"
    assert Redactor().text(text) == text


def test_cut_says_that_it_cut() -> None:
    assert cut("a" * 50, 50) == "a" * 50
    shown = cut("a" * 6001, 6000)
    assert len(shown) == 6000
    assert shown.endswith("… [cut, 6001 characters]")


def test_clean_text_can_be_encoded_and_stored() -> None:
    assert clean("a\ud800b\x00c") == "a\ufffdb\ufffdc"
    assert clean("é😀") == "é😀"


def test_one_line_has_no_control_characters() -> None:
    line = one_line("a\x1b[31mb\n\n\tc\u202ed\x07" + "e" * 500, 40)
    assert len(line) == 40
    assert line.startswith("a [31mb c d e")
    assert line.isprintable()


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_show_takes_anything() -> None:
    loop: list[object] = []
    loop.append(loop)
    assert show({"a": dspy.Example(x=1)}, 100) == '{"a":{"x":1}}'
    assert show(dspy.Prediction(answer="é"), 100) == '{"answer":"é"}'
    # What one writer of JSON does not take, the other does.
    assert show({1: "a", "big": 2**70}, 100) == '{"1":"a","big":1180591620717411303424}'
    assert show(loop, 100) == "[[...]]"
    assert "unprintable" in show([Unprintable()], 100)
    assert show(None, 100) == ""
