"""What an object is and does, as JSON values: its code, and what it holds.

Two objects with the same description behave alike, as far as this can be told
without running them. Code counts as compiled, so that comments and layout do
not: instructions, constants and names, then the functions, classes, modules
and values that these names stand for, as long as they are the user's own. Code
of an installed package counts by its name and the package's version.

What cannot be told: state behind a lock, a socket or a file, and code that is
reached by a name made at run time. An object whose ``cache_identity`` is a text
is taken by that text alone: the way to say what this cannot see, and to leave
out what does not matter, such as a counter.
"""

from __future__ import annotations

import dataclasses
import dis
import enum
import functools
import json
import re
import sys
import sysconfig
import types
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, get_args

from combee_dspy.hashing import canonical_json
from combee_dspy.lms.redact import SECRET_NAME

__all__ = ["Describer"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_SCALARS = (str, bool, int, float, bytes, type(None))
# Where a state has no bearing on what an object returns, or none that can be read.
_OPAQUE = frozenset({"_asyncio", "_io", "_queue", "_socket", "_thread", "asyncio", "concurrent", "contextvars"}) | {
    "ctypes",
    "logging",
    "queue",
    "sched",
    "select",
    "selectors",
    "socket",
    "sqlite3",
    "ssl",
    "threading",
    "weakref",
}
_CODE_NAMES = frozenset({"__init__", "__call__", "__getattr__", "__getattribute__", "__post_init__", "__new__"})
# What DSPy and this package leave on a program or an adapter, and never read when it runs.
_PASSING = frozenset({"_compiled", "callbacks", "combee_report", "detailed_results", "history"})
_LIBRARIES = tuple(
    {str(Path(path).resolve()) for name, path in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib"))}
)


class Describer:
    """Describes objects; each function and class in full once, by name from then on.

    Subclasses know further types. One object describes one thing. Not thread-safe.
    """

    def __init__(self) -> None:
        self._seen: set[int] = set()
        # Held, so that no identity in `_seen` is taken over by another object.
        self._kept: list[object] = []

    def describe(self, value: object) -> Any:
        """Return JSON values that tell this value from others."""
        return self._any(value, ())

    def _special(self, value: object, path: tuple[int, ...]) -> Any:
        """Return the description of a type that a subclass knows, else ``None``."""
        return None

    def _any(self, value: object, path: tuple[int, ...]) -> Any:
        if type(value) in _SCALARS:
            return canonical_json(value)
        if id(value) in path:
            return {"$cycle": len(path) - path.index(id(value))}
        path = (*path, id(value))
        identity = self._said(value)
        if identity is not None:
            return {"$identity": identity, "class": _name(type(value))}
        found = self._special(value, path)
        if found is not None:
            return found
        if isinstance(value, (list, tuple)):
            return [type(value).__name__, *(self._any(item, path) for item in value)]
        if isinstance(value, Mapping) and isinstance(value, dict):
            return {"$dict": self._pairs(value, path)}
        if isinstance(value, AbstractSet):
            return {"$set": sorted((self._any(item, path) for item in value), key=_sort_key)}
        return self._code(value, path) or self._object(value, path)

    @staticmethod
    def _said(value: object) -> str | None:
        if isinstance(value, type):
            return None
        try:
            said = getattr(value, "cache_identity", None)
        except Exception:  # noqa: BLE001 - an attribute of the user's own that raises says nothing
            return None
        return said if isinstance(said, str) else None

    def _pairs(self, value: Mapping[Any, Any], path: tuple[int, ...]) -> list[Any]:
        return sorted(([self._any(key, path), self._any(item, path)] for key, item in value.items()), key=_sort_key)

    def _code(self, value: object, path: tuple[int, ...]) -> Any:
        """Return the description of what is code, else ``None``."""
        if isinstance(value, types.FunctionType):
            return self._function(value, path)
        if isinstance(value, types.MethodType):
            return {"$method": self._any(value.__func__, path), "self": self._any(value.__self__, path)}
        if isinstance(value, functools.partial):
            return {"$partial": [self._any(part, path) for part in (value.func, value.args, value.keywords)]}
        if isinstance(value, (staticmethod, classmethod, property)):
            parts = (value.fget, value.fset) if isinstance(value, property) else (value.__func__,)
            return {f"${type(value).__name__}": [self._any(part, path) for part in parts]}
        if isinstance(value, type):
            return self._class(value, path)
        if isinstance(value, (types.CodeType, types.ModuleType)):
            return self._bytecode(value, path) if isinstance(value, types.CodeType) else _module(value)
        wrapped = getattr(value, "__wrapped__", None)
        if isinstance(wrapped, types.FunctionType):
            return {"$wrapper": _name(type(value)), "of": self._any(wrapped, path)}
        if isinstance(value, (types.BuiltinFunctionType, types.GenericAlias)) or type(value).__module__ == "typing":
            arguments = [self._any(item, path) for item in get_args(value)]
            return {"$named": _ADDRESS.sub("", repr(value)), "arguments": arguments}
        return None

    def _function(self, function: types.FunctionType, path: tuple[int, ...]) -> Any:
        # Generated functions may have no module.
        module = function.__module__ or ""
        name = f"{module}.{function.__qualname__}"
        # A function of a package counts by its version; one of this package may be under change itself.
        if _installed(module) and not _ours(module):
            return {"$function": name, "version": _version(module)}
        if not self._first(function):
            return {"$again": name}
        cells = [self._cell(cell, path) for cell in function.__closure__ or ()]
        return {
            "$function": name,
            "code": self._bytecode(function.__code__, path),
            "defaults": [self._any(part, path) for part in (function.__defaults__, function.__kwdefaults__)],
            "closure": cells,
            "globals": {} if _installed(module) else self._globals(function, path),
        }

    def _cell(self, cell: Any, path: tuple[int, ...]) -> Any:
        try:
            return self._any(cell.cell_contents, path)
        except ValueError:
            return "empty"

    def _bytecode(self, code: types.CodeType, path: tuple[int, ...]) -> Any:
        parts = (code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_exceptiontable, code.co_flags)
        return [*(self._any(part, ()) for part in parts), [self._any(item, path) for item in code.co_consts]]

    def _globals(self, function: types.FunctionType, path: tuple[int, ...]) -> dict[str, Any]:
        loaded, asked = _names(function.__code__)
        found: dict[str, Any] = {}
        for name in sorted(loaded & function.__globals__.keys()):
            value = function.__globals__[name]
            found[name] = self._any(value, path)
            if isinstance(value, types.ModuleType) and not _installed(value.__name__):
                for inner in sorted(asked & vars(value).keys()):
                    found[f"{name}.{inner}"] = self._any(vars(value)[inner], path)
        return found

    def _class(self, kind: type, path: tuple[int, ...]) -> Any:
        found: list[dict[str, Any]] = []
        for each in kind.__mro__:
            if each is object:
                continue
            if _installed(each.__module__) and not (each is kind and _ours(each.__module__)):
                found.append({"$class": _name(each), "version": _version(each.__module__)})
            elif not self._first(each):
                found.append({"$again": _name(each)})
            else:
                parts = {name: self._any(part, path) for name, part in sorted(vars(each).items()) if _tells(name, part)}
                found.append({"$class": _name(each), "parts": parts, "fields": self._annotations(each, path)})
        return found[0] if len(found) == 1 else found

    def _annotations(self, kind: type, path: tuple[int, ...]) -> dict[str, Any]:
        fields = vars(kind).get("__pydantic_fields__")
        if isinstance(fields, dict):
            return {
                name: [_ADDRESS.sub("", repr(field)), self._any(field.annotation, path)]
                for name, field in fields.items()
            }
        return {name: _ADDRESS.sub("", repr(said)) for name, said in vars(kind).get("__annotations__", {}).items()}

    def _object(self, value: object, path: tuple[int, ...]) -> Any:
        kind = type(value)
        if isinstance(value, enum.Enum):
            return {"$enum": _name(kind), "value": value.name}
        if kind.__module__.split(".", 1)[0] in _OPAQUE:
            return {"$opaque": _name(kind)}
        if callable(getattr(value, "tobytes", None)):
            return canonical_json(value)
        if dataclasses.is_dataclass(value):
            state: Any = {item.name: getattr(value, item.name, None) for item in dataclasses.fields(value)}
        elif isinstance(getattr(kind, "model_fields", None), dict):
            state = {name: getattr(value, name, None) for name in kind.model_fields}  # type: ignore[attr-defined]  # checked above
        elif kind.__repr__ is object.__repr__ or hasattr(value, "__dict__"):
            state = _state(value)
        else:
            return {"$repr": _ADDRESS.sub("", repr(value)), "class": self._any(kind, path)}
        return {"$object": self._any(kind, path), "state": self._state(state, path)}

    def _state(self, state: Any, path: tuple[int, ...]) -> Any:
        if not isinstance(state, Mapping):
            return self._any(state, path)
        kept = {name: item for name, item in state.items() if name not in _PASSING and not _secret(name, item)}
        return self._pairs(kept, path)

    def _first(self, value: object) -> bool:
        if id(value) in self._seen:
            return False
        self._seen.add(id(value))
        self._kept.append(value)
        return True


def _module(value: types.ModuleType) -> Any:
    return {"$module": value.__name__, "version": _version(value.__name__)}


def _state(value: object) -> Any:
    try:
        return value.__getstate__()
    except Exception:  # noqa: BLE001 - what refuses to be copied is told by its attributes
        return dict(getattr(value, "__dict__", {}))


def _secret(name: object, item: object) -> bool:
    """Whether a value is a credential: a new key is no other program."""
    return isinstance(name, str) and isinstance(item, str) and SECRET_NAME.search(name) is not None


def _tells(name: str, part: object) -> bool:
    """Whether a part of a class's body has a bearing on what its objects do."""
    code = isinstance(part, (types.FunctionType, staticmethod, classmethod, property)) or hasattr(part, "__wrapped__")
    dunder = name.startswith("__") and name.endswith("__")
    return (code and (not dunder or name in _CODE_NAMES)) or (
        not dunder and type(part) in (*_SCALARS, list, tuple, dict)
    )


@functools.cache
def _names(code: types.CodeType) -> tuple[frozenset[str], frozenset[str]]:
    """Return the globals that code loads, and the attributes that it asks of anything."""
    loaded: set[str] = set()
    asked: set[str] = set()
    for one in dis.get_instructions(code):
        if one.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            loaded.add(str(one.argval))
        elif one.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
            asked.add(str(one.argval))
    for item in code.co_consts:
        if isinstance(item, types.CodeType):
            inner = _names(item)
            loaded |= inner[0]
            asked |= inner[1]
    return frozenset(loaded), frozenset(asked)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _sort_key(item: Any) -> str:
    return json.dumps(item, sort_keys=True)


def _ours(module: str) -> bool:
    return module.split(".", 1)[0] == "combee_dspy"


@functools.cache
def _installed(module: str) -> bool:
    """Whether a module belongs to the standard library, to an installed package or to this one."""
    top = module.split(".", 1)[0]
    if top in sys.builtin_module_names or top in sys.stdlib_module_names - {"__main__"} or _ours(module):
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return isinstance(file, str) and str(Path(file).resolve()).startswith(_LIBRARIES)


@functools.cache
def _version(module: str) -> str:
    top = module.split(".", 1)[0]
    if top in sys.stdlib_module_names:
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    return str(getattr(sys.modules.get(top), "__version__", ""))
