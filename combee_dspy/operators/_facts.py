"""What a rewording must not lose or invent, as far as code can tell."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from typing import Any, Literal, get_args, get_origin

from combee_dspy.guards import placeholders

__all__ = ["labels_of", "lost_fact"]

_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_LITERAL = re.compile(r"`([^`\n]+)`|\"([^\"\n]+)\"|“([^”\n]+)”")
# Abbreviations, and names as code writes them: EBITDA, snake_case, camelCase.
_NAME = re.compile(r"\b(?:[A-Z][A-Z0-9]+|\w+_\w+|[a-z]+[A-Z]\w*)\b")
_OPERATOR = re.compile(r"[=*^<>≤≥×÷%$€£]")


def labels_of(signature: Any) -> tuple[str, ...]:
    """Return the values that a signature's outputs may take, where it is known and their types list them."""
    found: list[str] = []
    for field in () if signature is None else signature.output_fields.values():
        if get_origin(field.annotation) is Literal:
            found.extend(str(option) for option in get_args(field.annotation))
    return tuple(dict.fromkeys(found))


def lost_fact(before: str, after: str, labels: tuple[str, ...] = ()) -> str:
    """Return what a rewording has lost or invented, as the rest of a sentence; empty where nothing shows.

    Compared are numbers, in both directions; placeholders, quoted and marked-up
    texts, abbreviations, names as code writes them, labels of the task, and how often
    each operator of a formula occurs. Synonyms of other words cannot be told from
    changed facts by code.
    """
    before, after = (unicodedata.normalize("NFC", text) for text in (before, after))
    numbers, kept = set(_NUMBER.findall(before)), set(_NUMBER.findall(after))
    if numbers - kept:
        return f"lost the number {min(numbers - kept)}"
    if kept - numbers:
        return f"invented the number {min(kept - numbers)}"
    lost = [f"placeholder {name}" for name in placeholders(before) if name not in after]
    facts = [("quoted text", text) for found in _LITERAL.findall(before) for text in found if text]
    facts += [("name", name) for name in _NAME.findall(before)]
    facts += [("label", label) for label in labels if _stands_in(label, before)]
    lost += [f"{what} {fact!r:.60}" for what, fact in facts if not _stands_in(fact, after)]
    if lost:
        return f"lost the {lost[0]}"
    gone = Counter(_OPERATOR.findall(before)) - Counter(_OPERATOR.findall(after))
    return f"lost the operator {min(gone)!r} of a formula" if gone else ""


def _stands_in(label: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(label)}(?!\w)", text) is not None
