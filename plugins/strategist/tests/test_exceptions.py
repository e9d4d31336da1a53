"""Errors say what they are about, and come out of another process as they went in."""

from __future__ import annotations

import pickle

import pytest

from combee_dspy.exceptions import CombeeError
from combee_strategist.exceptions import (
    CanaryError,
    PlanGapsError,
    PromotionRefusedError,
    RegistryError,
)

ERRORS = [
    (CanaryError("something happened"), ["something happened"]),
    (PromotionRefusedError("qa", ("12 pairs of 200", "1 hour of 24")), ["qa", "1 hour of 24"]),
    (RegistryError("qa", "connection refused"), ["qa", "connection refused"]),
    (PlanGapsError(["task.name is missing", "budget is missing"]), ["task.name", "budget"]),
]


@pytest.mark.parametrize(("error", "parts"), ERRORS, ids=lambda value: type(value).__name__)
def test_an_error_says_what_it_is_about_and_is_the_same_in_another_process(
    error: CombeeError, parts: list[str]
) -> None:
    assert all(part in str(error) for part in parts)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - made here
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
