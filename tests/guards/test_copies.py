from __future__ import annotations

import os
import random
import subprocess
import sys

import dspy
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.guards import CopyIndex, copied_in_demonstrations
from combee_dspy.records import Demonstration


def words(count: int, seed: int = 0) -> list[str]:
    stream = random.Random(seed)
    return ["".join(stream.choices("abcdefghij", k=7)) for _ in range(count)]


LONG = " ".join(words(40))


def test_a_run_is_copied_from_the_first_word_too_many() -> None:
    copies = CopyIndex.build([{"question": LONG}])
    assert not copies.copied("Say: " + " ".join(LONG.split()[5:17]) + " and so on")
    thirteen = " ".join(LONG.split()[5:18])
    assert copies.copied(f"Say: {thirteen} and so on") == thirteen
    assert copies.copied_words(f"Say: {thirteen} and so on") == 13


def test_case_punctuation_and_markup_hide_nothing() -> None:
    copies = CopyIndex.build([{"question": LONG}])
    disguised = "**" + "_, _".join(word.upper() for word in LONG.split()[:20]) + "**"
    assert copies.copied(disguised) == " ".join(LONG.split()[:20])


def test_a_short_value_is_copied_as_a_whole_only() -> None:
    value = " ".join(words(9, seed=1))
    copies = CopyIndex.build([{"question": value, "label": " ".join(words(7, seed=2))}])
    assert copies.copied(f"For {value} say yes") == value
    assert not copies.copied(" ".join(value.split()[:8]))
    assert not copies.copied(" ".join(words(7, seed=2)))


def test_what_many_examples_share_is_the_tasks_own() -> None:
    shared = " ".join(words(15, seed=3))
    three = [{"question": f"{shared} {' '.join(words(20, seed=number))}"} for number in range(10, 13)]
    assert not CopyIndex.build(three).copied(shared)
    assert CopyIndex.build(three[:2]).copied(shared) == shared
    others = [{"question": " ".join(words(20, seed=number))} for number in range(20, 60)]
    assert CopyIndex.build([*three, *others]).copied(shared) == shared
    assert not CopyIndex.build([*three, *others], common_share=0.05).copied(shared)


def test_an_example_that_repeats_itself_is_one_example() -> None:
    assert CopyIndex.build([{"question": " ".join([LONG] * 5)}]).copied(LONG)


def test_exempt_text_excuses_its_own_runs_only() -> None:
    copies = CopyIndex.build([{"question": LONG}])
    parts = LONG.split()
    assert not copies.copied(LONG, [LONG])
    assert copies.copied(LONG, [" ".join(parts[:20])]) == " ".join(parts[8:])


class Passage(pydantic.BaseModel):
    title: str
    text: str


@pytest.mark.parametrize(
    "example",
    [
        dspy.Example(question="q", answer=LONG).with_inputs("question"),
        {"context": ["short", LONG]},
        {"tokens": LONG.split()},
        {"context": {"passage": [{"text": LONG}]}},
        {"passage": Passage(title="t", text=LONG)},
    ],
)
def test_inputs_labels_and_what_they_hold_count(example: object) -> None:
    assert CopyIndex.build([example]).copied(LONG) == LONG


def test_images_and_numbers_are_no_text() -> None:
    picture = dspy.Image(url="data:image/png;base64," + "/".join(words(30)))
    assert len(CopyIndex.build([{"picture": picture, "n": 3, "nothing": None}])) == 0


def test_scripts_without_spaces_count_by_character() -> None:
    text = "利润等于收入减去成本再除以收入的百分比"
    copies = CopyIndex.build([{"question": text}])
    assert copies.copied(f"规则：{text[:14]}。")
    assert not copies.copied(text[:12])


def test_no_examples_and_no_text_are_no_copies() -> None:
    assert not CopyIndex.build([]).copied(LONG)
    assert not CopyIndex.build([{"question": LONG}]).copied("")


def test_parameters_out_of_range_are_errors() -> None:
    with pytest.raises(ArgumentValueError):
        CopyIndex.build([], 0)
    with pytest.raises(ArgumentValueError):
        CopyIndex.build([], common_share=0.0)


def test_demonstrations_are_counted_by_themselves() -> None:
    copies = CopyIndex.build([{"question": LONG, "answer": "yes"}])
    shown = Demonstration({"question": LONG}, {"answer": "yes"})
    assert copied_in_demonstrations([shown, Demonstration({"question": "mine"}, {"answer": "no"})], copies) == 40


@given(st.integers(0, 27), st.integers(1, 40), st.text(alphabet="xyz ", max_size=40), st.integers(1, 16))
@settings(max_examples=60)
def test_a_slice_is_copied_exactly_when_it_is_longer_than_allowed(
    start: int, size: int, around: str, most: int
) -> None:
    copies = CopyIndex.build([{"question": LONG}], most)
    part = LONG.split()[start : start + size]
    assert bool(copies.copied(f"{around} {' '.join(part)} {around}")) == (len(part) > most)


def test_the_index_is_the_same_in_another_process() -> None:
    code = "from combee_dspy.guards import CopyIndex; c = CopyIndex.build([{'a': ' '.join(map(str, range(30)))}]); "
    code += "print(sorted(int(h) for h in c._runs[13]))"
    found = {
        subprocess.run(  # noqa: S603 - our own interpreter, our own code
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1 and len(found.pop()) > 100
