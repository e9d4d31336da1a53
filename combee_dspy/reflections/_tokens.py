"""Estimates of how many tokens something takes, without a tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pydantic

__all__ = ["MEDIA_TOKENS", "estimate_record_tokens", "estimate_tokens", "is_media"]

MEDIA_TOKENS = 1_000
"""What an image, a file or a recording is taken to cost: a mid-sized image tile count; real costs differ by model."""

_KEY_TOKENS = 3


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text: a quarter of its ASCII characters, and every other character, rounded up.

    Four characters a token is the common rule for English. Other scripts take
    one to two characters a token; one is the cautious end.
    """
    ascii_length = len(text.encode("ascii", "ignore"))
    return -(-ascii_length // 4) + len(text) - ascii_length


def is_media(value: object) -> bool:
    """Whether a value is a DSPy type that reaches the LM as something other than text, such as ``dspy.Image``."""
    from dspy.adapters.types.base_type import Type

    if not isinstance(value, Type):
        return False
    try:
        content = value.format()
    except NotImplementedError:
        return False
    return isinstance(content, list) and any(part.get("type") != "text" for part in content)


def opened(value: object) -> Mapping[Any, Any] | Sequence[Any] | None:
    """Return what a container holds, a pydantic model as a mapping; ``None`` where it is no container."""
    from dspy.adapters.types.base_type import Type

    if isinstance(value, (Mapping, list, tuple)):
        return value
    if isinstance(value, pydantic.BaseModel) and not isinstance(value, Type):
        return dict(value)
    return None


def estimate_record_tokens(value: Any) -> int:
    """Estimate the tokens of a record or of any value in it, keys and punctuation included.

    Media count :data:`MEDIA_TOKENS` each, whatever their size in bytes.
    """
    if isinstance(value, str):
        return estimate_tokens(value)
    inside = opened(value)
    if isinstance(inside, Mapping):
        return sum(
            _KEY_TOKENS + estimate_tokens(str(key)) + estimate_record_tokens(item) for key, item in inside.items()
        )
    if inside is not None:
        return sum(1 + estimate_record_tokens(item) for item in inside)
    if is_media(value):
        return MEDIA_TOKENS
    return estimate_tokens(as_text(value))


def as_text(value: object) -> str:
    """Return the text that stands for a value which is no container of media."""
    if isinstance(value, str):
        return value
    if isinstance(value, pydantic.BaseModel):
        try:
            return value.model_dump_json(fallback=str)
        except (ValueError, TypeError, NotImplementedError, AttributeError):
            # A type of the user's own may not dump; its repr still says what it is.
            return str(value)
    return str(value)
