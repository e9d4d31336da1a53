"""Events as JSON data and back."""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from combee_dspy import events
from combee_dspy.tracking._redact import Redactor
from combee_dspy.tracking._text import clean

__all__ = ["decode", "encode"]

_KINDS: Mapping[str, type[events.Event]] = {
    name: kind
    for name in events.__all__
    if isinstance(kind := getattr(events, name), type) and issubclass(kind, events.Event)
}
# Keyed by a component's or a split's name: a name such as "api_key.predict" makes its text no key.
_BY_COMPONENT = frozenset({"texts", "components", "sizes", "digests", "weights"})


def encode(event: events.Event, redactor: Redactor) -> dict[str, Any]:
    """Return an event's fields as JSON data, without keys.

    Args:
        event: Any event but a rollout, which has its own layout.
        redactor: Takes keys out of texts and out of values that are named as one.
    """
    found: dict[str, Any] = {}
    for field in fields(event):
        value = _plain(getattr(event, field.name))
        if field.name in _BY_COMPONENT and isinstance(value, Mapping):
            found[field.name] = {name: _clean(redactor.data([item])[0]) for name, item in value.items()}
        elif field.name == "state" and isinstance(value, Mapping):
            # One level down the keys are DSPy's.
            found[field.name] = {name: _clean(redactor.data([item])[0]) for name, item in value.items()}
        else:
            found[field.name] = _clean(redactor.data(value))
    return found


def decode(kind: str, data: Mapping[str, Any]) -> events.Event | None:
    """Return the event that :func:`encode` wrote; ``None`` where the kind is unknown or a field is missing.

    What a newer version wrote beyond the known fields is left out.
    """
    found = _KINDS.get(kind)
    if found is None:
        return None
    try:
        event = _build(found, data)
    except (TypeError, ValueError, AttributeError):
        return None
    return typing.cast("events.Event", event)


@functools.cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _build(kind: Any, data: Mapping[str, Any]) -> Any:
    hints = _hints(kind)
    values = {}
    for field in fields(kind):
        if field.name in data:
            values[field.name] = _convert(hints[field.name], data[field.name])
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ValueError(f"{kind.__name__}.{field.name} is missing")
    return kind(**values)


def _convert(hint: Any, value: Any) -> Any:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        rest = [one for one in inner if one is not type(None)]
        return value if value is None or len(rest) != 1 else _convert(rest[0], value)
    if origin is tuple:
        if len(inner) == 2 and inner[1] is Ellipsis:
            return tuple(_convert(inner[0], item) for item in value)
        return tuple(_convert(one, item) for one, item in zip(inner, value, strict=True))
    if is_dataclass(hint) and isinstance(value, Mapping):
        return _build(hint, value)
    return value


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    return value


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, Mapping):
        return {clean(name): _clean(item) for name, item in value.items()}
    return [_clean(item) for item in value] if isinstance(value, list) else value
