"""From lessons and rollouts to an edit of the program."""

from combee_dspy.operators._base import Operator, OperatorInput

__all__ = ["Operator", "OperatorInput"]
