"""Likeness by words: what is about one thing meets, and chance comes from the stream alone."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.lessons import about_none, deal_alike, nearest, word_vectors

SUBJECTS = (
    "anchor",
    "basket",
    "candle",
    "drum",
    "engine",
    "flute",
    "globe",
    "harp",
    "kettle",
    "ladder",
)
FORMS = (
    "Every {} gets code {}.",
    "Give {1} whenever a case is about a {0}.",
    "Is it a {}? Then {} applies.",
)
TEXTS = [
    form.format(subject, f"D{place}") for place, subject in enumerate(SUBJECTS) for form in FORMS
]


def test_wordings_about_one_subject_meet() -> None:
    groups = deal_alike(TEXTS, range(len(TEXTS)), 6, random.Random(0))
    of = {place: number for number, group in enumerate(groups) for place in group}
    met = [
        of[3 * subject] == of[3 * subject + form]
        for subject in range(len(SUBJECTS))
        for form in (1, 2)
    ]
    assert sum(met) >= 0.8 * len(met)


def test_groups_are_within_the_limit_and_hold_each_text_once() -> None:
    groups = deal_alike(TEXTS, range(len(TEXTS)), 5, random.Random(1))
    places = [place for group in groups for place in group]
    assert len(places) == len(set(places)) and max(map(len, groups)) <= 5


def test_only_groups_with_a_fresh_text_are_dealt() -> None:
    groups = deal_alike(TEXTS, [0], 6, random.Random(0))
    assert [0 in group for group in groups] == [True]
    assert not deal_alike(TEXTS, [], 6, random.Random(0))
    assert not deal_alike(["Alone."], [0], 6, random.Random(0))


def test_the_same_stream_deals_the_same_groups_and_another_one_others() -> None:
    mixed = [f"{first} {second}" for first in SUBJECTS for second in SUBJECTS]
    first, again, other = (
        deal_alike(mixed, range(len(mixed)), 4, random.Random(seed)) for seed in (3, 3, 4)
    )
    assert first == again != other


def test_the_nearest_text_shares_most_words() -> None:
    assert nearest("A harp with a broken string", TEXTS, 3) and all(
        "harp" in TEXTS[place] for place in nearest("A harp with a broken string", TEXTS, 2)
    )
    assert nearest("zzz", TEXTS, 3) == [] and nearest("harp", [], 3) == []


def test_an_example_is_about_what_shares_most_with_it_and_nearly_as_much() -> None:
    texts = [
        "A tent gets T4.",
        "Read every message with care.",
        "The tent gets T4.",
        "A lamp gets L7.",
    ]
    examples = ["The tent leaks. Wrong: a tent gets T4.", "The lamp flickers. Wrong: it gets L7."]
    assert about_none(texts, examples) == [1]
    assert about_none(texts, []) == [0, 1, 2, 3]
    assert about_none([], examples) == []
    assert about_none(texts, ["zzz"]) == [0, 1, 2, 3], "it shares no word with any"


@given(
    st.lists(st.sampled_from(TEXTS), unique=True, min_size=1, max_size=8),
    st.lists(st.sampled_from(TEXTS), max_size=8),
)
def test_what_is_nearest_to_an_example_is_never_about_none(
    texts: list[str], examples: list[str]
) -> None:
    needless = set(about_none(texts, examples))
    held = {texts.index(example) for example in examples if example in texts}
    assert not held & needless
    assert needless <= set(range(len(texts)))


def test_a_row_has_length_one_or_no_word() -> None:
    vectors = word_vectors([*TEXTS, "?!"]).toarray()
    assert [round(float(row @ row), 6) for row in vectors] == [1.0] * len(TEXTS) + [0.0]
