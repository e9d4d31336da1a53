"""A queue of similar tasks over one pool of workers: ``compile_many``."""

from combee_dspy.many._compile import compile_many
from combee_dspy.many._records import Task, TaskResult
from combee_dspy.many._shapes import FULL, HYBRID_BELOW, SHAPES, Shape, ShapeDecision, choose_shape

__all__ = [
    "FULL",
    "HYBRID_BELOW",
    "SHAPES",
    "Shape",
    "ShapeDecision",
    "Task",
    "TaskResult",
    "choose_shape",
    "compile_many",
]
