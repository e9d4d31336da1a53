"""From lessons and rollouts to an edit of the program."""

from combee_dspy.operators._base import Operator, OperatorInput
from combee_dspy.operators._demonstrable import NotJSON, demonstration_of
from combee_dspy.operators._encoding import decode_demonstrations, encode_demonstrations
from combee_dspy.operators._few_shot_swap import FewShotSwap
from combee_dspy.operators._insert import Insert

__all__ = [
    "FewShotSwap",
    "Insert",
    "NotJSON",
    "Operator",
    "OperatorInput",
    "decode_demonstrations",
    "demonstration_of",
    "encode_demonstrations",
]
