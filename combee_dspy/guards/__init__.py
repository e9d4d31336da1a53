"""What no edit may break: a token budget, protected rules, placeholders, no copies."""

from combee_dspy.guards._copies import CopyIndex
from combee_dspy.guards._guards import (
    GuardInput,
    Guards,
    check,
    check_program,
    guard_notes,
    own_description,
    placeholders,
)

__all__ = [
    "CopyIndex",
    "GuardInput",
    "Guards",
    "check",
    "check_program",
    "guard_notes",
    "own_description",
    "placeholders",
]
