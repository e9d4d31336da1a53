"""Where a strategy's LM calls stand in the run's schedule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dspy

from combee_dspy.records import FailedCall, Role
from combee_dspy.rollouts import Place, placed
from combee_dspy.strategies import PredictFn

__all__ = ["within"]


def within(predict: PredictFn, place: str, iteration: int) -> PredictFn:
    """Return a way to the LM whose calls stand under one key, the same in every run that does the same.

    Args:
        predict: The way to the LM.
        place: What tells these calls apart from others of the iteration.
        iteration: The iteration.
    """
    here = Place("reflection", f"{iteration}/{place}", iteration=iteration)

    def placed_predict(
        signature: type[dspy.Signature], inputs: Sequence[dict[str, Any]], *, role: Role = "proposer"
    ) -> Sequence[dspy.Prediction | FailedCall]:
        with placed(here):
            return predict(signature, inputs, role=role)

    return placed_predict
