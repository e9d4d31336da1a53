"""One compilation: its arguments are checked, its journal and slots opened, and it is run.

It runs on an event loop of its own, in a thread of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from contextvars import copy_context
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import dspy

from combee_dspy._private import flex_sources
from combee_dspy.arguments import check_bounded, check_lm
from combee_dspy.costs import Tariff
from combee_dspy.evaluation import Heldout, check_roles
from combee_dspy.events import LimitChanged
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError, attach
from combee_dspy.journal import Cache, Journal, RunLog, check_ended
from combee_dspy.report import CombeeReport
from combee_dspy.rollouts import Adaptive, Fixed, Slots, fingerprints, patient, run_on_own_loop
from combee_dspy.search._candidates import Compilation, SharedParts
from combee_dspy.search._course import find_program
from combee_dspy.search._describe import describe, evaluator_of, identity, result_of
from combee_dspy.search._privacy import NOT_KEPT, audit
from combee_dspy.search._refusals import check_diagnosed, warn_of_waste
from combee_dspy.search._run import Run, make_run
from combee_dspy.search._splits import Data, examples_in, make_splits
from combee_dspy.search._traces import add_traces
from combee_dspy.settings import Settings
from combee_dspy.stopping import require_validation
from combee_dspy.tracking import callbacks_beside, default_trackers, note_caller, track

# Effects in flight at most without num_threads: for executors whose idle workers cost nothing, and
# for others.
_ELASTIC = 256
_START = 8

# Seconds after an interrupt: until what is in flight is let go, until workers are, and until the
# whole work is.
_LET_GO, _CLOSE, _GONE = 1.0, 0.2, 1.8

T = TypeVar("T")


def compile_program(settings: Settings, student: dspy.Module, data: Data) -> dspy.Module:
    """Compile one program; see :meth:`combee_dspy.Combee.compile`."""
    task = make_compilation(settings, student, data)
    return in_own_loop(lambda: _alone(task), how_to_go_on(settings.log_dir))


def make_compilation(
    settings: Settings, student: dspy.Module, data: Data, name: str = "main", number: int = 0
) -> Compilation:
    """Check the arguments of a compilation, and return it.

    Raises:
        ArgumentError: An argument cannot be used.
        RefusedError: The stopping rule would read scores of training rows.
        SplitOverlapError: ``heldout`` shares rows with another split.
        TraceSourceError: The traces cannot be read.
    """
    _check_student(settings, student)
    heldout = data.heldout
    if heldout is not None and not isinstance(heldout, Heldout):
        rows = examples_in("heldout", heldout)
        heldout = Heldout(tuple(rows)) if len(rows) else None
    splits = make_splits(data, heldout.rows if heldout else ())
    if splits.validation:  # else the run reads its traces once, and buys no rollout
        check_bounded(settings)
    learned, compared = ({row.hash for row in rows} for rows in (splits.train, splits.validation))
    require_validation(settings.budget, learned=learned, compared=compared)
    if settings.search.keep is None and settings.edits_instructions and flex_sources(student):
        # Code does not grow by lessons, so it gets GEPA's search.
        settings = replace(settings, keep="pareto")
    splits = add_traces(splits, data, student, settings, name)
    task = Compilation(settings, student, splits, heldout, name, number)
    if task.is_trunk and task.edits_instructions and task.code:
        problem = "has dspy.Flex parts, whose code no trunk can grow"
        raise ArgumentValueError(
            "student", type(student).__name__, problem, "Give Search(keep='pareto')."
        )
    warn_of_waste(settings)
    return task


def _check_student(settings: Settings, student: dspy.Module) -> None:
    if isinstance(student, type) or not isinstance(student, dspy.Module):
        remedy = (
            "Give an instance of a dspy.Module, for example dspy.Predict('question -> answer')."
        )
        raise ArgumentTypeError("student", student, "is no DSPy program", remedy)
    if not settings.artifact.components(student):
        problem = "has no predictors, so there is nothing to learn"
        remedy = (
            "Assign at least one predictor, such as dspy.Predict, to an attribute of the program."
        )
        raise ArgumentValueError("student", student, problem, remedy)
    check_lm("dspy.settings.lm", dspy.settings.lm)
    for part, predictor in student.named_predictors():
        check_lm(f"student.{part}.lm", getattr(predictor, "lm", None))
    settings.executor.check_program(student, settings.metric)


async def _alone(task: Compilation) -> dspy.Module:
    async with open_shared(task.settings) as shared:
        return await compile_task(task, shared)


@asynccontextmanager
async def open_shared(settings: Settings) -> AsyncIterator[SharedParts]:
    """Open what searches share.

    Raises:
        JournalError: The journal is held by another process, or damaged.
        RefusedError: A diagnosis is required, and serial search has not converged.
    """
    check_diagnosed(settings)
    most, limit = _limit_of(settings)
    listeners: list[Callable[[int, str], None]] = []

    def changed(level: int, reason: str) -> None:
        for listener in listeners:
            listener(level, reason)

    with ExitStack() as stack:
        journal = stack.enter_context(closing(Journal(settings.log_dir)))
        file = None if settings.cache is False else settings.cache
        cache = None if file is None else stack.enter_context(closing(Cache(Path(file))))
        slots = Slots(
            settings.executor.start(most),
            limit,
            settings.executor.batching,
            patience=settings.search.patience,
            on_change=changed,
        )
        within = None
        try:
            yield SharedParts(journal, slots, Tariff(settings.costs), cache, most, listeners)
        except asyncio.CancelledError:
            within = _CLOSE
            raise
        finally:
            with suppress(TimeoutError):
                await asyncio.wait_for(slots.close(), within)
    if settings.log_dir is not None:
        check_ended(journal.path)


def _limit_of(settings: Settings) -> tuple[int, Fixed | Adaptive]:
    """Return how many effects may be in flight at most, and the limit that moves up to it."""
    if settings.num_threads is not None:
        return settings.num_threads, Fixed(settings.num_threads)
    start = dspy.settings.num_threads or _START
    most = _ELASTIC if settings.executor.elastic else start
    return most, Adaptive(min(start, most), most)


async def compile_task(task: Compilation, shared: SharedParts) -> dspy.Module:
    """Search, choose, read the held-out set, and return the program.

    Raises:
        CombeeError: See :meth:`combee_dspy.Combee.compile`.
    """
    settings, lm = task.settings, dspy.settings.lm
    calibration = settings.validation.calibration
    check_roles(settings.metric, settings.reflection_lm, calibration=calibration, default=lm)
    trackers = default_trackers() if settings.trackers is None else settings.trackers
    for tracker in trackers:
        tracker.check()  # before there is a run that would stay without an end
    prints = fingerprints(task.student, settings.metric)
    log = _begin_log(task, shared.journal, prints)
    state, result = "failed", {}
    longest: float | None = None  # seconds that trackers may take at the end

    def limit_changed(limit: int, reason: str) -> None:
        log.emit(LimitChanged(limit, reason))

    shared.on_limit.append(limit_changed)
    try:
        async with track(shared.journal.path, log.number, trackers, lambda: longest):
            try:
                patient_lm = None if lm is None else patient(lm)
                with dspy.context(lm=patient_lm, callbacks=callbacks_beside(trackers)):
                    run = make_run(task, shared, log, prints)
                    program, report = await _searched(run)
                if run.effects.purse.left is not None:
                    longest = max(0.0, run.effects.purse.left) + _LET_GO
                state, result = "finished", result_of(report)
            except asyncio.CancelledError:
                state = "interrupted"
                raise
            finally:
                await log.finish(state, result)
                # Whoever interrupts a run waits for the journal alone.
                if settings.log_dir is not None and state != "interrupted":
                    from combee_dspy.tracking.report import keep_report  # unused without a log_dir

                    await asyncio.to_thread(keep_report, shared.journal.path, log.number, task.name)
    finally:
        shared.on_limit.remove(limit_changed)
        log.close()
    return program


def _begin_log(task: Compilation, journal: Journal, prints: Mapping[str, str]) -> RunLog:
    """Begin a run in the journal, or go on with it."""
    settings = task.settings
    about = describe(task, evaluator_of(settings.metric, prints["metric"]))
    begins = NOT_KEPT if settings.privacy.texts == "hashes" else ""
    log = journal.run(task.name, settings.seed, identity(task, prints), about, only_begins=begins)
    log.emit(audit(settings.privacy, prints))
    return log


async def _searched(run: Run) -> tuple[dspy.Module, CombeeReport]:
    within = None
    try:
        return await find_program(run)
    except BaseException as error:
        within = _LET_GO
        attach(error, program=run.best())
        raise
    finally:
        await run.effects.drain(within)


_logger = logging.getLogger(__name__)


def in_own_loop(work: Callable[[], Coroutine[object, object, T]], advice: str = "") -> T:
    """Run a coroutine to its end on an event loop of its own, in a thread of its own.

    So a caller may have a running loop (a notebook) or none. The thread sees the caller's context
    variables, DSPy's settings among them. An interrupt of the caller cancels the work and is raised
    within two seconds, with what the work attached to its own end; a second one is raised at once.
    ``advice`` says what an interrupt leaves, in sentences.
    """

    def interrupted() -> None:
        sentences = ("Interrupted.", advice, "Interrupt again to end at once.")
        _logger.warning("%s", " ".join(filter(None, sentences)))

    def run() -> T:
        note_caller()
        return run_on_own_loop(work, interrupted, _GONE)

    return copy_context().run(run)


def how_to_go_on(log_dir: str | None) -> str:
    """Return what is left of a compilation that was interrupted."""
    if log_dir is None:
        return "Without a log_dir nothing stays on disk; the error has the best program so far."
    return (
        f"What was paid for is kept in {log_dir}: compile again with this log_dir to go on, or take"
        f" the best so far, load_candidate(program, {log_dir!r}, 'best'), which the error has as"
        " well."
    )
