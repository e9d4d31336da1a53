"""From lessons and rollouts to an edit of the program."""

from combee_dspy.operators._base import Operator, OperatorInput, guard_input, without_copies
from combee_dspy.operators._components import (
    apply_components,
    edit_components,
    operator_input,
    predictor_runs,
    seed_components,
    visible,
)
from combee_dspy.operators._encoding import (
    decode_demonstrations,
    decode_fields,
    encode_demonstrations,
    encode_fields,
)
from combee_dspy.operators._few_shot_swap import FewShotSwap
from combee_dspy.operators._insert import Insert
from combee_dspy.operators._instruction_channel import InstructionChannel
from combee_dspy.operators._reorder import Reorder
from combee_dspy.operators._rephrase import Rephrase
from combee_dspy.operators._rewrite import Rewrite

__all__ = [
    "FewShotSwap",
    "Insert",
    "InstructionChannel",
    "Operator",
    "OperatorInput",
    "Reorder",
    "Rephrase",
    "Rewrite",
    "apply_components",
    "decode_demonstrations",
    "decode_fields",
    "edit_components",
    "encode_demonstrations",
    "encode_fields",
    "guard_input",
    "operator_input",
    "predictor_runs",
    "seed_components",
    "visible",
    "without_copies",
]
