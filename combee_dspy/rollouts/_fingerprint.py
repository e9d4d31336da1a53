"""What a rollout depends on, hashed: program, LMs, adapter and metric.

Texts, field descriptions, demonstrations and settings count with their content;
the user's own classes and functions with their compiled code, so that comments
and layout do not; an installed package's with its name alone. An LM counts with
its class, model, decoding parameters and endpoint, never with its credentials;
one whose ``cache_identity`` is a text stands at the endpoint of that name,
wherever its port is.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sys
import sysconfig
import types
from collections.abc import Mapping
from typing import Any

import dspy

from combee_dspy.hashing import canonical_json
from combee_dspy.lms.redact import SECRET_NAME, mask
from combee_dspy.rollouts._lms import modules_of

__all__ = ["fingerprint", "fingerprints"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_PLAIN = (str, bool, int, float, bytes, type(None), list, tuple, dict, set, frozenset)
# What grows or changes with every call, or is left on a program and never read when it runs.
_PASSING = frozenset({"_compiled", "callbacks", "detailed_results", "history", "stage", "traces", "train"})
_LIBRARIES = tuple(path for name, path in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib")))


def fingerprint(program: dspy.Module, metric: object, *others: object) -> str:
    """Return one hash of all that :func:`fingerprints` tells apart, and of any other JSON values."""
    return _digest([fingerprints(program, metric), *map(canonical_json, others)])


def fingerprints(program: dspy.Module, metric: object) -> dict[str, str]:
    """Return hashes of what a rollout's result depends on: ``"program"``, ``"lms"``, ``"adapter"``, ``"metric"``.

    DSPy's settings are read as they are here and now.
    """
    lms = [dspy.settings.lm, *(predictor.lm for predictor in program.predictors())]
    parts = {
        "program": [[path, _object(module)] for path, module in modules_of(program)],
        "lms": list(map(_lm, lms)),
        "adapter": _object(dspy.settings.adapter),
        "metric": _object(metric),
    }
    return {name: _digest(described) for name, described in parts.items()}


def _digest(described: Any) -> str:
    text = json.dumps([dspy.__version__, described], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _object(value: Any) -> Any:
    """Describe what acts: a module, an adapter, a metric, a function."""
    if isinstance(value, functools.partial):
        return [_object(value.func), _value(value.args), _value(value.keywords)]
    if isinstance(value, types.MethodType):
        return [_object(value.__func__), _object(value.__self__)]
    if isinstance(value, types.FunctionType):
        return _function(value)
    state = {name: item for name, item in getattr(value, "__dict__", {}).items() if name not in _PASSING}
    return [_class(type(value)), _value(state)]


def _value(value: Any) -> Any:
    """Describe what something holds. Modules and LMs are described in their own place."""
    if isinstance(value, Mapping):
        kept = {str(key): item for key, item in value.items() if not SECRET_NAME.search(str(key))}
        return {key: _value(item) for key, item in kept.items() if not isinstance(item, (dspy.Module, dspy.BaseLM))}
    if isinstance(value, (list, tuple)):
        return [_value(item) for item in value if not isinstance(item, (dspy.Module, dspy.BaseLM))]
    if isinstance(value, type) and issubclass(value, dspy.Signature):
        return _ADDRESS.sub("", repr(value))
    if isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
        return _object(value)
    return _ADDRESS.sub("", canonical_json(value))


def _lm(lm: Any) -> Any:
    said = getattr(lm, "cache_identity", None)
    kwargs = {name: item for name, item in (getattr(lm, "kwargs", None) or {}).items() if item is not None}
    # Headers may all be credentials; a URL may carry one.
    where = [mask(str(kwargs.pop(name, ""))) for name in ("api_base", "base_url", "api_version")]
    return {
        "lm": [_name(type(lm)), str(getattr(lm, "model", "")), str(getattr(lm, "model_type", ""))],
        "kwargs": _value({name: item for name, item in kwargs.items() if "header" not in name}),
        "where": said if isinstance(said, str) else [*where, _name(type(getattr(lm, "engine", None)))],
    }


def _class(kind: type) -> Any:
    parts = {}
    for each in kind.__mro__:
        for name, part in vars(each).items() if not _installed(each.__module__) else ():
            code = getattr(part, "fget", None) or getattr(part, "__func__", part)
            if isinstance(code, types.FunctionType):
                parts[f"{each.__qualname__}.{name}"] = _function(code)
            elif isinstance(part, _PLAIN) and not name.startswith("__"):
                parts[f"{each.__qualname__}.{name}"] = _value(part)
    return [_name(kind), parts]


def _function(function: types.FunctionType) -> Any:
    if _installed(function.__module__ or ""):
        return _name(function)
    known, names = function.__globals__, _names(function.__code__)
    # Functions and constants of its own module that it names; not what those name in turn.
    named = {name: known[name] for name in names & known.keys()}
    used = {name: _used(item) for name, item in named.items() if isinstance(item, (types.FunctionType, *_PLAIN))}
    closure = [_value(cell.cell_contents) for cell in function.__closure__ or () if _bound(cell)]
    given = [_value(function.__defaults__), _value(function.__kwdefaults__)]
    return [_name(function), _code(function.__code__), given, closure, used]


def _used(item: Any) -> Any:
    return [_name(item), _code(item.__code__)] if isinstance(item, types.FunctionType) else _value(item)


def _bound(cell: Any) -> bool:
    try:
        # A function that names itself would never end.
        return not isinstance(cell.cell_contents, types.FunctionType)
    except ValueError:
        return False


def _names(code: types.CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(item) for item in code.co_consts if isinstance(item, types.CodeType)))


def _code(code: types.CodeType) -> str:
    consts = [
        # The order of a frozenset is another in each process.
        _code(item)
        if isinstance(item, types.CodeType)
        else sorted(map(repr, item))
        if isinstance(item, frozenset)
        else repr(item)
        for item in code.co_consts
    ]
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
