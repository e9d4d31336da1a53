"""Describes programs, metrics and LMs as JSON, to be hashed."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import json
import pathlib
import re
import types
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import dspy

from combee_dspy.hashing import canonical_json
from combee_dspy.lms.redact import SECRET_NAME, mask
from combee_dspy.rollouts._code import (
    assigned_by,
    assigned_by_class,
    attributes_of,
    is_installed,
    name_of,
    names_read,
    variables_around,
)

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
# What JSON holds, or hashing makes of it.
_PLAIN = (str, bool, int, float, bytes, type(None), set, frozenset)
# Objects that stand for a value which never changes.
_CONSTANTS = (
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
_CODE = (types.FunctionType, types.MethodType, type, dspy.Module, dspy.BaseLM, functools.partial)
# What a function may name and count with; anything else of its module has a life of its own.
_NAMED = (types.FunctionType, type, dspy.Module, dspy.BaseLM, list, tuple, dict, *_PLAIN)
# What grows with every call, or is left on a program and never read when it runs.
_NO_EFFECT = frozenset(
    {
        "_compiled",
        "callbacks",
        "combee_report",
        "combee_serves",
        "detailed_results",
        "history",
        "stage",
        "traces",
        "train",
    }
)


def digest(described: object) -> str:
    """Return the hash of a description."""
    text = json.dumps([dspy.__version__, described], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class Describer:
    """Describes values as JSON; modules, functions and classes in full once.

    Args:
        lms: Whether LMs count.
        data: Whether data counts that may change as code runs.
        left_out_names: Attributes and variables that do not count.

    Attributes:
        left_out: LMs that do not count, in the order in which they were met.
        assigned: Names of attributes and variables that the code read so far assigns.
    """

    def __init__(
        self, *, lms: bool = True, data: bool = True, left_out_names: frozenset[str] = frozenset()
    ) -> None:
        self._lms, self._data, self._left_out_names = lms, data, left_out_names
        self.left_out: list[dspy.BaseLM] = []
        self.assigned: set[str] = set()
        # With the object, so that no other takes over its identity.
        self._seen: dict[int, tuple[int, object]] = {}
        # Identities of the containers around the value, the outermost first.
        self._around: list[int] = []

    def describe(self, value: Any) -> Any:
        """Return a value as JSON values."""
        if isinstance(value, (Mapping, list, tuple)):
            return self._container(value)
        if isinstance(value, dspy.BaseLM):
            if self._lms:
                return describe_lm(value)
            self.left_out.append(value)
            return canonical_json(None)
        if isinstance(value, type) and issubclass(value, dspy.Signature):
            return _ADDRESS.sub("", repr(value))
        if isinstance(value, set) and not self._data:
            return {"$data": "set"}
        if isinstance(value, (*_PLAIN, dspy.Example)):
            return canonical_json(value)
        return self._once(value)

    def _container(self, value: Mapping[Any, Any] | Sequence[Any]) -> Any:
        is_data = not isinstance(value, (tuple, types.MappingProxyType))
        if is_data and not self._data:
            return self._code_in(value)
        if id(value) in self._around:
            return {"$holder": self._around.index(id(value))}
        self._around.append(id(value))
        try:
            if isinstance(value, Mapping):
                return self._by_name({str(key): item for key, item in value.items()})
            return [self.describe(item) for item in value]
        finally:
            self._around.pop()

    def _code_in(self, container: Mapping[Any, Any] | Sequence[Any]) -> list[Any]:
        """Describe functions, classes, predictors and LMs in a container, without its data."""
        if id(container) in self._around:
            return []
        self._around.append(id(container))
        named = container if isinstance(container, Mapping) else None
        described = []
        for name, item in (("", it) for it in container) if named is None else named.items():
            part: Any = None
            if isinstance(item, (Mapping, list, tuple)):
                part = self._code_in(item)
            elif isinstance(item, _CODE) or callable(item):
                part = self.describe(item)
            if part:
                described.append([str(name), part])
        self._around.pop()
        return described

    def _by_name(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Describe values by name, without secrets."""
        return {
            name: self.describe(item)
            for name, item in values.items()
            if not SECRET_NAME.search(name)
        }

    def _once(self, value: Any) -> Any:
        if isinstance(value, functools.partial):
            function = self.describe(value.func)  # first: what follows may refer to it
            return [function, self.describe(value.args), self._by_name(value.keywords)]
        if isinstance(value, types.MethodType):
            return [self.describe(value.__func__), self.describe(value.__self__)]
        if id(value) in self._seen:
            return {"$again": self._seen[id(value)][0]}
        self._seen[id(value)] = (len(self._seen), value)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        return self._object(value) if self._data else self._settled_object(value)

    def _object(self, value: Any) -> Any:
        state = getattr(value, "__dict__", None)
        if not isinstance(state, dict) or isinstance(value, types.ModuleType):
            return _ADDRESS.sub("", canonical_json(value))
        return [self.describe(type(value)), self._by_name(_without(state, _NO_EFFECT))]

    def _settled_object(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, dspy.Predict):
            return Describer().describe(value)
        if isinstance(value, types.ModuleType):
            return value.__name__
        if isinstance(value, _CONSTANTS):
            return [name_of(kind), repr(value)]
        left_out = _NO_EFFECT | self._left_out_names | assigned_by_class(kind)
        return [self.describe(kind), self._by_name(_without(attributes_of(value), left_out))]

    def _class(self, kind: type) -> Any:
        parts = {}
        for each in kind.__mro__:
            for name, part in vars(each).items() if not is_installed(each.__module__) else ():
                code = getattr(part, "fget", None) or getattr(part, "__func__", part)
                is_constant = not name.startswith("__") and isinstance(part, _PLAIN)
                if is_constant or isinstance(code, types.FunctionType):
                    described = self.describe(part if is_constant else code)
                    parts[f"{each.__qualname__}.{name}"] = described
        return [name_of(kind), parts]

    def _function(self, function: types.FunctionType) -> Any:
        # Code that was executed without a module of its own claims to be built in.
        if function.__module__ != "builtins" and is_installed(function.__module__ or ""):
            return name_of(function)
        code, variables = function.__code__, function.__globals__
        self.assigned |= assigned_by(function)
        named = {name: variables[name] for name in sorted(names_read(code) & variables.keys())}
        used = {name: item for name, item in named.items() if isinstance(item, _NAMED)}
        closure = variables_around(function)
        return [
            name_of(function),
            _code(code),
            [self.describe(function.__defaults__), self._by_name(function.__kwdefaults__ or {})],
            [self.describe(it) for it in _without(closure, self._left_out_names).values()],
            {name: self.describe(it) for name, it in _without(used, self._left_out_names).items()},
        ]


def describe_lm(lm: Any) -> dict[str, Any]:
    """Describe an LM without its credentials."""
    identity = getattr(lm, "cache_identity", None)
    kwargs = {
        name: item for name, item in (getattr(lm, "kwargs", None) or {}).items() if item is not None
    }
    # Headers may all be credentials; a URL may carry one.
    where = [mask(str(kwargs.pop(name, ""))) for name in ("api_base", "base_url", "api_version")]
    endpoint = [*where, name_of(type(getattr(lm, "engine", None)))]
    parameters = {name: item for name, item in kwargs.items() if "header" not in name}
    return {
        "lm": [
            name_of(type(lm)),
            str(getattr(lm, "model", "")),
            str(getattr(lm, "model_type", "")),
        ],
        "kwargs": Describer().describe(parameters),
        "where": identity if isinstance(identity, str) else endpoint,
    }


def _without(values: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: item for name, item in values.items() if name not in names}


def _code(code: types.CodeType) -> str:
    consts = [
        _code(item) if isinstance(item, types.CodeType) else canonical_json(item)
        for item in code.co_consts
    ]
    return digest([code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, consts])
