"""What a reflection's record holds: its texts, the tokens it takes, and the values that an LM is given of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pydantic

from combee_dspy.records import Reflection

MEDIA_TOKENS = 1_000
"""What an image, a file or a recording is taken to cost: a mid-sized image tile count; real costs differ by model."""

_KEY_TOKENS = 3
# DSPy marks typed values inside a rendered prompt with this and turns what follows back
# into message content: in the text of a record it could smuggle in an image's address.
_MARK = "<<CUSTOM-TYPE-"
_HARMLESS = "< <CUSTOM-TYPE-"


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text: a quarter of its ASCII characters, and every other character, rounded up.

    Four characters a token is the common rule for English. Other scripts take
    one to two characters a token; one is the cautious end.
    """
    ascii_length = len(text.encode("ascii", "ignore"))
    return -(-ascii_length // 4) + len(text) - ascii_length


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
    return MEDIA_TOKENS if is_media(value) else estimate_tokens(as_text(value))


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


def as_text(value: object) -> str:
    """Return the text that stands for a value which is no container of media."""
    if isinstance(value, pydantic.BaseModel):
        try:
            return value.model_dump_json(fallback=str)
        except (ValueError, TypeError, NotImplementedError, AttributeError):
            pass  # A type of the user's own may not dump; its repr still says what it is.
    return str(value)


def texts_in(value: Any) -> Iterator[str]:
    """Yield the texts in a record or in any value of it, media and names of fields left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(item)
    elif value is not None and not is_media(value):
        yield str(value)


def feedback_text(reflection: Reflection) -> str:
    """Return what a reflection's record says as feedback, empty where it says nothing."""
    fields = (value for key, value in reflection.record.items() if "feedback" in str(key).casefold())
    return "\n".join(text for value in fields for text in texts_in(value))


def render_records(reflections: Iterable[Reflection]) -> list[dict[str, Any]]:
    """Return the records as values of a ``list[dict[str, Any]]`` input field, which the adapter in use renders.

    DSPy types (images, files, histories) stay what they are and reach the LM as
    such. Text in which DSPy's own type marks occur is defused.
    """
    return [{str(key): _defused(value) for key, value in reflection.record.items()} for reflection in reflections]


def _defused(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace(_MARK, _HARMLESS)
    if isinstance(value, Mapping):
        return {str(_defused(str(key))): _defused(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_defused(item) for item in value]
    return value
