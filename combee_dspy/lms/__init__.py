"""Language models that come with the package: embedded, simulated, and clients."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "ConstrainedJSONAdapter": "combee_dspy.lms.embedded",
    "EmbeddedModel": "combee_dspy.lms.embedded",
    "embedded_lm": "combee_dspy.lms.embedded",
}

__all__ = list(_HOMES)  # noqa: PLE0605 - the names live in one table


def __getattr__(name: str) -> Any:
    # Loaded on first use, so that importing the package starts no server and reads no model.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
