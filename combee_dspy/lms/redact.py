"""Keeping keys and personal data out of messages, journals and prompts: the one place that knows
how they look.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any

from combee_dspy.lms._secret_shapes import MASK, SHAPES

__all__ = [
    "MASK",
    "SECRET_NAME",
    "forms_of",
    "make_mask",
    "mask",
    "personal",
    "scrub",
    "secret_variables",
    "secrets_of",
]

SECRET_NAME = re.compile(
    r"api[-_]?key|access[-_]?key|(?:^|[-_])key$|token$|secret|passw(?:or)?d|passphrase"
    r"|authorization|credential|(?:^|[-_])(?:pat|jwt|auth|pwd|dsn|cookie)$",
    re.IGNORECASE,
)
"""Finds the name of a value that is a secret: of an argument, a header, a parameter or an
environment variable.
"""

_SHORTEST = 8

# What is looked for first: nearly no text holds a mark and, if it does, a hint with that mark.
_MARKS = "_-/.:"
_ALL_HINTS = tuple(dict.fromkeys(hint for shape in SHAPES for hint in shape.hints))
_HINTS = [
    (mark, [hint for hint in _ALL_HINTS if mark == next(filter(hint.count, _MARKS), "")])
    for mark in ("", *_MARKS)
]


def mask(text: str, secrets: Collection[str] = ()) -> str:
    """Return a text without the given secrets, as they are, and without whatever is shaped as a
    key.

    Pure, and cheap for a text that holds neither. A secret of fewer than 8 characters is left
    alone: it is a placeholder such as ``none``, and removing it would garble the text.
    """
    # Plain loops: nearly no text holds anything, and generators would cost as much again as all the
    # looking.
    for secret in secrets:
        if secret in text:
            text = _without(text, secrets)
            break
    lowered = text.lower()
    if not _may_hold_key(lowered):
        return text
    for shape in SHAPES:
        if any(hint in lowered for hint in shape.hints):
            text = shape.pattern.sub(shape.mask, text)
    return text


def _may_hold_key(lowered: str) -> bool:
    for mark, hints in _HINTS:
        if mark in lowered:
            for hint in hints:
                if hint in lowered:
                    return True
    return False


def _without(text: str, secrets: Collection[str]) -> str:
    # Longest first: a key may contain another.
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, MASK)
    return text


def forms_of(secrets: Iterable[str]) -> frozenset[str]:
    """Return what secrets look like in a text, for :func:`mask`: without white space around them,
    and within JSON too.

    A variable that was read from a file often ends with a newline, which no service shows. JSON may
    stand within JSON: a service's answer that quotes the request, as a string of a line in a log.
    """
    stripped = {secret.strip() for secret in secrets}
    return frozenset(_in_json(_in_json(text for text in stripped if len(text) >= _SHORTEST)))


def _in_json(texts: Iterable[str]) -> set[str]:
    return {
        form
        for text in texts
        for form in (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    }


def scrub(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a text without the keys in it.

    Removed are the secrets given, the values of environment variables that hold keys
    (``OPENAI_API_KEY`` and its like), and whatever is shaped as a key: ``Bearer …``, ``sk-…``,
    ``api_key=…``, user and password in a URL. Where many texts are looked at, take :func:`forms_of`
    the secrets once and :func:`mask` each.

    Args:
        text: A message that may be shown or logged.
        secrets: Values to remove, for example :func:`secrets_of` an LM.
    """
    return mask(text, forms_of({*secrets, *secret_variables()}))


def secret_variables() -> frozenset[str]:
    """Return the values, of 8 characters or more, of environment variables whose name says that
    they are secrets.
    """
    # PWD is where a shell works.
    named = (
        value for name, value in os.environ.items() if name != "PWD" and SECRET_NAME.search(name)
    )
    return frozenset(value for value in named if len(value) >= _SHORTEST)


def secrets_of(lm: object) -> tuple[str, ...]:
    """Return the keys that an LM was constructed with, for :func:`scrub`: its own, and ``secrets``
    of its engine.
    """
    kwargs = getattr(lm, "kwargs", None)
    own = _secrets_in(kwargs) if isinstance(kwargs, Mapping) else ()
    of_engine = getattr(getattr(lm, "engine", None), "secrets", ())
    secrets = (*own, *(of_engine if isinstance(of_engine, tuple) else ()))
    return tuple(secret for secret in secrets if isinstance(secret, str))


def make_mask(lms: Iterable[object]) -> Callable[[str], str]:
    """Return :func:`mask` with the keys of some LMs, and those in environment variables."""
    keys = {key for lm in lms for key in secrets_of(lm)}
    return partial(mask, secrets=forms_of(keys | secret_variables()))


def _secrets_in(values: Mapping[Any, Any]) -> Iterable[str]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            # Every header may carry a credential, whatever its name.
            is_headers = "header" in str(name).lower()
            yield from value.values() if is_headers else _secrets_in(value)
        elif isinstance(value, str) and SECRET_NAME.search(str(name)):
            yield value


_SPACES = r"[ \u00a0\u2009\u202f]"
_EMAIL = re.compile(r"(?<![\w.+%'-])[\w.+%'-]{1,64}@(?:[\w-]{1,63}\.){1,8}[^\W\d_]{2,24}(?![\w@])")
_CARD = re.compile(rf"(?<![\w.,$€£-])\d(?:(?:{_SPACES}|-)?\d){{12,18}}(?![\w-]|[.,]\d)")
# Numbering plans: E.164 with its plus sign; North America's 3-3-4, whose parts begin with 2 to 9;
# elsewhere a leading zero and separators; and any number of 7 to 15 digits behind a word that
# announces one.
_GAP = rf"(?:{_SPACES}|[-.])"
_BEFORE, _AFTER = r"(?<![\w.,$€£/+-])", r"(?![\w%/-]|[.,]\d)"
_PHONES = [
    re.compile(
        rf"(?<![\w+.])\+\d{{1,3}}(?:(?:{_SPACES}|[-./])?(?:\(\d{{1,4}}\)|\d{{1,4}})){{2,6}}{_AFTER}"
    ),
    re.compile(
        rf"{_BEFORE}(?:1{_GAP})?(?:\([2-9]\d\d\){_SPACES}?|[2-9]\d\d[-.])[2-9]\d\d[-."
        rf" ]\d{{4}}{_AFTER}"
    ),
    # A slash stands behind the area code alone: with two of them it is a date.
    re.compile(
        rf"{_BEFORE}(?:\(0\d{{1,4}}\)|0\d{{1,4}})(?:/\d{{5,8}}|(?:(?:{_SPACES}|-)\d{{2,8}}){{1,4}}){_AFTER}"
    ),
    re.compile(
        r"(?i)\b(?:phone|telephone|tel|call|cell|mobile|fax|whatsapp|dial|ring)\b[^\d\n+(]{0,16}"
        rf"(\+?\(?\d[\d ().\-/\u00a0]{{5,18}}\d){_AFTER}"
    ),
]
_DIGITS = re.compile(r"\D")


def personal(patterns: Mapping[str, re.Pattern[str]]) -> Callable[[str], str]:
    """Return what puts marks where a text holds personal data: ``[email]``, ``[card]``,
    ``[phone]``, ``[name]``.

    Card numbers are 13 to 19 digits of a known network that pass Luhn's check (ISO/IEC 7812-1).
    What is written so that a pattern cannot tell it (digits as words, "name at example dot com")
    stays; `docs/results/reliability.md` says how often. The result is pure, and takes time in
    proportion to the text's length for its own patterns.

    Args:
        patterns: Further patterns by the name that stands in the mark; they are looked for first.
    """

    def redact(text: str) -> str:
        for name, pattern in patterns.items():
            text = pattern.sub(f"[{name}]", text)
        if "@" in text:
            text = _EMAIL.sub("[email]", text)
        if not any(map(str.isdigit, text)):
            return text
        text = _CARD.sub(_card, text)
        for pattern in _PHONES:
            text = pattern.sub(_phone, text)
        return text

    return redact


def _phone(match: re.Match[str]) -> str:
    number = match[match.re.groups]
    least = 9 if number[0] in "(0" else 7
    is_phone = least <= len(_DIGITS.sub("", number)) <= 15
    return match[0].removesuffix(number) + "[phone]" if is_phone else match[0]


def _card(match: re.Match[str]) -> str:
    """Mask digits of a network (3 to 6, or 2221 to 2720) that pass Luhn's check."""
    digits = _DIGITS.sub("", match[0])
    if digits[0] not in "3456" and not "2221" <= digits[:4] <= "2720":
        return match[0]
    checksum = sum(map(int, digits[::-2]))
    for digit in digits[-2::-2]:
        checksum += sum(divmod(2 * int(digit), 10))
    return "[card]" if checksum % 10 == 0 else match[0]
