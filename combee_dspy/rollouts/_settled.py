"""A metric without its state: the same before, during and after a run.

What counts:

- the code of functions and classes, and of what they call, in containers too;
- numbers, texts and tuples in attributes, variables, defaults and arguments;
- LMs, and predictors with their demonstrations.

What does not count:

- data in lists, dicts and sets;
- attributes and variables that the code assigns anew, or whose items it sets, outside
  of ``__init__``;
- what has no value of its own, such as locks and iterators.

What cannot be known is whether the data in a container changes scores: a
cache does not, a table of weights does. :func:`combee_dspy.rollouts.metric_state`
tells whether it has changed.
"""

from __future__ import annotations

import datetime
import decimal
import dis
import enum
import fractions
import functools
import pathlib
import re
import types
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import dspy

from combee_dspy.rollouts._describer import (
    NO_EFFECT,
    Describer,
    codes_in,
    is_installed,
    name_of,
)

# Objects that stand for a value which never changes.
_VALUES = (
    complex,
    datetime.date,
    datetime.time,
    datetime.timedelta,
    decimal.Decimal,
    enum.Enum,
    fractions.Fraction,
    pathlib.PurePath,
    range,
    re.Pattern,
    uuid.UUID,
)
_ACTING = (types.FunctionType, types.MethodType, type, dspy.Module, dspy.BaseLM, functools.partial)
_MAKES = frozenset({"__init__", "__new__", "__post_init__", "__setstate__", "__set_name__"})
_STORES_ATTRIBUTE = frozenset({"STORE_ATTR", "DELETE_ATTR"})
_READS_METHOD = frozenset({"LOAD_METHOD", "LOAD_ATTR"})
_READS_VARIABLE = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_ATTR"})
_SETTERS = frozenset({"add", "append", "extend", "insert", "setdefault", "update"})
_STORES_GLOBAL = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})


def describe_settled(metric: object) -> Any:
    """Return a metric as JSON values, without what changes as it runs."""
    first = _Settled(frozenset())
    first.describe(metric)
    # What is assigned is known once all code has been looked at.
    return _Settled(frozenset(first.assigned)).describe(metric)


class _Settled(Describer):
    """Describes code and values that stay as they are.

    Args:
        changing: Names of attributes and variables that do not count.

    Attributes:
        assigned: Names that the code met so far assigns.
    """

    def __init__(self, changing: frozenset[str]) -> None:
        super().__init__()
        self._changing = changing
        self.assigned: set[str] = set()

    def describe(self, value: Any) -> Any:
        return {"$data": "set"} if isinstance(value, set) else super().describe(value)

    def _container(self, value: Mapping[Any, Any] | Sequence[Any]) -> Any:
        if isinstance(value, (tuple, types.MappingProxyType)):
            return super()._container(value)
        return self._code_in(value)

    def _code_in(self, container: Mapping[Any, Any] | Sequence[Any]) -> list[Any]:
        """Describe the functions, classes, predictors and LMs in a container, without its data."""
        if id(container) in self._within:
            return []
        self._within.append(id(container))
        named = container if isinstance(container, Mapping) else None
        items = (("", item) for item in container) if named is None else named.items()
        described = []
        for name, item in items:
            part: Any = None
            if isinstance(item, (Mapping, list, tuple)):
                part = self._code_in(item)
            elif isinstance(item, _ACTING) or callable(item):
                part = self.describe(item)
            if part:
                described.append([str(name), part])
        self._within.pop()
        return described

    def _object(self, value: Any) -> Any:
        if isinstance(value, dspy.Predict):
            return Describer().describe(value)
        if isinstance(value, types.ModuleType):
            return value.__name__
        kind = type(value)
        if isinstance(value, _VALUES):
            return [name_of(kind), repr(value)]
        left_out = NO_EFFECT | self._changing | _assigned_by(kind)
        state = {name: item for name, item in _state(value).items() if name not in left_out}
        return [self.describe(kind), self._named(state)]

    def _function(self, function: types.FunctionType) -> Any:
        if not is_installed(function.__module__ or "") or function.__module__ == "builtins":
            self.assigned |= _assigned_in(function.__code__, function.__name__ in _MAKES)
        return super()._function(function)

    def _closure(self, variables: Sequence[tuple[str, Any]]) -> Any:
        steady = [(name, item) for name, item in variables if name not in self._changing]
        return super()._closure(steady)

    def _globals(self, variables: Mapping[str, Any]) -> Any:
        steady = {name: item for name, item in variables.items() if name not in self._changing}
        return super()._globals(steady)


def _state(value: Any) -> dict[str, Any]:
    """Return the attributes of an object by name."""
    slots = [name for kind in type(value).__mro__ for name in _slots(kind)]
    values = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    own = getattr(value, "__dict__", None)
    return {**values, **own} if isinstance(own, dict) else values


def _slots(kind: type) -> Sequence[str]:
    slots = vars(kind).get("__slots__", ())
    named = (slots,) if isinstance(slots, str) else tuple(slots)
    return [name for name in named if not name.startswith("__")]


def _assigned_by(kind: type) -> frozenset[str]:
    """Return the attributes that an installed class assigns in its methods; none for DSPy's own."""
    return frozenset(
        name
        for each in kind.__mro__
        if is_installed(each.__module__) and each.__module__.partition(".")[0] != "dspy"
        for part in vars(each).values()
        if isinstance(part, types.FunctionType)
        for name in _assigned_in(part.__code__, part.__name__ in _MAKES)
    )


@functools.lru_cache(maxsize=1_024)
def _assigned_in(code: types.CodeType, makes: bool) -> frozenset[str]:
    """Return the attributes, globals and outer variables that code assigns, or whose items it sets.

    Args:
        code: With all that is nested in it.
        makes: Whether it makes an object, whose attributes it may assign.
    """
    names: set[str] = set()
    for part in codes_in(code):
        steps = list(dis.get_instructions(part))
        for place, step in enumerate(steps):
            attribute = step.opname in _STORES_ATTRIBUTE and not makes
            outer = step.opname == "STORE_DEREF" and step.argval in part.co_freevars
            if attribute or outer or step.opname in _STORES_GLOBAL:
                names.add(step.argval)
            elif not makes:
                names.update(_container_set(steps, place))
    return frozenset(names)


def _container_set(steps: Sequence[dis.Instruction], place: int) -> Sequence[str]:
    """Return the name of the container whose item an instruction sets, where it has one."""
    step = steps[place]
    if step.opname == "STORE_SUBSCR":
        # Below the key, which is whatever was put on the stack last, lies the container.
        height = 0
        while place > 0 and height != 1:
            place -= 1
            height += dis.stack_effect(steps[place].opcode, steps[place].arg, jump=False)
    elif step.opname not in _READS_METHOD or step.argval not in _SETTERS:
        return ()
    before = steps[place - 1] if place > 0 else step
    return (before.argval,) if before.opname in _READS_VARIABLE else ()
