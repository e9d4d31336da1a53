"""Foreign text, made fit for stores and screens."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import orjson

__all__ = ["beginning", "clean", "cut", "one_line", "show", "shown"]


def clean(text: str) -> str:
    """Return ``text`` with ``�`` for lone surrogates and NUL, which no database or file takes."""
    whole = text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\x00", "\ufffd")


def cut(text: str, limit: int) -> str:
    """Return :func:`clean` text in at most ``limit`` characters, saying so where it was longer.

    Args:
        text: Any text.
        limit: Characters, at least 40.
    """
    return _within(clean(text), limit)


def _within(text: str, limit: int) -> str:
    return text if len(text) <= limit else beginning(text, limit, len(text))


def beginning(text: str, limit: int, size: int) -> str:
    """Return the beginning of a text in at most ``limit`` characters, and say that it is one.

    Args:
        text: The text, or as much of it as may be shown.
        limit: Characters, at least 40.
        size: Characters of the whole text.
    """
    mark = f"… [cut, {size} characters]"
    return text[: limit - len(mark)] + mark


def one_line(text: str, limit: int = 120) -> str:
    """Return the visible characters of ``text`` on one line of at most ``limit`` characters.

    Control and formatting characters, terminal escapes and reversals of the
    writing direction among them, are removed; white space becomes one space.
    """
    head = text[: limit * 4]
    visible = "".join(char if not unicodedata.category(char).startswith("C") else " " for char in head)
    line = " ".join(visible.split())
    if len(line) > limit or len(head) < len(text):
        line = line[: limit - 1] + "…"
    return line


def show(value: Any, limit: int) -> str:
    """Return foreign data as JSON text of at most ``limit`` characters; text stays as it is."""
    return _within(shown(value), limit)


def shown(value: Any) -> str:
    """Return all of :func:`show`."""
    if value is None:
        return ""
    return clean(value if isinstance(value, str) else _json(value))


def _json(value: Any) -> str:
    try:
        # A third of the other's time; it takes no odd keys, no numbers beyond 64 bits and no lone surrogates.
        return orjson.dumps(value, _plain, _AS_JSON).decode()
    except TypeError:
        pass
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError):
        return _str(value)


def _plain(value: Any) -> Any:
    to_dict = getattr(value, "toDict", None)
    # DSPy's examples and predictions name their fields this way.
    return to_dict() if callable(to_dict) else _str(value)


_ENCODER = json.JSONEncoder(ensure_ascii=False, default=_plain, separators=(",", ":"))
# What JSON has no form for is shown as its own text, by either.
_AS_JSON = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS


def _str(value: Any) -> str:
    try:
        return str(value)
    except Exception as error:  # noqa: BLE001 - a user's __str__ may raise anything; the row says so
        return f"<{type(value).__name__}, unprintable: {type(error).__name__}>"
