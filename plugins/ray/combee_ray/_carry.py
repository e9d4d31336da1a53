"""What travels between the run's process and a worker, and how.

A program with its metric, LMs and DSPy settings travels to a worker once. A
rollout travels as its example, and comes back with the program's predictors
and signatures named by their paths, so that its trace points at the run's own
objects again.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle
import dspy
from combee_dspy.costs import ROLLOUT_SETTING, is_recorder
from combee_dspy.exceptions import ArgumentTypeError

__all__ = ["CannotTravelError", "dump", "load", "names_of", "settings_here"]

# Of one call or one process: the worker has its own.
_STAY = frozenset(
    {
        "callbacks",
        "caller_modules",
        "caller_predict",
        "send_stream",
        "stream_listeners",
        "trace",
        "usage_tracker",
        ROLLOUT_SETTING,
    }
)


class CannotTravelError(ArgumentTypeError):
    """An object cannot be taken to another process."""


class _Pickler(cloudpickle.Pickler):
    """Pickles by value what no other process can import, and names what it has already.

    Args:
        file: Where to write.
        names: Name of each object that the reader has, by identity.
    """

    def __init__(self, file: Any, names: Mapping[int, tuple[str, ...]]) -> None:
        super().__init__(file, protocol=5)
        self._names = names
        self._bare: list[Any] = []

    def persistent_id(self, obj: Any) -> tuple[str, ...] | None:
        return self._names.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        # An LM remembers its last ten thousand calls: they are this process's.
        if isinstance(obj, dspy.BaseLM) and getattr(obj, "history", None):
            bare = copy.copy(obj)
            bare.history = []
            self._bare.append(bare)  # Kept alive: the pickler's memo goes by identity.
            return bare.__reduce_ex__(5)
        return super().reducer_override(obj)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, things: Mapping[tuple[str, ...], Any]) -> None:
        super().__init__(file)
        self._things = things

    def persistent_load(self, pid: Any) -> Any:
        return self._things[pid]


def dump(thing: Any, things: Mapping[tuple[str, ...], Any] | None = None) -> bytes:
    """Return an object as bytes.

    Args:
        thing: The object.
        things: What the reader has already, by name.
    """
    file = io.BytesIO()
    _Pickler(file, {id(one): name for name, one in (things or {}).items()}).dump(thing)
    return file.getvalue()


def load(data: bytes, things: Mapping[tuple[str, ...], Any] | None = None) -> Any:
    """Read what :func:`dump` wrote in another process of this run."""
    return _Unpickler(io.BytesIO(data), things or {}).load()


def names_of(program: dspy.Module, example: Any) -> dict[tuple[str, ...], Any]:
    """Return what both sides of a rollout have, by name: the program, its predictors and signatures, the example."""
    found: dict[tuple[str, ...], Any] = {}
    for path, predictor in program.named_predictors():
        found["predictor", path] = predictor
        signature = getattr(predictor, "signature", None)
        if signature is not None:
            found["signature", path] = signature
    found["program",] = program
    found["example",] = example
    return found


def settings_here() -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the DSPy settings that travel, and the class names of callbacks that do not."""
    every = dspy.settings.copy()
    callbacks = [callback for callback in every.get("callbacks") or [] if not is_recorder(callback)]
    left = tuple(sorted({type(callback).__name__ for callback in callbacks}))
    return {name: value for name, value in every.items() if name not in _STAY}, left


def packed(argument: str, thing: Any, make: Callable[[], bytes]) -> bytes:
    """Return what ``make`` returns.

    Raises:
        CannotTravelError: It cannot be made, because ``thing`` holds something that only this process can have.
    """
    try:
        return make()
    except Exception as error:  # whatever an object's own pickling raises is the reason to tell
        remedy = "Take out what only this process can have (locks, connections, open files), or use executor='threads'."
        problem = f"cannot be taken to a Ray worker: {type(error).__name__}: {error}"
        raise CannotTravelError(argument, type(thing).__name__, problem, remedy) from error
