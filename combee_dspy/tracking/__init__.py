"""Who reads a run's journal: a display, MLflow, queries, and a report on one page.

Nothing here is in the way of a run. Trackers read the journal from threads of
their own; whatever they miss, they or anybody else can read there later.
"""

from combee_dspy.tracking._base import Follower, Tracker
from combee_dspy.tracking._mlflow import MLflowTracker, replay
from combee_dspy.tracking._progress import Progress
from combee_dspy.tracking._queries import candidates, costs, rollouts, runs, show
from combee_dspy.tracking._sql import ROLLOUT_COLUMNS
from combee_dspy.tracking._track import default_trackers, track
from combee_dspy.tracking.report import write_report

__all__ = [
    "ROLLOUT_COLUMNS",
    "Follower",
    "MLflowTracker",
    "Progress",
    "Tracker",
    "candidates",
    "costs",
    "default_trackers",
    "replay",
    "rollouts",
    "runs",
    "show",
    "track",
    "write_report",
]
