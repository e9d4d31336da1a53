"""Values as JSON, to be hashed: see :mod:`combee_dspy.rollouts._fingerprint`."""

from __future__ import annotations

import dis
import functools
import hashlib
import json
import re
import sys
import sysconfig
import types
from collections.abc import Mapping, Sequence
from typing import Any

import dspy

from combee_dspy.hashing import canonical_json
from combee_dspy.lms.redact import SECRET_NAME, mask

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
PLAIN = (str, bool, int, float, bytes, type(None), set, frozenset)
"""Values that stand for themselves."""
# What a function may name and count with; anything else of its module has a life of its own.
_NAMED = (types.FunctionType, type, dspy.Module, dspy.BaseLM, list, tuple, dict, *PLAIN)
NO_EFFECT = frozenset(
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
"""What grows or changes with every call, or is left on a program and never read when it runs."""
_LIBRARIES = tuple(
    path for name, path in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib"))
)
_READS_NAME = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})


def digest(described: Any) -> str:
    """Return the hash of a description."""
    text = json.dumps([dspy.__version__, described], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class Describer:
    """Values as JSON; what acts (modules, functions, classes) in full once.

    Args:
        lms: Whether LMs count.

    Attributes:
        left_out: The LMs met that do not count, in their order.
    """

    def __init__(self, *, lms: bool = True) -> None:
        self._lms = lms
        self.left_out: list[dspy.BaseLM] = []
        # With the object, so that no identity is taken over by another.
        self._seen: dict[int, tuple[int, object]] = {}
        # Identities of the containers that hold what is described now, the outermost first.
        self._within: list[int] = []

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
        if isinstance(value, (*PLAIN, dspy.Example)):
            return canonical_json(value)
        return self._once(value)

    def _container(self, value: Mapping[Any, Any] | Sequence[Any]) -> Any:
        if id(value) in self._within:
            return {"$holder": self._within.index(id(value))}
        self._within.append(id(value))
        try:
            if isinstance(value, Mapping):
                return self._named({str(key): item for key, item in value.items()})
            return [self.describe(item) for item in value]
        finally:
            self._within.pop()

    def _named(self, values: Mapping[str, Any]) -> Any:
        """Describe values by name, without secrets."""
        return {
            name: self.describe(item)
            for name, item in values.items()
            if not SECRET_NAME.search(name)
        }

    def _once(self, value: Any) -> Any:
        if isinstance(value, functools.partial):
            return [
                self.describe(value.func),
                self.describe(value.args),
                self._named(value.keywords),
            ]
        if isinstance(value, types.MethodType):
            return [self.describe(value.__func__), self.describe(value.__self__)]
        if id(value) in self._seen:
            return {"$again": self._seen[id(value)][0]}
        self._seen[id(value)] = (len(self._seen), value)
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, type):
            return self._class(value)
        return self._object(value)

    def _object(self, value: Any) -> Any:
        state = getattr(value, "__dict__", None)
        if not isinstance(state, dict) or isinstance(value, types.ModuleType):
            return _ADDRESS.sub("", canonical_json(value))
        lasting = {name: item for name, item in state.items() if name not in NO_EFFECT}
        return [self.describe(type(value)), self._named(lasting)]

    def _class(self, kind: type) -> Any:
        parts = {}
        for each in kind.__mro__:
            for name, part in vars(each).items() if not is_installed(each.__module__) else ():
                code = getattr(part, "fget", None) or getattr(part, "__func__", part)
                own = not name.startswith("__") and isinstance(part, PLAIN)
                if own or isinstance(code, types.FunctionType):
                    parts[f"{each.__qualname__}.{name}"] = self.describe(part if own else code)
        return [name_of(kind), parts]

    def _function(self, function: types.FunctionType) -> Any:
        # Code that was executed without a module of its own claims to be built in.
        if function.__module__ != "builtins" and is_installed(function.__module__ or ""):
            return name_of(function)
        variables, names = function.__globals__, _names(function.__code__)
        named = {name: variables[name] for name in sorted(names & variables.keys())}
        used = {name: item for name, item in named.items() if isinstance(item, _NAMED)}
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        closure = [(name, cell.cell_contents) for name, cell in cells if _bound(cell)]
        return [
            name_of(function),
            _code(function.__code__),
            [self.describe(function.__defaults__), self._named(function.__kwdefaults__ or {})],
            self._closure(closure),
            self._globals(used),
        ]

    def _closure(self, variables: Sequence[tuple[str, Any]]) -> Any:
        return [self.describe(item) for _, item in variables]

    def _globals(self, variables: Mapping[str, Any]) -> Any:
        return {name: self.describe(item) for name, item in variables.items()}


def describe_lm(lm: Any) -> Any:
    identity = getattr(lm, "cache_identity", None)
    kwargs = {
        name: item for name, item in (getattr(lm, "kwargs", None) or {}).items() if item is not None
    }
    # Headers may all be credentials; a URL may carry one.
    where = [mask(str(kwargs.pop(name, ""))) for name in ("api_base", "base_url", "api_version")]
    return {
        "lm": [
            name_of(type(lm)),
            str(getattr(lm, "model", "")),
            str(getattr(lm, "model_type", "")),
        ],
        "kwargs": (
            Describer().describe(
                {name: item for name, item in kwargs.items() if "header" not in name}
            )
        ),
        "where": (
            identity
            if isinstance(identity, str)
            else [*where, name_of(type(getattr(lm, "engine", None)))]
        ),
    }


def _bound(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def codes_in(code: types.CodeType) -> list[types.CodeType]:
    """Return compiled code and all that is nested in it."""
    nested = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return [code, *(inner for part in nested for inner in codes_in(part))]


@functools.lru_cache(maxsize=1_024)
def _names(code: types.CodeType) -> frozenset[str]:
    """Return the global names that code reads. Its ``co_names`` would name attributes too."""
    return frozenset(
        step.argval
        for part in codes_in(code)
        for step in dis.get_instructions(part)
        if step.opname in _READS_NAME
    )


def _code(code: types.CodeType) -> str:
    consts = [
        _code(item) if isinstance(item, types.CodeType) else canonical_json(item)
        for item in code.co_consts
    ]
    return digest([code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, consts])


def name_of(kind: Any) -> str:
    """Return the full name of a class or function."""
    return f"{kind.__module__}.{kind.__qualname__}"


@functools.cache
def is_installed(module: str) -> bool:
    """Whether a module belongs to the standard library or an installed package."""
    if module == "__main__":
        return False  # a notebook's own code, though its launcher is installed
    if module.partition(".")[0] in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return isinstance(file, str) and file.startswith(_LIBRARIES)
