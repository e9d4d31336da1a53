"""Takes keys out of text before it reaches a file, a store or a screen."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from combee_dspy.lms.redact import MASK, SECRET_NAME, mask, secret_variables, secrets_of

__all__ = ["Redactor", "known_secrets", "lm_secrets"]


def known_secrets(environ: Mapping[str, str] | None = None) -> frozenset[str]:
    """Return the secrets this process can see, to be kept out of what is written.

    Values of environment variables whose name says that they are one (see
    :func:`combee_dspy.lms.redact.secret_variables`), and the keys that DSPy is
    configured with: of its LMs, and under a name that says so.
    """
    settings = getattr(sys.modules.get("dspy"), "settings", None)
    keys: set[str] = set()
    for name, value in settings.copy().items() if settings is not None else ():
        if isinstance(value, str) and SECRET_NAME.search(str(name)):
            keys.add(value)
        else:
            keys |= lm_secrets(value)
    return secret_variables(environ) | keys


def lm_secrets(lm: object) -> frozenset[str]:
    """Return the keys that an LM was made with; none for what is no LM."""
    # A key that is part of the model's name is a placeholder, such as a local server's.
    return frozenset(key for key in secrets_of(lm) if key not in str(getattr(lm, "model", "")))


class Redactor:
    """Removes secrets from text: those given, those known when it was made, and whatever is shaped as a key.

    Immutable, so it may be used from any thread.

    Args:
        secrets: Values to remove; see :func:`known_secrets`.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = frozenset(secrets) | known_secrets()

    def text(self, text: str) -> str:
        """Return ``text`` without secrets."""
        return mask(text, self._secrets)

    def data(self, value: Any) -> Any:
        """Return plain data without secrets: by the name of a key, and in every string."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                str(key): MASK if item is not None and SECRET_NAME.search(str(key)) else self.data(item)
                for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.data(item) for item in value]
        if value is None or isinstance(value, (bool, int, float)):
            return value
        return self.text(repr(value))
