"""Who listens to a run: hooks, the bus that carries events to them, and trackers."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from combee_dspy.tracking._base import Hook, RememberingTracker, Tracker
from combee_dspy.tracking._bus import EventBus

if TYPE_CHECKING:
    from combee_dspy.tracking._journal import JOURNAL_FOLDER, Entry, Journal, entries_of, find_journal
    from combee_dspy.tracking._mlflow import MLflowHook, MLflowTracker, prompt_name
    from combee_dspy.tracking._progress import Progress
    from combee_dspy.tracking._redact import Redactor, lm_secrets
    from combee_dspy.tracking._replay import Replayed, replay
    from combee_dspy.tracking._rows import Row, row_of
    from combee_dspy.tracking._text import one_line

__all__ = [
    "JOURNAL_FOLDER",
    "Entry",
    "EventBus",
    "Hook",
    "Journal",
    "MLflowHook",
    "MLflowTracker",
    "Progress",
    "Redactor",
    "RememberingTracker",
    "Replayed",
    "Row",
    "Tracker",
    "entries_of",
    "find_journal",
    "lm_secrets",
    "one_line",
    "prompt_name",
    "replay",
    "row_of",
]

# Loaded on first use: a run without tracker or display pays for neither.
_HOMES = {
    "JOURNAL_FOLDER": "_journal",
    "Entry": "_journal",
    "Journal": "_journal",
    "MLflowHook": "_mlflow",
    "MLflowTracker": "_mlflow",
    "Progress": "_progress",
    "Redactor": "_redact",
    "Replayed": "_replay",
    "Row": "_rows",
    "entries_of": "_journal",
    "find_journal": "_journal",
    "lm_secrets": "_redact",
    "one_line": "_text",
    "prompt_name": "_mlflow",
    "replay": "_replay",
    "row_of": "_rows",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"combee_dspy.tracking.{_HOMES[name]}"), name)
