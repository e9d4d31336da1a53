"""Asking pydantic once a type how to write its values, instead of once a value."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dspy.adapters import utils

__all__ = ["types_once"]

_LOCK = threading.Lock()
_INSIDE = 0
_NAME = "TypeAdapter"
_PLAIN = (str, int, float, bool, list, dict, tuple, type(None))


@contextmanager
def types_once() -> Iterator[None]:
    """Remember pydantic's adapters of the plain types, for a ``with`` block, in the whole process.

    For every field of every demonstration in every prompt DSPy makes an adapter
    anew: with a handful of demonstrations a fifth of what a call costs this
    process (dspy 3.4.1). Only for Python's own
    plain types, whose adapters hold no state and never change; all else goes to pydantic.

    Blocks may overlap. A version of DSPy that makes them in another place is left alone.
    """
    global _INSIDE
    with _LOCK:
        _INSIDE += 1
        if _INSIDE == 1:
            make = getattr(utils, _NAME, None)
            if callable(make):
                setattr(utils, _NAME, _Remembered(make))
    try:
        yield
    finally:
        with _LOCK:
            _INSIDE -= 1
            if _INSIDE == 0:
                make = getattr(utils, _NAME, None)
                # Somebody else may have put another one in its place meanwhile.
                if isinstance(make, _Remembered):
                    setattr(utils, _NAME, make.make)


class _Remembered:
    """Thread-safe: it is filled before anybody asks."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make
        self._known = {kind: make(kind) for kind in _PLAIN}

    def __call__(self, kind: Any, *args: Any, **kwargs: Any) -> Any:
        if not args and not kwargs and isinstance(kind, type) and kind in self._known:
            return self._known[kind]
        return self.make(kind, *args, **kwargs)
