"""From reflections to the values of a signature's ``list[dict[str, Any]]`` input field."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from combee_dspy.records import Reflection

__all__ = ["render_records"]

# DSPy marks typed values inside a rendered prompt with this and turns what follows back
# into message content: in the text of a record it could smuggle in an image's address.
_MARK = "<<CUSTOM-TYPE-"
_HARMLESS = "< <CUSTOM-TYPE-"


def render_records(reflections: Iterable[Reflection]) -> list[dict[str, Any]]:
    """Return the records as structured values, which the adapter in use renders.

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
