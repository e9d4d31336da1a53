"""What a program returned, as its metric has seen it."""

from __future__ import annotations

from typing import Any

import dspy

from combee_dspy.records import Rollout

BARE = "prediction"
"""The field of a rollout in which an output stands that is no ``dspy.Prediction``."""


def output_of(rollout: Rollout) -> Any:
    """Return what the program of a rollout returned; ``None`` where it failed.

    A ``dspy.Prediction``, or whatever else the program returns, such as a tuple.
    """
    if rollout.prediction is None:
        return None
    return rollout.prediction[BARE] if rollout.bare else dspy.Prediction(**rollout.prediction)
