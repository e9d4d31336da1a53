"""Classes by their names: those of modules that are loaded, and those that a run itself uses."""

from __future__ import annotations

import dataclasses
import enum
import sys
import typing
import weakref
from collections.abc import Iterable, Mapping

import dspy
import pydantic

__all__ = ["find_class", "note_classes"]

# A class that a function defines stands in no module. A resumed run defines it anew, under its
# name.
_NOTED: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()


def name_of(kind: type) -> str:
    """Return the name by which a class is looked up: ``module:Class``."""
    return f"{kind.__module__}:{kind.__qualname__}"


def find_class(name: str) -> object:
    """Return what stands under the name of a class, or ``None``. Nothing is imported: a file must
    not choose which code runs.
    """
    module, _, path = name.partition(":")
    at: object = sys.modules.get(module)
    for part in path.split("."):
        at = vars(at).get(part) if hasattr(at, "__dict__") else None
    return _NOTED.get(name) if at is None else at


def note_classes(student: dspy.Module, rows: Iterable[dspy.Example]) -> None:
    """Note the enums, dataclasses and pydantic models that a program's signatures name and rows
    hold, so that those which functions define are found again by their names. The last class of a
    name counts. From any thread.
    """
    seen: set[object] = set()
    for _, predictor in student.named_predictors():
        for field in predictor.signature.fields.values():
            _note_type(field.annotation, seen)
    for row in rows:
        for value in dict(row.items()).values():
            _note_value(value, seen)


def _note_value(value: object, seen: set[object]) -> None:
    waiting, looked_at = [value], set[int]()
    while waiting:
        item = waiting.pop()
        if item is None or isinstance(item, (str, int, float, bytes)) or id(item) in looked_at:
            continue
        looked_at.add(id(item))
        _note_type(type(item), seen)
        if isinstance(item, Mapping):
            waiting += [*item.keys(), *item.values()]
        elif isinstance(item, (list, tuple, set, frozenset)):
            waiting += item
        elif isinstance(item, pydantic.BaseModel):
            waiting += [*vars(item).values()]
        elif dataclasses.is_dataclass(item):
            waiting += [getattr(item, field.name, None) for field in dataclasses.fields(item)]


def _note_type(annotation: object, seen: set[object]) -> None:
    waiting = [annotation]
    while waiting:
        kind = waiting.pop()
        waiting += typing.get_args(kind)
        if not isinstance(kind, type) or kind in seen:
            continue
        seen.add(kind)
        if issubclass(kind, pydantic.BaseModel):
            waiting += [field.annotation for field in kind.model_fields.values()]
        elif dataclasses.is_dataclass(kind):
            waiting += [field.type for field in dataclasses.fields(kind)]
        elif not issubclass(kind, enum.Enum):
            continue
        if find_class(name_of(kind)) is not kind and "<locals>" in kind.__qualname__:
            _NOTED[name_of(kind)] = kind
