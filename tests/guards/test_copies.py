import random

import dspy
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from combee_dspy.guards import CopyIndex


def words(count, seed=0):
    stream = random.Random(seed)
    return ["".join(stream.choices("abcdefghij", k=7)) for _ in range(count)]


LONG = " ".join(words(40))


def test_a_run_is_copied_from_the_first_word_too_many():
    copies = CopyIndex([{"question": LONG}])
    assert not copies.copied("Say: " + " ".join(LONG.split()[5:17]) + " and so on")
    thirteen = " ".join(LONG.split()[5:18])
    assert copies.copied(f"Say: {thirteen} and so on") == thirteen


def test_case_punctuation_and_markup_hide_nothing():
    disguised = "**" + "_, _".join(word.upper() for word in LONG.split()[:20]) + "**"
    assert CopyIndex([{"question": LONG}]).copied(disguised) == " ".join(LONG.split()[:20])


def test_a_short_value_is_copied_as_a_whole_only():
    value = " ".join(words(9, seed=1))
    copies = CopyIndex([{"question": value, "label": " ".join(words(7, seed=2))}])
    assert copies.copied(f"For {value} say yes") == value
    assert not copies.copied(" ".join(value.split()[:8]))
    assert not copies.copied(" ".join(words(7, seed=2)))


def test_a_short_label_may_be_said_as_a_whole_and_a_short_input_may_not():
    question, rule = "My tent of order 81465 has not come yet.", "Who asks for a tent gets code J4."
    row = dspy.Example(question=question, rule=rule)
    copies = CopyIndex([row.with_inputs("question")], max_words=12)
    assert not copies.copied(rule)
    assert copies.copied(question)
    assert CopyIndex([row], max_words=12).copied(rule)
    assert CopyIndex([row.with_inputs("question")], max_words=4).copied(rule)


def test_what_recurs_is_the_tasks_own():
    shared = " ".join(words(15, seed=3))
    three = [
        {"question": f"{shared} {' '.join(words(20, seed=number))}"} for number in range(10, 13)
    ]
    others = [{"question": " ".join(words(20, seed=number))} for number in range(20, 460)]
    # Three of 150 are two in a hundred; of 443 they are too few.
    assert not CopyIndex(three).copied(shared)
    assert not CopyIndex([*three, *others[:147]]).copied(shared)
    assert CopyIndex(three[:2]).copied(shared) == shared
    assert CopyIndex([*three, *others]).copied(shared) == shared


QUOTED = " ".join(words(13, seed=5))


@pytest.mark.parametrize(
    ("line", "left"),
    [
        (
            f'- Round once, at the very end, as in: "{QUOTED}".',
            '- Round once, at the very end, as in: "…".',
        ),
        (f"- Round once. Seen in {QUOTED}. Keep the sign.", "- Round once. Keep the sign."),
        (f"When {QUOTED}, say yes.", ""),
        (
            f"2. {QUOTED.title()} is where you divide by the year's first sum (m²).",
            "2. … is where you divide by the year's first sum (m²).",
        ),
        ("Round once.", "Round once."),
        ("", ""),
    ],
)
def test_a_copy_is_cut_out_of_its_line(line, left):
    copies = CopyIndex([{"question": QUOTED}])
    assert copies.cut(line) == (left, (line,) if line != left else ())
    around = f"Before.\n{line}\n\nAfter."
    assert copies.cut(around)[0] == "\n".join(
        ["Before.", *([left] if left or not line else []), "", "After."]
    )


def test_a_copy_over_several_lines_is_cut_out_of_each():
    parts = LONG.split()
    text = f"Answer in a word, and do so {' '.join(parts[:7])}\n{' '.join(parts[7:20])}\nBe brief."
    left, lines = CopyIndex([{"question": LONG}]).cut(text)
    assert left == "Answer in a word, and do so …\nBe brief."
    assert lines == tuple(text.split("\n")[:2])
    assert CopyIndex([{"question": LONG}]).cut(text, [LONG]) == (text, ())


def test_a_copy_over_several_sentences_is_cut_out_of_each():
    ours = "Before anything else is done, write down that"
    line = f"{ours} {' '.join(words(4))}. {' '.join(words(13)[4:])}. Then check it."
    copies = CopyIndex([{"question": " ".join(words(13))}])
    assert copies.cut(line)[0] == f"{ours} … Then check it."


@given(
    st.lists(
        st.sampled_from([*words(40)[:20], ". ", "\n", "- ", ", ", "利润", "e\u0301", "½"]),
        max_size=80,
    )
)
@settings(max_examples=100)
def test_nothing_copied_is_left_and_nothing_else_is_touched(parts):
    text = " ".join(parts)
    copies = CopyIndex([{"question": LONG}], 4)
    left, lines = copies.cut(text)
    assert not copies.copied(left)
    assert (left == text) == (not lines) == (not copies.copied(text))
    assert set(text.split("\n")) >= set(lines) and len(left) <= len(text)


def test_exempt_text_excuses_its_own_runs_only():
    copies = CopyIndex([{"question": LONG}])
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
def test_inputs_labels_and_what_they_hold_count(example):
    assert CopyIndex([example]).copied(LONG) == LONG


def test_images_and_numbers_are_no_text():
    picture = dspy.Image(url="data:image/png;base64," + "/".join(words(30)))
    assert len(CopyIndex([{"picture": picture, "n": 3, "nothing": None}])) == 0


def test_scripts_without_spaces_count_by_character():
    text = "利润等于收入减去成本再除以收入的百分比"
    copies = CopyIndex([{"question": text}])
    assert copies.copied(f"规则：{text[:14]}。")
    assert not copies.copied(text[:12])


def test_no_examples_and_no_text_are_no_copies():
    assert not CopyIndex([]).copied(LONG)
    assert not CopyIndex([{"question": LONG}]).copied("")


@given(
    st.integers(0, 27),
    st.integers(1, 40),
    st.text(alphabet="xyz ", max_size=40),
    st.integers(1, 16),
)
@settings(max_examples=60)
def test_a_slice_is_copied_exactly_when_it_is_longer_than_allowed(start, size, around, most):
    copies = CopyIndex([{"question": LONG}], most)
    part = LONG.split()[start : start + size]
    assert bool(copies.copied(f"{around} {' '.join(part)} {around}")) == (len(part) > most)
