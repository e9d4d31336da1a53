"""Writes JSON that any reader takes: UTF-8, and no number that JSON lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

import orjson

__all__ = ["dump", "sound", "sound_values"]


def dump(value: object) -> str:
    """Return JSON. Numbers that JSON lacks become null, halves of characters become U+FFFD.

    Raises:
        TypeError: A value is none of JSON's, and no dataclass of them.
    """
    option = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    try:
        return orjson.dumps(value, option=option).decode()
    except TypeError:
        return orjson.dumps(sound_values(value), option=option).decode()


def sound(text: str) -> str:
    """Return a text that UTF-8 can write: an answer that was cut off may end with half a
    character.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def sound_values(value: Any) -> Any:
    """Return JSON values with every text in them so; other objects stay as they are."""
    if isinstance(value, str):
        return sound(value)
    if isinstance(value, Mapping):
        return {sound_values(key): sound_values(item) for key, item in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return sound_values(asdict(value))
    return [sound_values(item) for item in value] if isinstance(value, (list, tuple)) else value
