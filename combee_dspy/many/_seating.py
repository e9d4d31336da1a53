"""The optimizer of one task: a user's own, with everything that must not be shared made its own."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from combee_dspy.artifacts import PlaybookArtifact
from combee_dspy.combee import Combee
from combee_dspy.evaluation import ReceiptBook
from combee_dspy.events import Event
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.many._records import Task
from combee_dspy.rollouts import EvaluationCache
from combee_dspy.rollouts.scheduling import Seat
from combee_dspy.tracking import Hook, Tracker
from combee_dspy.tracking.slug import shorten, to_slug

__all__ = ["JobHook", "checked_combees", "grouped", "seated", "separated", "shared_cache"]

_NAME = 80


class JobHook(Hook):
    """A hook that several runs share: it hears one event at a time, and is closed once, by the job.

    Args:
        hook: The user's.
    """

    def __init__(self, hook: Hook) -> None:
        self._hook = hook
        self._lock = threading.Lock()
        self.wants = hook.wants
        self.where = hook.where

    def handle(self, event: Event) -> None:
        """Pass the event on, as soon as no other is being heard."""
        with self._lock:
            self._hook.handle(event)

    def close(self) -> None:
        """Do nothing: other runs may go on."""

    def finish(self) -> None:
        """Close the user's hook."""
        with self._lock:
            self._hook.close()


def checked_combees(combee: object, tasks: Sequence[Task]) -> list[Combee]:
    """Return each task's optimizer: the one given, or the one that the user's function makes of the task.

    Raises:
        ArgumentTypeError: There is none.
        ArgumentValueError: Two of them would write to one folder, or differ in what they share.
    """
    if isinstance(combee, Combee):
        if getattr(combee, "replay", None) is not None:
            remedy = "Give a function that returns an optimizer for each task."
            raise ArgumentValueError("replay", combee.replay, "is the record of one run", remedy)
        return [combee for _ in tasks]
    remedy = "Give a Combee, or a function of a task that returns one."
    if not callable(combee):
        raise ArgumentTypeError("combee", combee, "is no optimizer", remedy)
    made = [combee(task) for task in tasks]
    for one in made:
        if not isinstance(one, Combee):
            raise ArgumentTypeError("combee", one, "is no optimizer", remedy)
    folders = [one.log_dir for one in made if one.log_dir is not None]
    if len(set(folders)) < len(folders):
        raise ArgumentValueError("log_dir", folders, "is given to two tasks", "Give each a folder of its own.")
    if any(one.executor != made[0].executor for one in made):
        executors = [repr(one.executor) for one in made]
        raise ArgumentValueError("executor", executors, "differs between tasks", "One pool has one executor.")
    return made


def separated(combee: Combee, task: Task) -> Combee:
    """Return a copy for one task: its seed and metric, its folder, its book of held-out receipts."""
    own = copy.copy(combee)
    if task.metric is not None:
        own.metric_fn = task.metric
    if task.seed is not None:
        own.seed = task.seed
    place = shorten(to_slug(task.name), _NAME)
    if combee.log_dir is not None:
        own.log_dir = str(Path(combee.log_dir) / place)
    if combee.receipts is not None:
        # Another task's held-out set is another study: in one book it would count as one that was moved.
        book = Path(combee.receipts.path if isinstance(combee.receipts, ReceiptBook) else combee.receipts)
        own.receipts = book.with_name(f"{book.stem}-{place}{book.suffix}")
    return own


def seated(combee: Combee, task: Task, seat: Seat, tracker: Tracker | None) -> Combee:
    """Return a copy that runs on a seat of a pool, and stops when the seat is cancelled."""
    own = copy.copy(combee)
    own.executor = seat
    own.tracker = tracker
    if tracker is not None and getattr(tracker, "run_name", "") is None:
        own.tracker = copy.copy(tracker)
        own.tracker.run_name = task.name  # type: ignore[attr-defined]  # it has one: it was just read
    if isinstance(combee.artifact, PlaybookArtifact):
        # It has no search of gepa's to stop: it ends with the next task that the seat refuses.
        return own
    stops = combee.gepa_kwargs.get("stop_callbacks") or []
    before: Iterable[Callable[..., Any]] = stops if isinstance(stops, Sequence) else [stops]
    own.gepa_kwargs = {**combee.gepa_kwargs, "stop_callbacks": [*before, lambda _: seat.cancelled]}
    return own


def grouped(trackers: Sequence[Tracker | None], name: str, headline: str, stack: ExitStack) -> list[Tracker | None]:
    """Return trackers that record each run under one parent, where they know such a thing.

    Args:
        trackers: One a task; the same object may stand several times.
        name: The parent's name.
        headline: Its description.
        stack: Ends the parents.
    """
    made: dict[int, Tracker] = {}
    for tracker in trackers:
        # One that has a parent was made for this by the user.
        group = None if getattr(tracker, "parent", "") is not None else getattr(tracker, "group", None)
        if tracker is not None and group is not None and id(tracker) not in made:
            made[id(tracker)] = stack.enter_context(group(name, headline))
    return [tracker if tracker is None else made.get(id(tracker), tracker) for tracker in trackers]


def shared_cache(cache: Any, combees: Sequence[Combee], stack: ExitStack) -> dict[int, EvaluationCache]:
    """Return the cache of each optimizer that shares one, by the optimizer's id.

    Args:
        cache: What the user asked for: ``True`` for one in memory, a path, or a cache; ``None`` for what the
            optimizers say, where a path is opened once.
        combees: The optimizers.
        stack: Closes what is opened here.

    Raises:
        ArgumentTypeError: It is none of these.
        ArgumentValueError: An optimizer reuses no rollout.
    """
    if cache is None or cache is False:
        opened: dict[str, EvaluationCache] = {}
        return {
            id(combee): _opened(combee.cache, opened, stack)
            for combee in combees
            if combee.memoize and combee.cache is not None and not isinstance(combee.cache, bool)
        }
    if any(not combee.memoize for combee in combees):
        raise ArgumentValueError("cache", cache, "is asked for beside memoize=False", "Leave one of the two out.")
    if cache is True:
        found = EvaluationCache()
        stack.callback(found.close)
    elif isinstance(cache, EvaluationCache):
        found = cache
    elif isinstance(cache, (str, Path)):
        found = _opened(cache, {}, stack)
    else:
        raise ArgumentTypeError("cache", cache, "is no cache", "Give True, a path, or an EvaluationCache.")
    return {id(combee): found for combee in combees}


def _opened(cache: Any, opened: dict[str, EvaluationCache], stack: ExitStack) -> EvaluationCache:
    if isinstance(cache, EvaluationCache):
        return cache
    place = str(cache)
    if place not in opened:
        opened[place] = EvaluationCache(place)
        stack.callback(opened[place].close)
    return opened[place]
