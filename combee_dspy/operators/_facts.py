"""What a rewording lost or invented, as far as code can see it. Pure."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter

from combee_dspy.guards import placeholders

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_LITERAL = re.compile(r"`([^`\n]+)`|\"([^\"\n]+)\"|“([^”\n]+)”")
# Abbreviations, and names as code writes them: EBITDA, snake_case, camelCase.
_NAME = re.compile(r"\b(?:[A-Z][A-Z0-9]+|\w+_\w+|[a-z]+[A-Z]\w*)\b")
_OPERATOR = re.compile(r"[=*^<>≤≥×÷%$€£]")


def lost_fact(before: str, after: str, labels: tuple[str, ...] = ()) -> str:
    """Return what a rewording lost or invented, as the rest of a sentence, or no text.

    Compared are numbers, in both directions; placeholders, quoted and marked-up texts,
    abbreviations, names as code writes them, labels of the task, and how often each operator of a
    formula occurs.
    """
    before, after = (unicodedata.normalize("NFC", text) for text in (before, after))
    old_numbers, new_numbers = set(_NUMBER.findall(before)), set(_NUMBER.findall(after))
    if lost_numbers := old_numbers - new_numbers:
        return f"lost the number {min(lost_numbers)}"
    if invented := new_numbers - old_numbers:
        return f"invented the number {min(invented)}"
    lost = [f"placeholder {name}" for name in placeholders(before) if name not in after]
    facts = [
        ("quoted text", text) for groups in _LITERAL.findall(before) for text in groups if text
    ]
    facts += [("name", name) for name in _NAME.findall(before)]
    facts += [("label", label) for label in labels if _stands_in(label, before)]
    lost += [f"{what} {fact!r:.60}" for what, fact in facts if not _stands_in(fact, after)]
    if lost:
        return f"lost the {lost[0]}"
    gone = Counter(_OPERATOR.findall(before)) - Counter(_OPERATOR.findall(after))
    return f"lost the operator {min(gone)!r} of a formula" if gone else ""


def _stands_in(label: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(label)}(?!\w)", text) is not None
