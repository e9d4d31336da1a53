from __future__ import annotations

import pytest

from combee_dspy.reflections import NearDuplicates, normalised


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Round to two decimals.", "round to  two decimals"),
        ("**Always** give a unit!", "Always give a unit"),
        ("Don't guess", "don’t guess."),
    ],
)
def test_wording_alike_is_equal(first, second):
    assert normalised(first) == normalised(second)


LONG = (
    "When the question asks for a margin divide the income by the revenue and then give the result"
    " as a percentage"
)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("ROI = (gain - cost) / cost", "ROI = gain - cost / cost"),
        (
            "Current ratio = assets / liabilities of the year",
            "Current ratio = liabilities / assets of the year",
        ),
        ("x*y", "x, y"),
        ("a != b", "a = b"),
        (LONG + " with 2 decimals", LONG + " with 4 decimals"),
        (LONG + " and always round", LONG + " and never round"),
        ("Use revenue, not assets", "Use assets, not revenue"),
        ("1.5 percent", "15 percent"),
    ],
)
def test_lessons_that_differ_in_what_counts_are_both_kept(first, second):
    texts_so_far = NearDuplicates(0.8)
    assert [texts_so_far.place(first), texts_so_far.place(second)] == [0, 1]


@pytest.mark.parametrize(
    "second", [LONG.lower() + ".", LONG + " please", LONG.replace("result", "outcome")]
)
def test_near_duplicates_are_found(second):
    texts_so_far = NearDuplicates(0.8)
    assert [texts_so_far.place(LONG), texts_so_far.place(second)] == [0, 0]


def test_threshold_one_drops_equal_lessons_only():
    texts_so_far = NearDuplicates(1.0)
    assert [texts_so_far.place(LONG + end) for end in ("", " please", "!")] == [0, 1, 0]


def test_a_repeated_text_has_the_number_of_its_first_one():
    texts_so_far = NearDuplicates(0.8)
    words = (
        "give the growth rate as a percentage with two decimals and no sign when a rate is"
        " asked for"
    )
    texts = [
        words,
        "Divide a / b.",
        f"{words} here",
        words.upper(),
        "Divide b / a.",
        "divide a / b",
    ]
    assert [texts_so_far.place(text) for text in texts] == [0, 1, 0, 0, 2, 1]
    assert texts_so_far.place(words) == 0
    assert texts_so_far.place("Something else.") == 3
