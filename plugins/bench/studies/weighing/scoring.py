"""The metric of all tasks."""

from __future__ import annotations

import threading
from typing import Any

import dspy

from studies.weighing.prompts import FEEDBACK_RIGHT, FEEDBACK_WRONG


class Metric:
    """Compares a prediction with a row's label, says which code is right, and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self._lock = threading.Lock()

    def __call__(
        self, gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
    ) -> dspy.Prediction:
        """Return score and feedback; calls by GEPA's protocol for one predictor are not counted."""
        if pred_name is None:
            with self._lock:
                self.calls += 1
        right = str(pred.code) == str(gold.code)
        feedback = FEEDBACK_RIGHT if right else FEEDBACK_WRONG.format(code=gold.code)
        return dspy.Prediction(score=float(right), feedback=feedback)
