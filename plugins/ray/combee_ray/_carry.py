"""What travels between the run's process and a worker, and how.

A program with its metric, LMs, prices and DSPy settings travels to a worker
once; a rollout travels as its example, and comes back as the record that it is.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from typing import Any

import cloudpickle
import dspy
from combee_dspy.exceptions import ArgumentTypeError

__all__ = ["CannotTravelError", "dump", "load", "packed", "settings_here"]

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
    }
)


class CannotTravelError(ArgumentTypeError):
    """An object cannot be taken to another process."""


class _Pickler(cloudpickle.Pickler):
    """Pickles by value what no other process can import, and LMs without what they remember."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=5)
        self._bare: list[Any] = []

    def reducer_override(self, obj: Any) -> Any:
        # An LM remembers its last ten thousand calls: they are this process's.
        if isinstance(obj, dspy.BaseLM) and getattr(obj, "history", None):
            bare = copy.copy(obj)
            bare.history = []
            self._bare.append(bare)  # Kept alive: the pickler's memo goes by identity.
            return bare.__reduce_ex__(5)
        return super().reducer_override(obj)


def dump(thing: Any) -> bytes:
    """Return an object as bytes."""
    file = io.BytesIO()
    _Pickler(file).dump(thing)
    return file.getvalue()


def load(data: bytes) -> Any:
    """Read what :func:`dump` wrote in another process of this run."""
    return pickle.loads(data)


def settings_here() -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the DSPy settings that travel, and the class names of callbacks that do not."""
    every = dspy.settings.copy()
    left = tuple(sorted({type(callback).__name__ for callback in every.get("callbacks") or []}))
    return {name: value for name, value in every.items() if name not in _STAY}, left


def packed(argument: str, thing: Any, make: Callable[[], bytes]) -> bytes:
    """Return what ``make`` returns.

    Raises:
        CannotTravelError: It cannot be made, because ``thing`` holds something that only this
            process can have.
    """
    try:
        return make()
    except Exception as error:  # whatever an object's own pickling raises is the reason to tell
        remedy = "Take out what only this process can have (locks, connections, open files), or use executor='threads'."
        problem = f"cannot be taken to a Ray worker: {type(error).__name__}: {error}"
        raise CannotTravelError(argument, type(thing).__name__, problem, remedy) from error
