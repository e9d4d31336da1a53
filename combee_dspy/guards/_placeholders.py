"""Placeholders: what a program fills in, or reads back, by name."""

from __future__ import annotations

import re

__all__ = ["own_description", "placeholders"]

_PLACEHOLDER = re.compile(r"\{[^\W\d]\w*\}|</?[^\W\d][\w.-]*\s*/?>")


def placeholders(text: str) -> tuple[str, ...]:
    """Return the placeholders of a text in order, each once: ``{identifier}`` and ``<tag>``, ``</tag>``.

    A program may fill them in or parse them, so an edit must not lose one that
    the seed's text has. Those that only learned text has are nobody's contract.
    """
    return tuple(dict.fromkeys(_PLACEHOLDER.findall(text)))


def own_description(name: str, text: str) -> str:
    """Return a field's description without DSPy's stand-in ``${name}``, which no LM is shown."""
    return "" if text == f"${{{name}}}" else text
