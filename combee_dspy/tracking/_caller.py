"""What a run must know of who called it, and what it does to it: MLflow keeps its active run by
thread, and its autologging makes a trace of every rollout.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

from combee_dspy.tracking._base import Tracker

if TYPE_CHECKING:
    from dspy.utils.callback import BaseCallback

_ACTIVE: ContextVar[tuple[str, str] | None] = ContextVar("combee_active_run", default=None)


def note_caller() -> None:
    """Note, for this context and its copies, the MLflow run that is active in this thread."""
    mlflow = sys.modules.get("mlflow")  # who has not loaded it has no active run
    run = None if mlflow is None else mlflow.active_run()
    if mlflow is not None and run is not None:
        _ACTIVE.set((mlflow.get_tracking_uri(), run.info.run_id))


def active_run(uri: str | None) -> str | None:
    """Return the caller's active MLflow run, where it is in this store; ``None`` for the store that
    MLflow is set to.
    """
    store, run = _ACTIVE.get() or ("", None)
    return run if uri in (None, store) else None


def callbacks_beside(trackers: Sequence[Tracker]) -> list[BaseCallback]:
    """Return DSPy's callbacks without those of MLflow's autologging, where a tracker records the
    run in MLflow.

    A trace costs about 100 ms of processor time, more than a rollout; the tracker records all
    rollouts as rows, and the most telling ones as traces.
    """
    import dspy

    from combee_dspy.costs import without_callbacks

    if all(tracker.name != "mlflow" for tracker in trackers):
        callbacks: list[BaseCallback] = dspy.settings.callbacks
        return callbacks
    return without_callbacks(lambda other: type(other).__module__.startswith("mlflow."))
