"""What no edit may break: a token budget, protected rules, placeholders, and no copies of training examples."""

from combee_dspy.guards._copies import CopyIndex
from combee_dspy.guards._guards import (
    GuardInput,
    Guards,
    bullets,
    check,
    check_program,
    guard_notes,
    own_description,
    placeholders,
    read_section,
    with_bullets,
    without_copies,
    write_section,
)

__all__ = [
    "CopyIndex",
    "GuardInput",
    "Guards",
    "bullets",
    "check",
    "check_program",
    "guard_notes",
    "own_description",
    "placeholders",
    "read_section",
    "with_bullets",
    "without_copies",
    "write_section",
]
