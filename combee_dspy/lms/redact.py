"""Keeping keys out of messages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["scrub", "secrets_of"]

_MASK = "[redacted]"
_SHORTEST = 8
_ENV_NAME = re.compile(r"_(?:API_KEY|API_TOKEN|ACCESS_TOKEN|SECRET_ACCESS_KEY|AUTH_TOKEN)$|^HF_TOKEN$", re.IGNORECASE)
_SECRET_NAME = re.compile(r"key|token|secret|password|authorization|credential", re.IGNORECASE)
_SHAPES: tuple[tuple[re.Pattern[str], str], ...] = (
    # A digit or twenty characters tell a credential from a word ("Bearer authentication").
    (re.compile(r"\b(Bearer|Basic)\s+(?:(?=\S*\d)[\w.~+/=*-]{6,}|[\w.~+/=*-]{20,})", re.I), rf"\1 {_MASK}"),
    # OpenAI, Anthropic, DeepSeek, OpenRouter; services show a refused key with stars in its middle.
    (re.compile(r"\b(?:sk|rk|pk)-[\w*.-]{6,}"), _MASK),
    (re.compile(r"\b(?:hf|gsk|xai|pplx|fw|nvapi|r8)[_-][\w*-]{12,}"), _MASK),
    (re.compile(r"\bAIza[\w*-]{20,}"), _MASK),
    (re.compile(r"\bAKIA[A-Z0-9]{12,}\b"), _MASK),
    (re.compile(r"(://)[^/\s:@]+:[^/\s@]+@"), rf"\1{_MASK}@"),
    (
        re.compile(r"(\b(?:x-)?api[-_ ]?key\b|[?&]key)(['\"]?\s*[:=]\s*['\"]?)[^\s'\",;&)}\]]{4,}", re.IGNORECASE),
        rf"\1\2{_MASK}",
    ),
)


def scrub(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text without the keys in it.

    Removed are the secrets given, the values of environment variables that
    hold keys (``OPENAI_API_KEY`` and its like), and whatever is shaped as a
    key: ``Bearer …``, ``sk-…``, ``api_key=…``, user and password in a URL.
    A value of fewer than 8 characters is left alone: it is a placeholder
    such as ``none``, and removing it would garble the message.

    Args:
        text: A message that may be shown or logged.
        secrets: Values to remove, for example :func:`secrets_of` an LM.
    """
    known = {secret for secret in secrets if len(secret) >= _SHORTEST}
    known |= {value for name, value in os.environ.items() if len(value) >= _SHORTEST and _ENV_NAME.search(name)}
    # Longest first: a key may contain another.
    for secret in sorted(known, key=len, reverse=True):
        text = text.replace(secret, _MASK)
    for shape, mask in _SHAPES:
        text = shape.sub(mask, text)
    return text


def secrets_of(lm: object) -> tuple[str, ...]:
    """Return the keys that an LM was constructed with, for :func:`scrub`."""
    kwargs = getattr(lm, "kwargs", None)
    return tuple(_secrets_in(kwargs)) if isinstance(kwargs, Mapping) else ()


def _secrets_in(values: Mapping[Any, Any]) -> Iterable[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            # Every header may carry a credential, whatever its name.
            inside = "header" in str(name).lower()
            yield from (text for text in value.values() if isinstance(text, str)) if inside else _secrets_in(value)
        elif isinstance(value, str) and _SECRET_NAME.search(str(name)):
            yield value
