"""What no edit may break: the token budget, protected rules, placeholders. And no copies."""

from combee_dspy.guards._copies import CopyIndex
from combee_dspy.guards._guards import (
    GuardInput,
    Guards,
    check,
    check_program,
    guard_notes,
    placeholders,
)

__all__ = [
    "CopyIndex",
    "GuardInput",
    "Guards",
    "check",
    "check_program",
    "guard_notes",
    "placeholders",
]
