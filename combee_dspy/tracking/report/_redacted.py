"""Takes keys out of everything that a report would show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from combee_dspy.tracking._redact import Redactor

__all__ = ["redacted"]

T = TypeVar("T")


def redacted(data: T, redactor: Redactor) -> T:
    """Return frozen data with every string in it redacted, whatever field a newer version adds."""
    return _clean(data, redactor)


def _clean(value: Any, redactor: Redactor) -> Any:
    if isinstance(value, str):
        return redactor.text(value)
    if isinstance(value, Mapping):
        return {redactor.text(str(key)): _clean(item, redactor) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return tuple(_clean(item, redactor) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value)]
        changed = {name: _clean(getattr(value, name), redactor) for name in names}
        return replace(value, **{name: new for name, new in changed.items() if new is not getattr(value, name)})
    return value
