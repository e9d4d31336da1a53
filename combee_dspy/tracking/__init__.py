"""Who reads a run's journal: a display, MLflow, queries, and a report on one page.

Nothing here is in the way of a run. Trackers read the journal from a thread of
their own; whatever they miss, they or anybody else can read there later.
"""

from combee_dspy.tracking._base import Follower, Tracker
from combee_dspy.tracking._mlflow import MLflowTracker
from combee_dspy.tracking._progress import Progress
from combee_dspy.tracking._track import default_trackers, track

__all__ = ["Follower", "MLflowTracker", "Progress", "Tracker", "default_trackers", "track"]
