"""Language models that come with the package, and what a run asks of any: a probe, and keys kept out of messages.

:mod:`combee_dspy.lms.redact` imports nothing of DSPy; all else is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from combee_dspy.lms._adapters import ChoiceAdapter, ConstrainedJSONAdapter
    from combee_dspy.lms._embedded import EmbeddedEngine, EmbeddedOptions, embedded
    from combee_dspy.lms._pool import PooledEngine, PooledOptions, pooled
    from combee_dspy.lms._probe import probe

_HOMES = {
    "ChoiceAdapter": "_adapters",
    "ConstrainedJSONAdapter": "_adapters",
    "EmbeddedEngine": "_embedded",
    "EmbeddedOptions": "_embedded",
    "PooledEngine": "_pool",
    "PooledOptions": "_pool",
    "embedded": "_embedded",
    "pooled": "_pool",
    "probe": "_probe",
}

__all__ = [
    "ChoiceAdapter",
    "ConstrainedJSONAdapter",
    "EmbeddedEngine",
    "EmbeddedOptions",
    "PooledEngine",
    "PooledOptions",
    "embedded",
    "pooled",
    "probe",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
