"""What can go wrong with a cluster."""

from __future__ import annotations

from combee_dspy.exceptions import ServiceError

__all__ = ["RayClusterError"]


class RayClusterError(ServiceError):
    """A Ray cluster cannot be used: it cannot be reached, or its workers do not come up.

    Args:
        problem: What is wrong.
        remedy: What to do.
    """

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{problem}. {remedy}")
