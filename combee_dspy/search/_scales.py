"""What is said of a metric that gives more than 1."""

from __future__ import annotations

import logging

from combee_dspy.evaluation import DEFAULT_PERFECT_SCORE
from combee_dspy.events import WarningRaised
from combee_dspy.journal import RunLog

__all__ = ["ScaleWarning"]

logger = logging.getLogger("combee_dspy")


class ScaleWarning:
    """Warns once of a score above the default of ``perfect_score``; never where another was
    given.
    """

    def __init__(self, log: RunLog, perfect_score: float) -> None:
        self._log = log
        self._is_due = perfect_score == DEFAULT_PERFECT_SCORE

    def look(self, score: float) -> None:
        """Look at the score of a new rollout."""
        if not self._is_due or score <= DEFAULT_PERFECT_SCORE:
            return
        self._is_due = False
        text = (
            f"The metric gave {score:g}, above the default perfect_score=1. "
            "A success is now taken to score the next power of ten, such as 10 or 100. "
            "Give Combee(perfect_score=…) the metric's highest score."
        )
        logger.warning("%s", text)
        self._log.emit(WarningRaised(text))
