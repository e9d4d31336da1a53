"""Language models that come with the package, and what a run asks of any: a probe, and keys kept
out of messages.

:mod:`combee_dspy.lms.redact` imports nothing of DSPy; all else is loaded on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from combee_dspy.lms._adapters import ChoiceAdapter, ConstrainedJSONAdapter
    from combee_dspy.lms._asking import adapter_for
    from combee_dspy.lms._deadlines import (
        AsyncDeadlineTransport,
        DeadlineTransport,
        reply_within,
        reply_within_on_loop,
    )
    from combee_dspy.lms._embedded import EmbeddedEngine, embedded
    from combee_dspy.lms._pool import PooledEngine, PooledOptions, pooled
    from combee_dspy.lms._probe import probe
    from combee_dspy.lms._server import EmbeddedOptions

_HOMES = {
    "_adapters": ("ChoiceAdapter", "ConstrainedJSONAdapter"),
    "_asking": ("adapter_for",),
    "_deadlines": (
        "AsyncDeadlineTransport",
        "DeadlineTransport",
        "reply_within",
        "reply_within_on_loop",
    ),
    "_embedded": ("EmbeddedEngine", "embedded"),
    "_pool": ("PooledEngine", "PooledOptions", "pooled"),
    "_probe": ("probe",),
    "_server": ("EmbeddedOptions",),
}

__all__ = [
    "AsyncDeadlineTransport",
    "ChoiceAdapter",
    "ConstrainedJSONAdapter",
    "DeadlineTransport",
    "EmbeddedEngine",
    "EmbeddedOptions",
    "PooledEngine",
    "PooledOptions",
    "adapter_for",
    "embedded",
    "pooled",
    "probe",
    "reply_within",
    "reply_within_on_loop",
]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
