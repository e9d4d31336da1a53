from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.tracking.slug import METRIC_PART, PROMPT_NAME, from_slug, shorten, to_slug

ALLOWED = st.sampled_from([METRIC_PART, PROMPT_NAME, frozenset(), frozenset("-abc")])
NAMES = st.text() | st.text(alphabet="ab-5bd[]0f@.")


@given(NAMES, ALLOWED)
def test_there_and_back(name: str, allowed: frozenset[str]) -> None:
    assert from_slug(to_slug(name, allowed)) == name


@given(NAMES)
def test_a_slug_fits_what_mlflow_allows(name: str) -> None:
    assert re.fullmatch(r"[a-zA-Z0-9_.-]*", to_slug(name, PROMPT_NAME))
    assert re.fullmatch(r"[a-zA-Z0-9_-]*", to_slug(name, METRIC_PART))


@given(st.text(alphabet="ab-5bd0fF."))
def test_any_text_is_read_as_a_name_or_refused(slug: str) -> None:
    try:
        name = from_slug(slug)
    except ArgumentValueError as error:
        assert error.argument == "slug"
    else:
        assert from_slug(to_slug(name, PROMPT_NAME)) == name


def test_a_plain_path_stays_readable() -> None:
    assert to_slug("steps[0].predict") == "steps-5b-0-5d-.predict"
    assert to_slug("agent.react_1") == "agent.react_1"
    assert to_slug("few-shot") == "few--shot"


@pytest.mark.parametrize("slug", ["-", "a-b", "-2d-", "-05b-", "-110000-", "-5B-", "--a-"])
def test_what_is_no_slug_is_refused(slug: str) -> None:
    with pytest.raises(ArgumentValueError):
        from_slug(slug)


def test_shortened_slugs_differ_and_fit() -> None:
    first, second = (shorten("a" * 300 + end, 80) for end in "xy")
    assert first != second
    assert len(first) == len(second) == 80
    assert shorten("short", 80) == "short"
