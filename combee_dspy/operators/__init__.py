"""From lessons and rollouts to an edit of the program."""

from combee_dspy.operators._base import LineEvidence, Operator, OperatorInput
from combee_dspy.operators._delete import Delete
from combee_dspy.operators._demonstrable import NotJSON, demonstration_of
from combee_dspy.operators._encoding import decode_demonstrations, encode_demonstrations
from combee_dspy.operators._few_shot_swap import FewShotSwap
from combee_dspy.operators._fields import decode_fields, describe_fields, encode_fields, field_descriptions
from combee_dspy.operators._insert import Insert
from combee_dspy.operators._instruction_channel import InstructionChannel
from combee_dspy.operators._reorder import Reorder
from combee_dspy.operators._rephrase import Rephrase
from combee_dspy.operators._rewrite import Rewrite
from combee_dspy.operators._weights import (
    OperatorOutcome,
    draw_operators,
    operator_weights,
)

__all__ = [
    "Delete",
    "FewShotSwap",
    "Insert",
    "InstructionChannel",
    "LineEvidence",
    "NotJSON",
    "Operator",
    "OperatorInput",
    "OperatorOutcome",
    "Reorder",
    "Rephrase",
    "Rewrite",
    "decode_demonstrations",
    "decode_fields",
    "demonstration_of",
    "describe_fields",
    "draw_operators",
    "encode_demonstrations",
    "encode_fields",
    "field_descriptions",
    "operator_weights",
]
