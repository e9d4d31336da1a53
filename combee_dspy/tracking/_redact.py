"""Takes keys out of text before it reaches a file, a store or a screen."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms.redact import MASK, SECRET_NAME, forms_of, mask, secret_variables, secrets_of
from combee_dspy.tracking._text import beginning, one_line, shown

__all__ = ["Redactor", "known_secrets", "lm_secrets", "store_error"]


# Between texts that are searched for keys in one go. `shown` leaves no NUL in a text, so this occurs in none, and no
# pattern of a key matches a NUL with white space on both sides. ASCII, because other text takes several times as long
# to search.
_BETWEEN = "\n\0\n"

# Characters beyond a cut that are searched at least. A key that is longer is told by its beginning.
_REACH = 512


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
        self._secrets = forms_of({*secrets, *known_secrets()})
        self._reach = max([_REACH, *map(len, self._secrets)])

    def text(self, text: str) -> str:
        """Return ``text`` without secrets."""
        return mask(text, self._secrets)

    def line(self, text: str, limit: int = 120) -> str:
        """Return text as :func:`~combee_dspy.tracking._text.one_line` does, without secrets.

        They are looked for first: of one that is cut, the rest would not be found.
        """
        return one_line(self.text(text), limit)

    def cells(self, values: Sequence[Any], limit: int) -> list[str]:
        """Return data as :func:`~combee_dspy.tracking._text.show` does, without secrets, those at a cut included.

        Args:
            values: Any data.
            limit: Characters of each at most.
        """
        wholes = [shown(value) for value in values]
        if max(map(len, wholes), default=0) <= limit:
            return self._each(wholes)
        # What lies far beyond the cut is not searched: it may be a hundred times as much.
        heads = [whole[: limit + self._reach] for whole in wholes]
        return [self._cut(text, limit, len(whole)) for text, whole in zip(self._each(heads), wholes, strict=True)]

    def _each(self, texts: list[str]) -> list[str]:
        bare = self.text(_BETWEEN.join(texts)).split(_BETWEEN)
        # Of another length where a secret holds what stands between them.
        return bare if len(bare) == len(texts) else [self.text(text) for text in texts]

    def _cut(self, text: str, limit: int, size: int) -> str:
        if size > limit + self._reach:
            # Its end may be the beginning of a secret, and is shown nowhere: much may have been removed before it.
            return beginning(text[: -self._reach], limit, size)
        return text if min(size, len(text)) <= limit else beginning(text, limit, size)

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


def store_error(uri: object, problem: str, error: Exception, remedy: str) -> ArgumentValueError:
    """Return what says that an MLflow store cannot be used, without the password that its address may hold.

    To be raised ``from None``: MLflow's own message quotes the address, and a traceback would show it.

    Args:
        uri: The store's address; ``None`` for the one that is set for MLflow.
        problem: What is wrong.
        error: What MLflow said.
        remedy: What to do.
    """
    redactor = Redactor()
    address = None if uri is None else redactor.text(str(uri))
    # Before the cut: of a secret that is cut, the rest would not be found.
    return ArgumentValueError("tracking_uri", address, f"{problem}: {redactor.text(str(error))[:300]}", remedy)
