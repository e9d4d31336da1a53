"""Classes by their names: those of loaded modules, and those that a program's signatures name."""

from __future__ import annotations

import dataclasses
import enum
import sys
import typing
import weakref

import dspy
import pydantic

# A class that a function defines is in no module. A resumed run defines it anew, under its name.
_LOCAL: weakref.WeakValueDictionary[str, type] = weakref.WeakValueDictionary()


def name_of(kind: type) -> str:
    """Return the name by which a class is looked up: ``module:Class``."""
    return f"{kind.__module__}:{kind.__qualname__}"


def find_class(name: str) -> object:
    """Return the object with the name of a class, or ``None``. Nothing is imported: a file must not
    choose which code runs.
    """
    module, _, path = name.partition(":")
    place: object = sys.modules.get(module)
    for part in path.split("."):
        place = vars(place).get(part) if hasattr(place, "__dict__") else None
    return _LOCAL.get(name) if place is None else place


def note_classes(student: dspy.Module) -> None:
    """Note the enums, dataclasses and pydantic models in a program's signatures, so that local ones
    are found again by their names. The last class of a name counts. Thread-safe.
    """
    waiting = [
        field.annotation
        for _, predictor in student.named_predictors()
        for field in predictor.signature.fields.values()
    ]
    seen: set[type] = set()
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
        if "<locals>" in kind.__qualname__:
            _LOCAL[name_of(kind)] = kind
