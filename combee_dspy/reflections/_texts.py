"""The text in a record, wherever it stands."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from combee_dspy.records import Reflection
from combee_dspy.reflections._tokens import is_media

__all__ = ["feedback_text", "texts_in"]

_DEEPEST = 8


def texts_in(value: Any, depth: int = 0) -> Iterator[str]:
    """Yield the texts in a record or in any value of it, media and names of fields left out.

    What lies deeper than eight levels is left out: no record may make this recurse without end.
    """
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            if depth < _DEEPEST:
                yield from texts_in(item, depth + 1)
    elif value is not None and not is_media(value):
        yield str(value)


def feedback_text(reflection: Reflection) -> str:
    """Return what a reflection's record says as feedback, empty where it says nothing."""
    fields = (value for key, value in reflection.record.items() if "feedback" in str(key).casefold())
    return "\n".join(text for value in fields for text in texts_in(value))
