"""Reads options of the form ``name=value``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from combee_dspy.exceptions import ArgumentValueError


def split_pairs(option: str, items: Sequence[str]) -> dict[str, str]:
    """Return the values by name, as texts.

    Args:
        option: The option's name, for errors.
        items: What the user gave.

    Raises:
        ArgumentValueError: One is not ``name=value``, or repeats a name.
    """
    pairs: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise ArgumentValueError(option, item, "is not name=value", "For example: split=train.")
        if name in pairs:
            problem = f"gives {name} a second value"
            raise ArgumentValueError(option, item, problem, "Give each name once.")
        pairs[name] = value
    return pairs


def read_pairs(option: str, items: Sequence[str]) -> dict[str, Any]:
    """Return the values by name: what is JSON as its value, anything else as a text.

    Raises what :func:`split_pairs` does.
    """
    return {name: _value(text) for name, text in split_pairs(option, items).items()}


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
