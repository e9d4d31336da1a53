"""One compilation: what the teleprompter was given, checked, wired to the loop, and its end."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, asynccontextmanager, closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import dspy
import orjson

from combee_dspy.costs import Tariff
from combee_dspy.evaluation import Heldout, check_roles
from combee_dspy.exceptions import (
    ArgumentTypeError,
    ArgumentValueError,
    EmptyTrainsetError,
    HeldUpError,
    SplitOverlapError,
)
from combee_dspy.hashing import digest_of
from combee_dspy.journal import Cache, Journal, Reader, RunLog
from combee_dspy.report import CombeeReport
from combee_dspy.rollouts import (
    Adaptive,
    DaemonPool,
    Fixed,
    Slots,
    fingerprints,
    metric_state,
    patient,
)
from combee_dspy.search._candidates import Compilation, Row, Shared, Split, Splits, make_row
from combee_dspy.search._clock import Overtime
from combee_dspy.search._describe import describe, evaluator_of, identity, result_of
from combee_dspy.search._privacy import NOT_KEPT, audit
from combee_dspy.search._refusals import check_diagnosed, warn_of_waste
from combee_dspy.search._run import Run
from combee_dspy.stopping import require_validation
from combee_dspy.tracking import callbacks_beside, default_trackers, note_caller, track

__all__ = [
    "check_lm",
    "check_metric",
    "compile_program",
    "compile_task",
    "in_own_loop",
    "make_compilation",
    "open_shared",
]

logger = logging.getLogger("combee_dspy")

T = TypeVar("T")

_logger = logging.getLogger(__name__)

# effects in flight at most, where nobody names a number and workers cost nothing before they are
# used
_ELASTIC = 256
_START = 8

# Seconds after an interrupt: until what is in flight is let go, until workers are, and until nobody
# is waited for.
_LET_GO, _CLOSE, _GONE = 1.0, 0.2, 1.8


def check_metric(metric: object) -> None:
    """Check that a metric can be called as GEPA calls it.

    Raises:
        ArgumentTypeError: It is not callable, or does not take five arguments.
    """
    remedy = (
        "Give a function (gold, pred, trace=None, pred_name=None, pred_trace=None) that returns a"
        " score."
    )
    if not callable(metric):
        raise ArgumentTypeError("metric", metric, "is not callable", remedy)
    try:
        inspect.signature(metric).bind(None, None, None, None, None)
    except TypeError as error:
        raise ArgumentTypeError(
            "metric", metric, f"does not take GEPA's five arguments: {error}", remedy
        ) from error
    except ValueError:
        return  # Some built-in callables have no signature to look at; the first rollout will tell.


def check_lm(argument: str, lm: Any) -> Any:
    """Return an LM, which is no name of one.

    Raises:
        ArgumentTypeError: It is a text.
    """
    if isinstance(lm, str):
        raise ArgumentTypeError(
            argument, lm, "is the name of an LM and no LM", f"Give dspy.LM({lm!r})."
        )
    return lm


def compile_program(
    settings: Any, student: dspy.Module, *, trainset: Any, valset: Any, heldout: Any
) -> dspy.Module:
    """Compile one program; see :meth:`combee_dspy.Combee.compile`."""
    task = make_compilation(settings, student, trainset, valset, heldout)
    overtime = Overtime()
    return in_own_loop(lambda: _alone(task, overtime), settings.log_dir, overtime)


def make_compilation(
    settings: Any,
    student: dspy.Module,
    trainset: Any,
    valset: Any,
    heldout: Any,
    name: str = "main",
    number: int = 0,
) -> Compilation:
    """Check what a user gave.

    Raises:
        ArgumentError: An argument cannot be used.
        RefusedError: The stopping rule would read scores of training rows.
        SplitOverlapError: ``heldout`` shares rows with another split.
    """
    if isinstance(student, type) or not isinstance(student, dspy.Module):
        remedy = (
            "Give an instance of a dspy.Module, for example dspy.Predict('question -> answer')."
        )
        raise ArgumentTypeError("student", student, "is no DSPy program", remedy)
    if not settings.artifact.components(student):
        remedy = (
            "Assign at least one predictor, such as dspy.Predict, to an attribute of the program."
        )
        raise ArgumentValueError(
            "student", student, "has no predictors, so there is nothing to learn", remedy
        )
    if settings.cache is True:
        remedy = "Give the path of a file, or leave it out: no rollout is bought twice in one run."
        raise ArgumentTypeError("cache", True, "is no file", remedy)
    check_lm("dspy.settings.lm", dspy.settings.lm)
    for part, predictor in student.named_predictors():
        check_lm(f"student.{part}.lm", getattr(predictor, "lm", None))
    settings.executor.check_program(student, settings.metric_fn)
    if heldout is not None and not isinstance(heldout, Heldout):
        heldout = Heldout(tuple(heldout)) if len(_list("heldout", heldout)) else None
    splits = _splits(trainset, valset, heldout.rows if heldout else (), settings.guards.anchors)
    learned, compared = ({row.hash for row in rows} for rows in (splits.train, splits.validation))
    require_validation(settings.budget, learned=learned, compared=compared)
    task = Compilation(settings, student, splits, heldout, name, number)
    if task.is_trunk and task.edits_instructions and task.code:
        problem = "has dspy.Flex parts, whose code no trunk can grow"
        raise ArgumentValueError(
            "student", type(student).__name__, problem, "Give Search(keep='pareto')."
        )
    warn_of_waste(settings)
    return task


def _splits(trainset: Any, valset: Any, heldout: Any, anchors: Any) -> Splits:
    """Pin the data of a run by row hashes; without a valset the trainset is validated on, as in
    GEPA.
    """
    train = _rows("trainset", trainset, "train")
    if not train:
        raise EmptyTrainsetError(trainset)
    validation = _rows("valset", () if valset is None else valset, "validation")
    held = _rows("heldout", heldout, "heldout")
    warnings, full_eval = [], len(train) + len(validation)
    if not validation:
        validation = tuple(replace(row, split="validation") for row in train)
        warnings.append(
            "No valset was given: candidates are compared on the examples they were learned from, "
            "so this run supports no claim about unseen examples."
        )
    elif shared := _shared(validation, train):
        warnings.append(
            f"valset and trainset share {shared} rows: validation scores are biased upwards, "
            "so this run supports no claim about unseen examples."
        )
    for argument, rows in (
        ("trainset", train),
        ("valset", validation),
        ("anchors", _rows("anchors", anchors, "train")),
    ):
        if overlap := _shared(held, rows):
            raise SplitOverlapError("heldout", argument, overlap)
    if not held:
        warnings.append("No held-out set was given: this run supports no claim.")
    named = {"train": train, "validation": validation, "heldout": held}
    digests = {name: digest_of(row.hash for row in rows) for name, rows in named.items() if rows}
    return Splits(train, validation, held, digests, full_eval, tuple(warnings))


def _shared(some: Sequence[Row], others: Sequence[Row]) -> int:
    return len({row.hash for row in some} & {row.hash for row in others})


def _list(argument: str, value: Any) -> Any:
    if (
        isinstance(value, (str, bytes, Mapping))
        or not hasattr(value, "__iter__")
        or not hasattr(value, "__len__")
    ):
        raise ArgumentTypeError(
            argument, value, "is no list of dspy.Example", "Give a list of dspy.Example."
        )
    return value


def _rows(argument: str, value: Any, split: Split) -> tuple[Row, ...]:
    return tuple(
        make_row(f"{argument}[{index}]", index, one, split)
        for index, one in enumerate(_list(argument, value))
    )


def in_own_loop(
    work: Callable[[], Coroutine[Any, Any, T]],
    log_dir: str | None = None,
    overtime: Overtime | None = None,
) -> T:
    """Run a coroutine to its end on an event loop of its own, in a thread of its own.

    So a caller may have a running loop (a notebook) or none. The thread sees the
    caller's context variables, DSPy's settings among them. An interrupt of the caller cancels the
    work and is raised within two seconds, with what the work attached to its own end; a second one
    is raised at once.

    Raises:
        HeldUpError: Something holds up the loop, and a run on it should have ended by ``overtime``.
    """
    # Futures, not Thread.join: interrupted once, that takes the thread for dead (CPython 3.11).
    begun: Future[Any] = Future()
    ended: Future[T] = Future()

    async def noted() -> T:
        asyncio.get_running_loop().set_default_executor(DaemonPool())
        begun.set_result(asyncio.current_task())
        return await work()

    def run() -> None:
        try:
            ended.set_result(asyncio.run(noted()))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            ended.set_exception(error)

    context = contextvars.copy_context()
    context.run(note_caller)
    thread = threading.Thread(target=context.run, args=(run,), name="combee-search", daemon=True)
    thread.start()
    try:
        # Again and again: a signal that another thread received wakes nobody who waits without an
        # end.
        while not wait([ended], timeout=0.1).done:
            if overtime is not None and begun.done():
                overtime.check(thread, begun.result().get_loop())
        return ended.result()
    except BaseException as error:
        if not (ended.done() or isinstance(error, HeldUpError)):
            until = time.monotonic() + _GONE
            _logger.warning(
                "Interrupted. %s Interrupt again to end at once.", _how_to_go_on(log_dir)
            )
            task = begun.result()
            with suppress(RuntimeError):  # the loop has ended meanwhile
                task.get_loop().call_soon_threadsafe(task.cancel)
            while not wait([ended], timeout=0.1).done and time.monotonic() < until:
                pass
            if ended.done():
                vars(error).update(vars(ended.exception() or error))
        raise


def _how_to_go_on(log_dir: str | None) -> str:
    if log_dir is None:
        return (
            "Nothing stays on disk, since no log_dir was given; the error has the best program so"
            " far."
        )
    return (
        f"What was paid for is kept in {log_dir}: compile again with this log_dir to go on, or take"
        f" the best so far, load_candidate(program, {log_dir!r}, 'best'), which the error has as"
        " well."
    )


async def _alone(task: Compilation, overtime: Overtime) -> dspy.Module:
    async with open_shared(task.settings) as shared:
        return await compile_task(task, shared, overtime)


@asynccontextmanager
async def open_shared(settings: Any) -> AsyncIterator[Shared]:
    """Open what searches share.

    Raises:
        JournalError: The journal is held by another process, or damaged.
        RefusedError: A diagnosis is required, and none says go.
    """
    check_diagnosed(settings)
    named = settings.num_threads
    most = named or (_ELASTIC if settings.executor.elastic else dspy.settings.num_threads or _START)
    limit = Fixed(most) if named else Adaptive(min(dspy.settings.num_threads or _START, most), most)
    heard: list[Callable[[int, str], None]] = []

    def changed(level: int, reason: str) -> None:
        for hear in heard:
            hear(level, reason)

    with ExitStack() as stack:
        journal = stack.enter_context(closing(Journal(settings.log_dir)))
        given = settings.cache not in (None, False)
        cache = stack.enter_context(closing(Cache(Path(settings.cache)))) if given else None
        slots = Slots(
            settings.executor.start(most),
            limit,
            settings.executor.batching,
            patience=settings.search.patience,
            on_change=changed,
        )
        within = None
        try:
            yield Shared(journal, slots, Tariff(settings.costs), cache, most, heard)
        except asyncio.CancelledError:
            within = _CLOSE
            raise
        finally:
            with suppress(TimeoutError):
                await asyncio.wait_for(slots.close(), within)


async def compile_task(task: Compilation, shared: Shared, overtime: Overtime) -> dspy.Module:
    """Search, choose, read the held-out set, and return the program.

    Raises:
        CombeeError: See :meth:`combee_dspy.Combee.compile`.
    """
    settings = task.settings
    calibration = settings.validation.calibration
    check_roles(
        settings.metric_fn,
        settings.reflection_lm,
        calibration=calibration,
        default=dspy.settings.lm,
    )
    prints = fingerprints(task.student, settings.metric_fn)
    begins = NOT_KEPT if settings.privacy.texts == "hashes" else ""
    trackers = default_trackers() if settings.trackers is None else settings.trackers
    for tracker in trackers:
        tracker.check()  # before there is a run, which nobody would end
    evaluator = evaluator_of(settings.metric_fn, prints["metric"])
    about = describe(task, task.limits, evaluator)
    log = shared.journal.run(
        task.name, settings.seed, identity(task, prints), about, only_begins=begins
    )
    state_of_metric = metric_state(settings.metric_fn)
    _warn_of_other_state(log, state_of_metric)
    audited = {**audit(settings.privacy, prints), "metric_state": state_of_metric}
    log.emit("audit", {**audited, "at": time.time()})
    patient_lm = patient(dspy.settings.lm) if dspy.settings.lm is not None else None
    state, result = "failed", {}
    kept = settings.log_dir is not None
    longest: float | None = None

    def limit_changed(limit: int, reason: str) -> None:
        log.emit("limit", {"limit": limit, "reason": reason})

    shared.on_limit.append(limit_changed)
    try:
        async with track(shared.journal.path, log.number, trackers, lambda: longest):
            try:
                with dspy.context(lm=patient_lm, callbacks=callbacks_beside(trackers)):
                    run = Run(task, shared, log, prints)
                    overtime.begin(log.number, run.purse, run.best)
                    program, report = await _searched(run)
                    if run.purse.left is not None:
                        longest = max(0.0, run.purse.left) + _LET_GO
                state, result = "finished", result_of(report)
            except asyncio.CancelledError:
                kept = False  # whoever interrupts it waits for the journal alone
                raise
            finally:
                overtime.end(log.number)
                await log.finish(state, result)
                if kept:
                    from combee_dspy.tracking.report import (
                        keep_report,
                    )  # whoever keeps none loads none

                    await asyncio.to_thread(keep_report, shared.journal.path, log.number, task.name)
    finally:
        shared.on_limit.remove(limit_changed)
        log.close()
    return program


def _warn_of_other_state(log: RunLog, state: str) -> None:
    """Say that a metric holds other data than when its run began; nobody can tell whether it
    changes scores.
    """
    sql = "SELECT data FROM event WHERE run = ? AND kind = 'audit' ORDER BY id LIMIT 1"
    with Reader(log.journal.path) as reader:
        audits = [orjson.loads(row["data"]) for row in reader.rows(sql, (log.number,))]
    if not audits or audits[0].get("metric_state", state) == state:
        return
    text = (
        "The metric holds other data than when this run began, such as a cache, a counter or"
        " weights. Its code is the same, so the run keeps the scores that it has. If that data"
        " changes scores, begin a new run with another log_dir."
    )
    logger.warning("%s", text)
    log.emit("warning", {"text": text})


async def _searched(run: Run) -> tuple[dspy.Module, CombeeReport]:
    within = None
    try:
        return await run.compiled()
    except BaseException as error:
        within = _LET_GO
        vars(error)["program"] = run.best()
        raise
    finally:
        await run.effects.drain(within)
