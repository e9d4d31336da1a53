"""Takes keys out of text before it reaches a file, a store or a screen."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from combee_dspy.lms.redact import scrub, secrets_of

__all__ = ["Redactor", "known_secrets"]

_HIDDEN = "[redacted]"
_SECRET_NAME = re.compile(r"(?i)api_?key|secret|password|passwd|credential|token$|access_?key")
_SHORTEST = 8
# What every shape that scrub() knows must contain, in lower case. Looking for these costs a few microseconds
# a text; the shapes themselves cost a hundred, for each of several texts of every rollout.
_HINTS = (
    *("bearer", "basic", "sk-", "rk-", "pk-", "hf_", "hf-", "gsk", "xai", "pplx", "fw_", "fw-", "nvapi", "r8"),
    *("aiza", "akia", "://", "key"),
)


def known_secrets(environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """Return the secrets this process can see, to be kept out of what is written.

    Values of environment variables whose name says that they are one, and the
    keys of the LM that DSPy is configured with. Values of fewer than 8
    characters are left out: removing them would shred ordinary text.
    """
    variables = os.environ if environ is None else environ
    found = {value for name, value in variables.items() if _SECRET_NAME.search(name)}
    lm = getattr(getattr(sys.modules.get("dspy"), "settings", None), "lm", None)
    # A key that is part of the model's name is a placeholder, such as a local server's.
    found.update(key for key in secrets_of(lm) if key not in str(getattr(lm, "model", "")))
    return frozenset(value for value in found if len(value) >= _SHORTEST)


class Redactor:
    """Removes secrets from text: those given, and what :func:`combee_dspy.lms.redact.scrub` removes.

    Immutable, so it may be used from any thread.

    Args:
        secrets: Values to remove; see :func:`known_secrets`.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = frozenset(secrets) | known_secrets()

    def text(self, text: str) -> str:
        """Return ``text`` without secrets."""
        lowered = text.lower()
        if any(hint in lowered for hint in _HINTS) or any(secret in text for secret in self._secrets):
            return scrub(text, self._secrets)
        return text

    def data(self, value: Any) -> Any:
        """Return plain data without secrets: by the name of a key, and in every string."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                str(key): _HIDDEN if item is not None and _SECRET_NAME.search(str(key)) else self.data(item)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.data(item) for item in value]
        if value is None or isinstance(value, (bool, int, float)):
            return value
        return self.text(repr(value))
