"""``compile_many``."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from os import PathLike
from typing import Any, Literal, cast

import dspy

from combee_dspy.combee import Combee
from combee_dspy.engine.concurrency import scheduled
from combee_dspy.engine.settings import Models
from combee_dspy.events import ScheduleDecided
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.many._crew import Crew, Job
from combee_dspy.many._records import Task, TaskResult, checked_tasks
from combee_dspy.many._seating import JobHook, checked_combees, grouped, seated, separated, shared_cache
from combee_dspy.many._shapes import ShapeDecision, check_at_once, choose_shape, given_shape
from combee_dspy.rollouts import EvaluationCache, ScheduleAccount, Scheduler
from combee_dspy.rollouts.scheduling import SeatSession, SharedPool
from combee_dspy.tracking import EventBus, Hook

__all__ = ["compile_many"]

logger = logging.getLogger("combee_dspy")


def compile_many(  # noqa: PLR0913 - what concerns all tasks together, each on its own
    tasks: Sequence[Task],
    *,
    combee: Combee | Callable[[Task], Combee],
    shape: Literal["candidate-parallel", "task-parallel", "hybrid", "auto"] | None = None,
    at_once: int | None = None,
    on_error: Literal["continue", "stop"] = "continue",
    cache: EvaluationCache | str | PathLike[str] | bool | None = None,
    hooks: Sequence[Hook] = (),
    num_threads: int | None = None,
    name: str | None = None,
) -> tuple[TaskResult, ...]:
    """Compile a queue of similar tasks over one pool of workers.

    All runs share one scheduler: one limit, one order of urgency, and within it each run gets its
    turn. Each run has its own search, budget, ledger, journal, checkpoints (``log_dir/<task>``),
    held-out study and receipt. What a task learns is what it would learn alone with the same seed,
    whatever runs beside it, as far as its optimizer decides nothing by the clock: a planned
    minibatch (``controller="power-law"``) and a budget in seconds do. What a shape changes is when things run.

    Args:
        tasks: The tasks, in the order in which they begin.
        combee: The optimizer, of which each task gets a copy; or a function that makes one for a task.
            Its budget is each task's own. Its hooks hear all runs, one event at a time, and are closed
            once, at the end; those that a function gives each task are that task's.
        shape: ``"candidate-parallel"``: one task at a time has all slots. ``"task-parallel"``: several at once, each
            within its equal part of the slots. ``"hybrid"``: several at once, each in whatever slot is free.
            ``"auto"``: the first task runs alone and is measured, and decides (see
            :func:`~combee_dspy.many.choose_shape`). By default candidate-parallel, or task-parallel where
            ``at_once`` is above 1.
        at_once: The most tasks that are active at once. Each keeps a search in memory.
        on_error: ``"continue"`` lets the others go on where a task fails; ``"stop"`` ends them, as soon as what is
            in flight has ended. Either way there is a result for each task.
        cache: One cache of rollouts for all tasks: ``True`` for one in memory, a path, or an
            :class:`~combee_dspy.EvaluationCache`. By default what the optimizer says.
        hooks: Objects that hear the job's own events: how its shape was decided. Closed at the end.
        num_threads: Tasks in flight in the pool, as for :class:`~combee_dspy.Combee`; by default the optimizer's.
        name: The name of the job, for a tracker that records it as a run over the tasks' runs.

    Returns:
        One result a task, in the order of the tasks.

    Raises:
        ArgumentTypeError: An argument has a type that cannot be used.
        ArgumentValueError: An argument has a value that cannot be used.
        KeyboardInterrupt: The user interrupted: every run has been stopped and has closed its files.

    Example:
        >>> results = compile_many(tasks, combee=Combee(metric, auto="light"), shape="auto")  # doctest: +SKIP
        >>> for result in results:  # doctest: +SKIP
        ...     print(result.name, result.error or result.report.heldout)
    """
    tasks = checked_tasks(tasks)
    decision = _asked(shape, len(tasks), at_once)
    if on_error not in ("continue", "stop"):
        raise ArgumentValueError("on_error", on_error, "is neither", "Give 'continue' or 'stop'.")
    combees = checked_combees(combee, tasks)
    _check_alone(combees, decision)
    if not tasks:
        return ()
    with ExitStack() as stack:
        caches = shared_cache(cache, combees, stack)
        shared = [JobHook(hook) for hook in combee.hooks] if isinstance(combee, Combee) else []
        for hook in shared:
            stack.callback(hook.finish)
        own = [separated(one, task) for one, task in zip(combees, tasks, strict=True)]
        for one, before in zip(own, combees, strict=True):
            one.cache = caches.get(id(before), before.cache)
            if isinstance(combee, Combee):
                one.hooks = tuple(shared)
            if decision is None or decision.at_once > 1:
                # Several bars would write over each other.
                one.progress = False
        headline = f"{len(tasks)} tasks over one pool"
        trackers = grouped([one.tracker for one in own], name or headline, headline, stack)
        bus = EventBus([*hooks, *shared])
        stack.callback(bus.close)
        pool = _pool(tasks, own, num_threads)
        stack.callback(pool.close)
        jobs = []
        for task, one, tracker in zip(tasks, own, trackers, strict=True):
            seat = pool.seat(task.name)
            jobs.append(Job(task, seated(one, task, seat, tracker), seat))
        crew = Crew(jobs, stops=on_error == "stop")
        _run(crew, jobs, pool, decision, at_once, bus)
    return crew.results


def _asked(shape: str | None, tasks: int, at_once: int | None) -> ShapeDecision | None:
    """Return what the user decided; ``None`` where it is to be measured."""
    check_at_once(at_once)
    if shape is None:
        shape = "candidate-parallel" if at_once is None or at_once == 1 else "task-parallel"
    if shape != "auto":
        return given_shape(shape, tasks, at_once)
    return given_shape("candidate-parallel", tasks) if tasks < 2 else None


def _check_alone(combees: Sequence[Combee], decision: ShapeDecision | None) -> None:
    """Refuse what cannot be had by several runs of one process at once."""
    beside = decision is None or decision.at_once > 1
    if beside and any(combee.use_wandb for combee in combees):
        remedy = "Leave use_wandb out, or take shape='candidate-parallel'."
        raise ArgumentValueError("use_wandb", True, "has one run a process", remedy)


def _pool(tasks: Sequence[Task], combees: Sequence[Combee], num_threads: int | None) -> SharedPool:
    """Open the pool as a run of the first optimizer would open its own, for the LMs of all."""
    settings = copy.copy(combees[0])
    # The order of dispatch is no one run's: it is not recorded in a run's folder.
    settings.log_dir = None
    settings.num_threads = num_threads or max((one.num_threads or 0 for one in combees), default=0) or None
    lms: dict[int, Any] = {}
    for task, one in zip(tasks, combees, strict=True):
        if isinstance(task.student, dspy.Module):
            with dspy.context(**task.context):
                lms |= {id(lm): lm for lm in Models(task.student, one.reflection_lm).task}
    return SharedPool(
        settings.executor,
        lambda growth, tell: cast("Scheduler", scheduled(settings, tuple(lms.values()), growth, tell)),
    )


def _run(
    crew: Crew,
    jobs: Sequence[Job],
    pool: SharedPool,
    decision: ShapeDecision | None,
    at_once: int | None,
    bus: EventBus,
) -> None:
    numbers = list(range(len(jobs)))
    while decision is None and numbers:
        before = pool.scheduler.account()
        alone = numbers.pop(0)
        crew.run([alone], 1)
        utilisation = _utilisation(before, pool.scheduler.account(), jobs[alone].seat.session)
        # A task that failed before it bought anything has told nothing.
        if utilisation is not None:
            decision = choose_shape(utilisation, len(numbers), at_once=at_once)
    if decision is None:
        return
    logger.info("%s: %s.", decision.shape, decision.reason)
    bus.emit(
        ScheduleDecided(
            schedule_id="shape",
            decision="shape",
            values={
                "shape": decision.shape,
                "at_once": decision.at_once,
                "reason": decision.reason,
                "utilisation": decision.utilisation,
                "tasks": len(numbers),
            },
        )
    )
    pool.scheduler.divide(decision.at_once if decision.shape == "task-parallel" else 0)
    crew.run(numbers, decision.at_once)


def _utilisation(before: ScheduleAccount, after: ScheduleAccount, session: SeatSession | None) -> float | None:
    """Return the share of the slots that one task alone kept busy, from its first call to its last.

    What comes before the first call, such as opening a store, is nobody's use of a slot.
    """
    if session is None or session.began is None or session.ended is None:
        return None
    seconds, elapsed = session.ended - session.began, after.elapsed - before.elapsed
    busy = after.busy_seconds - before.busy_seconds
    if seconds <= 0 or elapsed <= 0 or busy <= 0:
        return None
    slots = (after.slot_seconds - before.slot_seconds) / elapsed
    return min(1.0, busy / (seconds * slots))
