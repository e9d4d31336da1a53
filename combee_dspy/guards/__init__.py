"""What no edit may break: a token budget, protected rules, placeholders, and no copies of training examples."""

from combee_dspy.guards._check import GuardInput, check, without_copies
from combee_dspy.guards._copies import CopyIndex
from combee_dspy.guards._guards import Guards, check_program, guard_notes
from combee_dspy.guards._text import bullets, own_description, placeholders, read_section, write_section

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
    "without_copies",
    "write_section",
]
