"""What no edit may break: a token budget, protected rules, placeholders, and no copies of training examples."""

from combee_dspy.guards._check import GuardInput, check, check_form
from combee_dspy.guards._copies import CopyIndex, copied_in_demonstrations
from combee_dspy.guards._guards import Guards, guard_notes, validate_against
from combee_dspy.guards._placeholders import own_description, placeholders

__all__ = [
    "CopyIndex",
    "GuardInput",
    "Guards",
    "check",
    "check_form",
    "copied_in_demonstrations",
    "guard_notes",
    "own_description",
    "placeholders",
    "validate_against",
]
