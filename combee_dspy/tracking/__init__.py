"""Who listens to a run: hooks, the bus that carries events to them, and trackers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from combee_dspy.tracking._base import Hook, RememberingTracker, Tracker
from combee_dspy.tracking._bus import EventBus

if TYPE_CHECKING:
    from combee_dspy.tracking._mlflow import MLflowHook, MLflowTracker, prompt_name
    from combee_dspy.tracking._progress import Progress
    from combee_dspy.tracking._redact import Redactor
    from combee_dspy.tracking._text import one_line

__all__ = [
    "EventBus",
    "Hook",
    "MLflowHook",
    "MLflowTracker",
    "Progress",
    "Redactor",
    "RememberingTracker",
    "Tracker",
    "one_line",
    "prompt_name",
]

# Loaded on first use: a run without tracker or display pays for neither.
_HOMES = {
    "MLflowHook": "_mlflow",
    "MLflowTracker": "_mlflow",
    "Progress": "_progress",
    "Redactor": "_redact",
    "one_line": "_text",
    "prompt_name": "_mlflow",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"combee_dspy.tracking.{_HOMES[name]}"), name)
