"""What a rollout depends on, hashed: program, LMs, adapter and metric.

Texts, field descriptions, demonstrations and settings count with their content; the user's own classes and
functions with their compiled code, so that comments and layout do not; an installed package's with its name alone.
An LM counts with its class, model, decoding parameters and endpoint, never with its credentials; one whose
``cache_identity`` is a text stands at the endpoint of that name, wherever its port is.
"""

from __future__ import annotations

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
_PLAIN = (str, bool, int, float, bytes, type(None), set, frozenset)
# What a function may name and count with; anything else of its module has a life of its own.
_NAMED = (types.FunctionType, type, dspy.Module, dspy.BaseLM, list, tuple, dict, *_PLAIN)
# What grows or changes with every call, or is left on a program and never read when it runs.
_NO_EFFECT = frozenset(
    {"_compiled", "callbacks", "combee_report", "combee_serves", "detailed_results", "history", "stage", "traces",
     "train"}
)  # fmt: skip
_LIBRARIES = tuple(path for name, path in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib")))


def fingerprint(program: dspy.Module, metric: object, *others: object) -> str:
    """Return one hash of all that :func:`fingerprints` tells apart, and of any other JSON values."""
    return _digest([fingerprints(program, metric), *map(canonical_json, others)])


def fingerprints(program: dspy.Module, metric: object) -> dict[str, str]:
    """Return hashes of what a rollout's result depends on: ``"program"``, ``"lms"``, ``"adapter"``, ``"metric"``.

    DSPy's settings are read as they are here and now.
    """
    describer = _Describer(lms=False)
    described = describer.describe(program)
    lms = [_lm(lm) for lm in (dspy.settings.lm, *(predictor.lm for predictor in program.predictors()))]
    # A program may hold others: those of frozen parts, or one that it sets in dspy.context.
    for lm in map(_lm, describer.left_out):
        if lm not in lms:
            lms.append(lm)
    return {
        "program": _digest(described),
        "lms": _digest(lms),
        "adapter": _digest(_Describer().describe(dspy.settings.adapter)),
        "metric": _digest(_Describer().describe(metric)),
    }


def _digest(described: Any) -> str:
    text = json.dumps([dspy.__version__, described], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class _Describer:
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
        if isinstance(value, (Mapping, list, tuple)):
            return self._container(value)
        if isinstance(value, dspy.BaseLM):
            if self._lms:
                return _lm(value)
            self.left_out.append(value)
            return canonical_json(None)
        if isinstance(value, type) and issubclass(value, dspy.Signature):
            return _ADDRESS.sub("", repr(value))
        if isinstance(value, (*_PLAIN, dspy.Example)):
            return canonical_json(value)
        return self._once(value)

    def _container(self, value: Mapping[Any, Any] | Sequence[Any]) -> Any:
        if id(value) in self._within:
            return {"$holder": self._within.index(id(value))}
        self._within.append(id(value))
        try:
            if not isinstance(value, Mapping):
                return [self.describe(item) for item in value]
            kept = {str(key): item for key, item in value.items() if not SECRET_NAME.search(str(key))}
            return {key: self.describe(item) for key, item in kept.items()}
        finally:
            self._within.pop()

    def _once(self, value: Any) -> Any:
        if isinstance(value, functools.partial):
            return [self.describe(part) for part in (value.func, value.args, value.keywords)]
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
        return [
            self.describe(type(value)),
            self.describe({name: item for name, item in state.items() if name not in _NO_EFFECT}),
        ]

    def _class(self, kind: type) -> Any:
        parts = {}
        for each in kind.__mro__:
            for name, part in vars(each).items() if not _installed(each.__module__) else ():
                code = getattr(part, "fget", None) or getattr(part, "__func__", part)
                own = not name.startswith("__") and isinstance(part, _PLAIN)
                if own or isinstance(code, types.FunctionType):
                    parts[f"{each.__qualname__}.{name}"] = self.describe(part if own else code)
        return [_name(kind), parts]

    def _function(self, function: types.FunctionType) -> Any:
        if _installed(function.__module__ or ""):
            return _name(function)
        known, names = function.__globals__, _names(function.__code__)
        named = {name: known[name] for name in sorted(names & known.keys())}
        used = {name: self.describe(item) for name, item in named.items() if isinstance(item, _NAMED)}
        closure = [self.describe(cell.cell_contents) for cell in function.__closure__ or () if _bound(cell)]
        given = [self.describe(function.__defaults__), self.describe(function.__kwdefaults__)]
        return [_name(function), _code(function.__code__), given, closure, used]


def _lm(lm: Any) -> Any:
    said = getattr(lm, "cache_identity", None)
    kwargs = {name: item for name, item in (getattr(lm, "kwargs", None) or {}).items() if item is not None}
    # Headers may all be credentials; a URL may carry one.
    where = [mask(str(kwargs.pop(name, ""))) for name in ("api_base", "base_url", "api_version")]
    return {
        "lm": [_name(type(lm)), str(getattr(lm, "model", "")), str(getattr(lm, "model_type", ""))],
        "kwargs": _Describer().describe({name: item for name, item in kwargs.items() if "header" not in name}),
        "where": said if isinstance(said, str) else [*where, _name(type(getattr(lm, "engine", None)))],
    }


def _bound(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _names(code: types.CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(item) for item in code.co_consts if isinstance(item, types.CodeType)))


def _code(code: types.CodeType) -> str:
    consts = [_code(item) if isinstance(item, types.CodeType) else canonical_json(item) for item in code.co_consts]
    return _digest([code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, consts])


def _name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@functools.cache
def _installed(module: str) -> bool:
    """Whether a module belongs to the standard library or an installed package."""
    if module.partition(".")[0] in sys.stdlib_module_names - {"__main__"}:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return isinstance(file, str) and file.startswith(_LIBRARIES)
