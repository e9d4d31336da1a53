"""Reads a run's journal: a display, MLflow, queries, and a report on one page.

- ``_candidates``, ``_runs``, ``_costs``, ``_spending``, ``_lessons`` and ``_learned`` have the
  facts of a run: functions from ``RunHistory`` to frozen records, which all readers share.
- ``_progress``, with ``_news`` and ``_phases``, is the display of a run that goes on.
- ``_mlflow``, with ``_mlflow_*``, ``_metrics`` and ``_params``, sends runs to MLflow.
- ``_queries`` returns the rows of ``combee runs``, ``show``, ``candidates`` and ``rollouts``.
- ``report`` writes the page.

Nothing here is in the way of a run. Trackers read the journal from threads of their own; whatever
they miss, anybody can read there later.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from combee_dspy.tracking._base import Follower, Tracker, default_trackers, page_file, track

if TYPE_CHECKING:
    from combee_dspy.tracking._caller import callbacks_beside, note_caller
    from combee_dspy.tracking._mlflow import MLflowTracker, replay
    from combee_dspy.tracking._mlflow_store import make_store
    from combee_dspy.tracking._narration import narrate
    from combee_dspy.tracking._progress import Progress
    from combee_dspy.tracking._queries import (
        candidates,
        overview,
        rollouts,
        run_number,
        runs,
        show,
    )
    from combee_dspy.tracking._spending import spent_of
    from combee_dspy.tracking._sql import ROLLOUT_COLUMNS
    from combee_dspy.tracking.report import write_report

__all__ = [
    "ROLLOUT_COLUMNS",
    "Follower",
    "MLflowTracker",
    "Progress",
    "Tracker",
    "callbacks_beside",
    "candidates",
    "default_trackers",
    "make_store",
    "narrate",
    "note_caller",
    "overview",
    "page_file",
    "replay",
    "rollouts",
    "run_number",
    "runs",
    "show",
    "spent_of",
    "track",
    "write_report",
]

_HOMES = {
    "MLflowTracker": "_mlflow",
    "Progress": "_progress",
    "ROLLOUT_COLUMNS": "_sql",
    "callbacks_beside": "_caller",
    "make_store": "_mlflow_store",
    "narrate": "_narration",
    "note_caller": "_caller",
    "replay": "_mlflow",
    "spent_of": "_spending",
    "write_report": "report",
}


def __getattr__(name: str) -> Any:
    # A run needs none of this: who reads it is loaded when somebody does.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, '_queries')}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
