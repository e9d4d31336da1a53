"""The latest outcomes of one version, by which it is taken back."""

from __future__ import annotations

from collections import deque

from combee_strategist.canary._registry import CanaryPlan

__all__ = ["Window"]


class Window:
    """The latest outcomes of one version, by which it is taken back."""

    def __init__(self, plan: CanaryPlan) -> None:
        self._plan = plan
        self.errors: deque[bool] = deque(maxlen=plan.window)
        self.scores: deque[float] = deque(maxlen=plan.window)

    def breach(self, beside: Window | None) -> str | None:
        """Return which bound was breached, in words.

        Failures count beyond the share that another version has beside it.
        """
        plan = self._plan
        least = plan.window // 4
        errors, scores, others = (
            list(self.errors),
            list(self.scores),
            list(beside.errors) if beside else [],
        )
        most = plan.errors + (sum(others) / len(others) if others else 0.0)
        if len(errors) >= least and sum(errors) / len(errors) > most:
            return f"{sum(errors)} of the last {len(errors)} requests failed, more than {most:.0%}"
        if (
            plan.score is not None
            and len(scores) >= least
            and sum(scores) / len(scores) < plan.score
        ):
            mean = sum(scores) / len(scores)
            return f"the mean of the last {len(scores)} scores is {mean:.3f}, below {plan.score}"
        return None
