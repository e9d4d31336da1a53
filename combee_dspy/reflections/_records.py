"""A reflection's record: its tokens, its texts, and how a prompt shows it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import pydantic

from combee_dspy.records import Reflection

if TYPE_CHECKING:
    import dspy

MEDIA_TOKENS = 1_000
"""What an image, a file or a recording is taken to cost: a mid-sized image tile count; real costs
differ by model.
"""

_KEY_TOKENS = 3
# A record tells its subject near its ends, the feedback at the last; one log must not cost more
# than all lessons.
_END_CHARS = 2_000
# DSPy marks typed values inside a rendered prompt with this and turns what follows back into
# message content: in the text of a record it could smuggle in an image's address.
_MARK, _HARMLESS = "<<CUSTOM-TYPE-", "< <CUSTOM-TYPE-"


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text: a quarter of its ASCII characters, each other character.

    Four characters a token is the common rule for English. Other scripts take one to two characters
    a token; one is the cautious end.
    """
    ascii_length = len(text.encode("ascii", "ignore"))
    return -(-ascii_length // 4) + len(text) - ascii_length


def line_tokens(line: str) -> int:
    """Estimate the tokens of a line of a list."""
    return estimate_tokens(f"- {line}\n")


def fit_lines(lines: Iterable[str], tokens: int) -> Iterator[str]:
    """Yield the lines that fit into what those before them leave of so many tokens."""
    for line in lines:
        if (needed := line_tokens(line)) <= tokens:
            tokens -= needed
            yield line


_key_tokens = functools.lru_cache(estimate_tokens)  # the same few names in every record


def estimate_record_tokens(value: object) -> int:
    """Estimate the tokens of a record or of any value in it, keys and punctuation included.

    Media count :data:`MEDIA_TOKENS` each, whatever their size in bytes.
    """
    if isinstance(value, str):
        return estimate_tokens(value)
    inside = opened(value)
    if isinstance(inside, Mapping):
        keys = sum(map(_key_tokens, map(str, inside)))
        return len(inside) * _KEY_TOKENS + keys + sum(map(estimate_record_tokens, inside.values()))
    if inside is not None:
        return len(inside) + sum(map(estimate_record_tokens, inside))
    return MEDIA_TOKENS if is_media(value) else estimate_tokens(as_text(value))


def is_media(value: object) -> bool:
    """Return whether a value reaches the LM as something other than text (``dspy.Image``)."""
    if not _is_dspy_type(value):
        return False
    try:
        content = value.format()
    except NotImplementedError:
        return False
    return isinstance(content, list) and any(part.get("type") != "text" for part in content)


def _is_dspy_type(value: object) -> TypeGuard[dspy.Type]:
    # To read a journal must not cost the import of DSPy: where it is not loaded, nothing is one.
    loaded = sys.modules.get("dspy")
    return loaded is not None and isinstance(value, loaded.Type)


def opened(value: object) -> Mapping[Any, Any] | Sequence[Any] | None:
    """Return what a container holds, a model as a mapping; ``None`` for no container."""
    if isinstance(value, pydantic.BaseModel) and not _is_dspy_type(value):
        return _fields(value)
    return value if isinstance(value, (Mapping, list, tuple)) else None


def _fields(model: pydantic.BaseModel) -> dict[str, Any]:
    # Not dict(model): a model may iterate over something else, as those of a list do.
    return vars(model) | (model.model_extra or {})


def as_text(value: object) -> str:
    """Return the text of a value that is no container of media."""
    if isinstance(value, pydantic.BaseModel):
        try:
            return value.model_dump_json(fallback=str)
        except (ValueError, TypeError, NotImplementedError, AttributeError):
            pass  # A type of the user's own may not dump; its repr still describes it.
    return str(value)


def texts_in(value: object) -> Iterator[str]:
    """Yield the texts in a record or in any value of it, media and names of fields left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from texts_in(item)
    elif value is not None and not is_media(value):
        yield str(value)


def feedback_text(reflection: Reflection) -> str:
    """Return the feedback in a reflection's record, empty where there is none."""
    fields = (
        value for key, value in reflection.record.items() if "feedback" in str(key).casefold()
    )
    return "\n".join(text for value in fields for text in texts_in(value))


def ends(text: str) -> str:
    """Return the two ends of a long text, and a shorter one whole."""
    return text if len(text) <= 2 * _END_CHARS else f"{text[:_END_CHARS]} {text[-_END_CHARS:]}"


def example_text(reflection: Reflection) -> str:
    """Return the words that tell an example from others: its inputs and its feedback."""
    inputs = " ".join(texts_in(reflection.record.get("Inputs")))
    return f"{ends(inputs)} {ends(feedback_text(reflection))}"


def render_records(reflections: Iterable[Reflection]) -> list[dict[str, object]]:
    """Return the records as values of a ``list[dict[str, Any]]`` input field.

    DSPy types (images, files, histories) stay what they are and reach the LM as such. Text in which
    DSPy's own type marks occur is defused.
    """
    return [
        {str(key): _defused(value) for key, value in reflection.record.items()}
        for reflection in reflections
    ]


def _defused(value: Any) -> Any:
    if isinstance(value, str):
        return value.replace(_MARK, _HARMLESS)
    if isinstance(value, Mapping):
        return {str(_defused(str(key))): _defused(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_defused(item) for item in value]
    if is_media(value) or _MARK not in (text := as_text(value)):
        return value
    if isinstance(value, pydantic.BaseModel):
        return value.model_copy(
            update={name: _defused(item) for name, item in _fields(value).items()}
        )
    return text.replace(_MARK, _HARMLESS)  # a dataclass, a set, or what else DSPy can write down
