"""What a rollout depends on, hashed: program, LMs, adapter and metric.

A program counts with its classes' code, and with the texts, field descriptions
and demonstrations of every predictor. An LM counts with its class, model,
decoding parameters and endpoint, never with its credentials; one whose
``cache_identity`` is a text stands at the endpoint of that name, wherever its
port is. A metric counts with its code and that of the functions of its own
module that it names; an installed package's code by its name alone.
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

from combee_dspy.lms.redact import SECRET_NAME, mask

__all__ = ["fingerprint", "fingerprints"]

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_SCALARS = (str, bool, int, float, bytes, type(None))
# What grows or changes with every call, or is left on a program and never read when it runs.
_PASSING = frozenset({"_compiled", "callbacks", "detailed_results", "history", "stage", "traces", "train"})
_LIBRARIES = tuple(path for name, path in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib")))


def fingerprint(program: dspy.Module, metric: object, *others: object) -> str:
    """Return one hash of all that :func:`fingerprints` tells apart, and of any other values."""
    parts = [*sorted(fingerprints(program, metric).items()), *(_Describer().any(other) for other in others)]
    return _digest(parts)


def fingerprints(program: dspy.Module, metric: object) -> dict[str, str]:
    """Return hashes of what a rollout's result depends on: ``"program"``, ``"lms"``, ``"adapter"``, ``"metric"``.

    DSPy's settings are read as they are here and now.
    """
    settings = dspy.settings
    own = [getattr(predictor, "lm", None) for predictor in program.predictors()]
    described = {
        "program": program,
        "lms": [settings.lm, *own],
        "adapter": settings.adapter,
        "metric": metric,
    }
    return {name: _digest(_Describer().any(value)) for name, value in described.items()}


def _digest(described: Any) -> str:
    text = json.dumps([dspy.__version__, described], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


class _Describer:
    """Values as JSON; each object in full once, so that cycles end."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, object]] = {}

    def any(self, value: object) -> Any:
        if isinstance(value, _SCALARS):
            return repr(value)
        if isinstance(value, (list, tuple)):
            return [type(value).__name__, *map(self.any, value)]
        if isinstance(value, (set, frozenset)):
            return {"$set": sorted(json.dumps(self.any(item), sort_keys=True) for item in value)}
        if id(value) in self._seen:
            return {"$again": self._seen[id(value)][0]}
        # Held, so that no identity is taken over by another object.
        self._seen[id(value)] = (len(self._seen), value)
        if isinstance(value, Mapping):
            return {"$mapping": self._pairs(value)}
        if isinstance(value, dspy.BaseLM):
            return self._lm(value)
        if isinstance(value, dspy.Example):
            return {"$example": self._pairs(dict(value.items(include_dspy=True)))}
        if isinstance(value, type):
            return self._signature(value) if issubclass(value, dspy.Signature) else self._class(value)
        return self._code(value) or self._object(value)

    def _pairs(self, values: Mapping[Any, Any]) -> list[Any]:
        kept = [(key, item) for key, item in values.items() if not (isinstance(key, str) and SECRET_NAME.search(key))]
        return sorted(([str(key), self.any(item)] for key, item in kept), key=lambda pair: str(pair[0]))

    def _lm(self, lm: Any) -> Any:
        said = getattr(lm, "cache_identity", None)
        kwargs = {name: item for name, item in (getattr(lm, "kwargs", None) or {}).items() if item is not None}
        # Headers may all be credentials; a URL may carry one.
        where = {
            name: mask(str(kwargs.pop(name))) for name in ("api_base", "base_url", "api_version") if name in kwargs
        }
        given = {name: item for name, item in kwargs.items() if "header" not in name}
        engine = getattr(lm, "engine", None)
        return {
            "$lm": [_name(type(lm)), str(getattr(lm, "model", "")), str(getattr(lm, "model_type", ""))],
            "kwargs": self._pairs(given),
            "where": said if isinstance(said, str) else [*sorted(where.items()), _name(type(engine))],
        }

    def _signature(self, signature: Any) -> Any:
        fields = [
            [name, _ADDRESS.sub("", repr(one.annotation)), self.any(one.json_schema_extra), repr(one.metadata)]
            for name, one in signature.fields.items()
        ]
        return {"$signature": signature.instructions, "fields": fields}

    def _class(self, kind: type) -> Any:
        own = [each for each in kind.__mro__ if not _installed(each.__module__)]
        parts = {
            f"{each.__qualname__}.{name}": self.any(part)
            for each in own
            for name, part in vars(each).items()
            if isinstance(part, (types.FunctionType, staticmethod, classmethod, property, *_SCALARS[:5]))
            and name not in ("__module__", "__doc__", "__qualname__")
        }
        return {"$class": _name(kind), "parts": parts}

    def _code(self, value: Any) -> Any:
        """Return the description of what is code, else ``None``."""
        if isinstance(value, (staticmethod, classmethod)):
            return self.any(value.__func__)
        if isinstance(value, property):
            return [self.any(value.fget), self.any(value.fset)]
        if isinstance(value, types.MethodType):
            return {"$method": self.any(value.__func__), "self": self.any(value.__self__)}
        if isinstance(value, functools.partial):
            return {"$partial": [self.any(part) for part in (value.func, value.args, value.keywords)]}
        if not isinstance(value, types.FunctionType):
            return None
        if _installed(value.__module__ or ""):
            return {"$function": _name(value)}
        names = _names(value.__code__)
        used = {name: value.__globals__[name] for name in sorted(names & value.__globals__.keys())}
        return {
            "$function": _name(value),
            "code": _code_hash(value.__code__),
            "given": [self.any(value.__defaults__), self.any(value.__kwdefaults__)],
            "closure": [self.any(_content(cell)) for cell in value.__closure__ or ()],
            "globals": {
                name: self.any(item)
                for name, item in used.items()
                if isinstance(item, (types.FunctionType, *_SCALARS, list, tuple, dict, set, frozenset))
            },
        }

    def _object(self, value: Any) -> Any:
        state = getattr(value, "__dict__", None)
        if not isinstance(state, dict) or isinstance(value, types.ModuleType):
            return {"$repr": _ADDRESS.sub("", repr(value)), "class": _name(type(value))}
        # A predictor's LM is told apart from the program: changing it is another matter.
        kept = {
            name: item for name, item in state.items() if name not in _PASSING and not isinstance(item, dspy.BaseLM)
        }
        return {"$object": self.any(type(value)), "state": self._pairs(kept)}


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return None


def _names(code: types.CodeType) -> set[str]:
    inner = (item for item in code.co_consts if isinstance(item, types.CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _code_hash(code: types.CodeType) -> str:
    consts = [
        _code_hash(item)
        if isinstance(item, types.CodeType)
        else _ADDRESS.sub("", repr(item))
        if not isinstance(item, frozenset)
        else repr(sorted(map(repr, item)))
        for item in code.co_consts
    ]
    return _digest([code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, consts])


def _name(kind: Any) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@functools.cache
def _installed(module: str) -> bool:
    """Whether a module belongs to the standard library or an installed package: told by its name."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names - {"__main__"}:
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    return isinstance(file, str) and file.startswith(_LIBRARIES)
