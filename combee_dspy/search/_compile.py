"""One compilation: what the teleprompter was given, wired to the loop, and its end."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, TypeVar

import dspy

from combee_dspy._private import flex_sources
from combee_dspy.artifacts import Instruction
from combee_dspy.costs import Tariff
from combee_dspy.evaluation import Heldout, check_roles
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.journal import Cache, Journal
from combee_dspy.report import CombeeReport
from combee_dspy.rollouts import Adaptive, Fixed, Slots, fingerprints, patient
from combee_dspy.search._candidates import Compilation, Shared
from combee_dspy.search._checks import check_rows, check_splits, check_student
from combee_dspy.search._describe import describe, identity, result_of
from combee_dspy.search._run import Run
from combee_dspy.tracking import default_trackers, track

__all__ = ["compile_program", "compile_task", "in_own_loop", "make_compilation", "open_shared"]

T = TypeVar("T")

_ELASTIC = 256  # effects in flight at most, where nobody names a number and workers cost nothing before they are used
_START = 8


def compile_program(settings: Any, student: dspy.Module, *, trainset: Any, valset: Any, heldout: Any) -> dspy.Module:
    """Compile one program; see :meth:`combee_dspy.Combee.compile`."""
    task = make_compilation(settings, student, trainset, valset, heldout)
    return in_own_loop(lambda: _alone(task))


def make_compilation(
    settings: Any, student: dspy.Module, trainset: Any, valset: Any, heldout: Any, name: str = "main", number: int = 0
) -> Compilation:
    """Check what a user gave.

    Raises:
        ArgumentError: An argument cannot be used.
        SplitOverlapError: ``heldout`` shares rows with another split.
    """
    check_student(student, 1)
    check_student(student, len(settings.artifact.components(student)))
    if heldout is not None and not isinstance(heldout, Heldout):
        check_rows("heldout", heldout)
        heldout = Heldout(tuple(heldout)) if len(tuple(heldout)) else None
    splits = check_splits(trainset, valset, heldout.rows if heldout else None, settings.guards.anchors)
    if settings.keeps == "trunk" and isinstance(settings.artifact, Instruction) and flex_sources(student):
        problem = "has dspy.Flex parts, whose code no trunk can grow"
        raise ArgumentValueError("student", type(student).__name__, problem, "Give Search(keep='pareto').")
    return Compilation(settings, student, splits, heldout, name, number)


def in_own_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end on an event loop of its own, in a thread of its own.

    So a caller may have a running loop (a notebook) or none. The thread sees the
    caller's context variables, DSPy's settings among them. An interrupt of the caller cancels the work.
    """
    result: list[T] = []
    failed: list[BaseException] = []
    tasks: list[asyncio.Task[Any]] = []
    # Not Thread.join: interrupted once, it takes the thread for dead (CPython 3.11).
    begun, ended = threading.Event(), threading.Event()

    async def noted() -> T:
        tasks.extend(filter(None, [asyncio.current_task()]))
        begun.set()
        return await work()

    def run() -> None:
        try:
            result.append(asyncio.run(noted()))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            failed.append(error)
        finally:
            ended.set()

    thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), name="combee-search", daemon=True)
    thread.start()
    try:
        ended.wait()
    except BaseException:
        begun.wait()
        with suppress(RuntimeError):  # the loop has ended meanwhile
            tasks[0].get_loop().call_soon_threadsafe(tasks[0].cancel)
        ended.wait()
        raise
    if failed:
        raise failed[0]
    return result[0]


async def _alone(task: Compilation) -> dspy.Module:
    with ExitStack() as stack:
        shared = open_shared(task.settings, [task.student], stack)
        try:
            return await compile_task(task, shared)
        finally:
            await shared.slots.close()


def open_shared(settings: Any, students: Sequence[dspy.Module], stack: ExitStack) -> Shared:
    """Open what searches share; the stack closes it.

    Raises:
        JournalError: The journal is held by another process, or damaged.
    """
    for student in students:
        settings.executor.check_program(student, settings.metric_fn)
    journal = Journal(settings.log_dir)
    stack.callback(journal.close)
    cache = None
    if settings.cache not in (None, False):
        cache = Cache(Path(settings.cache))
        stack.callback(cache.close)
    named = settings.num_threads
    most = named or (_ELASTIC if settings.executor.elastic else dspy.settings.num_threads or _START)
    limit = Fixed(most) if named else Adaptive(min(dspy.settings.num_threads or _START, most), most)
    on_limit: list[Callable[[int, str], None]] = []

    def changed(level: int, reason: str) -> None:
        for hear in on_limit:
            hear(level, reason)

    slots = Slots(settings.executor.start(most), limit, settings.executor.batching, on_change=changed)
    return Shared(journal, slots, Tariff(settings.costs), cache, most, on_limit)


async def compile_task(task: Compilation, shared: Shared) -> dspy.Module:
    """Search, choose, read the held-out set, and return the program.

    Raises:
        CombeeError: See :meth:`combee_dspy.Combee.compile`.
    """
    settings, name = task.settings, task.name
    check_roles(
        settings.metric_fn,
        settings.reflection_lm,
        calibration=settings.validation.calibration,
        default=dspy.settings.lm,
    )
    prints = fingerprints(task.student, settings.metric_fn)
    log = shared.journal.run(name, settings.seed, identity(task, prints), describe(task, task.limits))
    trackers = default_trackers() if settings.trackers is None else settings.trackers
    patient_lm = patient(dspy.settings.lm) if dspy.settings.lm is not None else None
    state, result = "failed", {}

    def limit_changed(limit: int, reason: str) -> None:
        log.emit("limit", {"limit": limit, "reason": reason})

    shared.on_limit.append(limit_changed)
    try:
        async with track(shared.journal.path, log.number, trackers):
            try:
                with dspy.context(lm=patient_lm):
                    program, report = await _searched(Run(task, shared, log, prints))
                state, result = "finished", result_of(report)
            finally:
                await log.finish(state, result)
    finally:
        shared.on_limit.remove(limit_changed)
        log.close()
    return program


async def _searched(run: Run) -> tuple[dspy.Module, CombeeReport]:
    try:
        return await run.compiled()
    finally:
        await run.effects.drain()
