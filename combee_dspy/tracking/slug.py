"""Names for stores that allow fewer characters than ours have, and the way back.

A predictor's path may hold ``[``, ``]`` or ``@``; MLflow refuses them in names
of prompts and metrics. A slug keeps every allowed character and writes any
other as its code point in lower-case hexadecimal between two hyphens:
``steps[0].call`` becomes ``steps-5b-0-5d-.call``. A hyphen itself is doubled.
"""

from __future__ import annotations

import hashlib
import re
import string
from collections.abc import Collection

from combee_dspy.exceptions import ArgumentValueError

__all__ = ["METRIC_PART", "PROMPT_NAME", "from_slug", "shorten", "to_slug"]

METRIC_PART = frozenset(string.ascii_letters + string.digits + "_")
"""What may stand unescaped in one part of a metric's name, between two slashes."""

PROMPT_NAME = METRIC_PART | {"."}
"""What may stand unescaped in the name of a registered prompt or of a file."""

_ESCAPE = re.compile(r"-([0-9a-f]{0,6})-")


def to_slug(name: str, allowed: Collection[str] = PROMPT_NAME) -> str:
    """Return ``name`` in the allowed characters, hyphens and ASCII letters and digits of escapes.

    Two different names never share a slug.

    Args:
        name: Any text.
        allowed: Characters that need no escape. A hyphen is always escaped.
    """
    kept = set(allowed) - {"-"}
    return "".join(char if char in kept else "--" if char == "-" else f"-{ord(char):x}-" for char in name)


def from_slug(slug: str) -> str:
    """Return the name that :func:`to_slug` was given.

    Raises:
        ArgumentValueError: ``slug`` is no output of :func:`to_slug`.
    """
    parts: list[str] = []
    position = 0
    while position < len(slug):
        if slug[position] != "-":
            parts.append(slug[position])
            position += 1
            continue
        escape = _ESCAPE.match(slug, position)
        code = escape.group(1) if escape else "-"
        if escape is None or code == "2d" or (code and (code != f"{int(code, 16):x}" or int(code, 16) > 0x10FFFF)):
            raise ArgumentValueError("slug", slug, "is no slug", "Give a name that to_slug returned.")
        parts.append(chr(int(code, 16)) if code else "-")
        position = escape.end()
    return "".join(parts)


def shorten(slug: str, limit: int) -> str:
    """Return ``slug`` where it fits, else its beginning and a hash of all of it.

    The way back from a shortened slug is the full name that is logged beside it.

    Args:
        slug: A slug.
        limit: Characters, at least 24.
    """
    if len(slug) <= limit:
        return slug
    mark = hashlib.sha256(slug.encode()).hexdigest()[:16]
    return f"{slug[: limit - 17]}_{mark}"
