"""Searching DSPy's table of models once a model, instead of twice a call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dspy.clients import capabilities, costs

__all__ = ["metadata_once"]

_LOCK = threading.Lock()
_INSIDE = 0
_PLACES = (capabilities, costs)
_NAME = "model_info"


@contextmanager
def metadata_once() -> Iterator[None]:
    """Remember what DSPy's table says of each model, for a ``with`` block, in the whole process.

    With each call DSPy looks up the model's abilities and prices. A model that its
    table does not name, as any that one hosts oneself, costs two searches
    through all of it: more than half of what a call costs this process (dspy
    3.4.1). What is found is the same each time, as long as the table is.

    Blocks may overlap. A version of DSPy that searches in another place is left alone.
    """
    global _INSIDE
    with _LOCK:
        _INSIDE += 1
        if _INSIDE == 1:
            for place in _PLACES:
                search = getattr(place, _NAME, None)
                if callable(search):
                    setattr(place, _NAME, _Remembered(search))
    try:
        yield
    finally:
        with _LOCK:
            _INSIDE -= 1
            if _INSIDE == 0:
                for place in _PLACES:
                    search = getattr(place, _NAME, None)
                    # Somebody else may have put another one in its place meanwhile.
                    if isinstance(search, _Remembered):
                        setattr(place, _NAME, search.search)


class _Remembered:
    """Thread-safe: two threads that search for the same model at once find the same."""

    def __init__(self, search: Callable[..., Mapping[str, Any]]) -> None:
        self.search = search
        self._known: dict[Any, Mapping[str, Any]] = {}

    def __call__(self, provider: str, model: str, *, namespaces: Any = None) -> dict[str, Any]:
        key = (provider, model, None if namespaces is None else tuple(namespaces))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self.search(provider, model, namespaces=namespaces)
        # The original gives every caller a copy.
        return dict(found)
