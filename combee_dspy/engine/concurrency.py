"""How many tasks of a run may be in flight, and whether it has use for more."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

import dspy

from combee_dspy.engine.replaying import schedule_file
from combee_dspy.engine.settings import Settings
from combee_dspy.engine.state import RunState
from combee_dspy.events import Event
from combee_dspy.lms import connection_limit, limit_warning
from combee_dspy.rollouts import (
    AdaptiveLimit,
    ScheduleAccount,
    Scheduler,
    ScheduleRecord,
    Scheduling,
    growth_allowed,
)
from combee_dspy.rollouts.scheduling import Seat, SeatSession

__all__ = ["Growth", "demand", "scheduled"]

logger = logging.getLogger("combee_dspy")

_CEILING = 256


class Growth:
    """Whether the run has use for more tasks at once: looked at once an iteration, asked at any time.

    :meth:`look` is for the thread that runs gepa's loop; asking is thread-safe.
    """

    def __init__(self) -> None:
        self._allowed = True
        self._before = ScheduleAccount({}, 0.0, 0.0)

    def __call__(self) -> bool:
        """Return whether it has."""
        return self._allowed

    def look(self, state: RunState, account: ScheduleAccount) -> bool:
        """Look at the iterations finished so far, and return whether the limit may rise from now on.

        Args:
            state: The run's state.
            account: What its scheduler has done until now.
        """
        views = state.views
        self._allowed = growth_allowed(
            utilisation=demand(self._before, account),
            front_similarity=views[-1].front_similarity if views else None,
            best_validation=[view.best_score for view in views],
        )
        self._before = account
        return self._allowed


def demand(before: ScheduleAccount, after: ScheduleAccount) -> float | None:
    """Return how much of the slots was asked for between two accounts, 0 to 1; ``None`` where no time has passed.

    (seconds in workers + seconds of waiting) over slot-seconds. Waiting counts because a batch that queues
    fills its slots whatever else the iteration does: a few calls of a scan leave most slots idle for a time, which
    says nothing about the rollouts around it.
    """
    slots = after.slot_seconds - before.slot_seconds
    if slots <= 0:
        return None
    waited = sum(lane.waited_seconds for lane in after.lanes.values())
    waited -= sum(lane.waited_seconds for lane in before.lanes.values())
    return min(1.0, (after.busy_seconds - before.busy_seconds + waited) / slots)


def scheduled(
    settings: Settings,
    lms: Sequence[object],
    growth: Callable[[], bool],
    emit: Callable[[Event], None],
    replay: ScheduleRecord | None = None,
) -> Scheduler | SeatSession:
    """Start the executor's session behind the one scheduler of a run.

    A number of the user's is where the limit begins and the most it reaches: it only backs off. Without one the run
    begins with DSPy's ``num_threads``, 8 unless set, and finds out how many its service takes, up to 256
    or what the LM's own client carries; on an executor whose workers cost something even where they idle,
    it stays with what it begins with.

    Args:
        settings: The run's settings.
        lms: The LMs that rollouts are known to call.
        growth: Whether the run has use for more.
        emit: Hears of decisions.
        replay: The schedule to follow, if any.
    """
    record = None if settings.log_dir is None else schedule_file(Path(settings.log_dir))
    if isinstance(settings.executor, Seat):
        # One of several runs over one pool: scheduled there, and nothing twice.
        return settings.executor.joined(emit, growth, record)
    start = settings.num_threads or dspy.settings.num_threads
    ceiling = start if settings.num_threads or not settings.executor.elastic else max(start, _CEILING)
    narrow = min(lms, key=lambda lm: connection_limit(lm) or ceiling, default=None)
    carried = connection_limit(narrow) or ceiling
    most = ceiling
    told = False

    def changed(before: int, after: int, reason: str) -> None:
        nonlocal told
        if after >= carried and most < ceiling and not told:
            told = True
            logger.warning("%s", limit_warning(narrow, ceiling))

    if ceiling == start:
        for lm in lms:
            if (said := limit_warning(lm, ceiling)) is not None:
                logger.warning("%s", said)
    else:
        most = max(start, min(ceiling, carried))
    limit = AdaptiveLimit(start, most, may_grow=growth, on_change=changed)
    session = settings.executor.start(most)
    try:
        # Parity sends its requests in dspy.GEPA's order; elsewhere those of one prefix go together.
        scheduling = Scheduling(window=1) if settings.like_gepa else None
        return Scheduler(session, scheduling, limit=limit, emit=emit, record=record, replay=replay)
    except BaseException:
        session.close()
        raise
