"""One scheduler for a whole run: a priority queue over rollouts, reflections and validations."""

from combee_dspy.rollouts.scheduling._account import LaneAccount, ScheduleAccount
from combee_dspy.rollouts.scheduling._flush import (
    AtOnce,
    FlushRule,
    FlushView,
    at_once,
    queue_at_least,
    variance_below,
    waited,
)
from combee_dspy.rollouts.scheduling._limit import ConcurrencyLimit, FixedLimit, Outcome
from combee_dspy.rollouts.scheduling._place import LANES, SPECULATIVE, Place, current_place, current_release, placed
from combee_dspy.rollouts.scheduling._pool import Seat, SeatSession, SharedPool
from combee_dspy.rollouts.scheduling._preemption import Preemption
from combee_dspy.rollouts.scheduling._record import Recorded, Released, ReplayQueue, ScheduleRecord
from combee_dspy.rollouts.scheduling._scheduler import Scheduler
from combee_dspy.rollouts.scheduling._settings import SHARES, Scheduling

__all__ = [
    "LANES",
    "SHARES",
    "SPECULATIVE",
    "AtOnce",
    "ConcurrencyLimit",
    "FixedLimit",
    "FlushRule",
    "FlushView",
    "LaneAccount",
    "Outcome",
    "Place",
    "Preemption",
    "Recorded",
    "Released",
    "ReplayQueue",
    "ScheduleAccount",
    "ScheduleRecord",
    "Scheduler",
    "Scheduling",
    "Seat",
    "SeatSession",
    "SharedPool",
    "at_once",
    "current_place",
    "current_release",
    "placed",
    "queue_at_least",
    "variance_below",
    "waited",
]
