"""Checks for executors: where tasks are carried out."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.rollouts import Executor, ExecutorSession
from combee_dspy.testing.checks._expect import ConformanceError, attempt, expect

__all__ = ["CHECKS"]

# Long enough for any machine: it bounds a hang, it measures nothing.
_PATIENCE = 60.0

_VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("combee_dspy_conformance", default="default")


class _TaskError(Exception):
    pass


# Tasks live at module level, so that executors in other processes can receive them.
def _square(number: int) -> int:
    return number * number


def _fail(text: str) -> None:
    raise _TaskError(text)


def _read_variable() -> str:
    return _VARIABLE.get()


@contextmanager
def _session(strategy: Executor, workers: int) -> Iterator[ExecutorSession]:
    session = attempt(
        lambda: strategy.start(workers), f"`start({workers})` returns a session", "see its traceback above"
    )
    try:
        yield session
    finally:
        session.close()


def _result(future: Future[Any]) -> Any:
    try:
        return future.result(timeout=_PATIENCE)
    except TimeoutError as error:
        raise ConformanceError(
            "a future that is done once its task is", "the task never finished", "set a result on every future"
        ) from error


def check_results_come_in_the_order_of_submission(strategy: Executor) -> None:
    """Joins go by position, never by arrival."""
    for workers in (1, 4):
        with _session(strategy, workers) as session:
            futures = [session.submit(_square, number) for number in range(40)]
            results = [_result(future) for future in futures]
        expect(
            results == [number * number for number in range(40)],
            "each future with the result of its own task",
            f"with {workers} workers: {results}",
            "return from `submit` the future of the task that was given",
        )


def check_says_how_many_workers_it_has(strategy: Executor) -> None:
    """A run sizes its batches by the number of workers."""
    for workers in (1, 3):
        with _session(strategy, workers) as session:
            expect(
                session.workers == workers,
                f"session.workers == {workers}",
                f"it is {session.workers!r}",
                "return the number that `start` was given",
            )


def check_exceptions_travel(strategy: Executor) -> None:
    """A task's error belongs to whoever asks for its result."""
    with _session(strategy, 2) as session:
        failed, well = session.submit(_fail, "boom"), session.submit(_square, 3)
        error = attempt(
            lambda: failed.exception(timeout=_PATIENCE),
            "a future that holds its task's error",
            "set the exception on the future",
        )
        expect(
            isinstance(error, _TaskError) and "boom" in str(error),
            "the task's own exception, with its message",
            f"{error!r}",
            "do not wrap or swallow it",
        )
        expect(_result(well) == 9, "other tasks undisturbed", "a task after a failed one gave another result", "")


def check_copies_context_variables(strategy: Executor) -> None:
    """DSPy keeps its settings, trace and callbacks in context variables."""
    with _session(strategy, 2) as session:
        token = _VARIABLE.set("the caller's")
        try:
            future = session.submit(_read_variable)
        finally:
            _VARIABLE.reset(token)
        seen = _result(future)
    expect(
        seen == "the caller's",
        "a task that sees the context variables as they were when it was submitted",
        f"it saw {seen!r}",
        "submit `contextvars.copy_context().run` with the task",
    )


def check_close_leaves_no_task_behind(strategy: Executor) -> None:
    """What has not started is cancelled, what has is awaited; closing again does nothing."""
    session = strategy.start(1)
    futures = [session.submit(_square, number) for number in range(50)]
    close: Callable[[], None] = session.close
    for _ in range(2):
        attempt(close, "`close` may be called twice", "return at once when it is already closed")
    expect(
        all(future.done() for future in futures),
        "every task finished or cancelled once `close` returns",
        f"{sum(not future.done() for future in futures)} of 50 are still open",
        "cancel what waits and join what runs",
    )


def check_refuses_fewer_than_one_worker(strategy: Executor) -> None:
    """Nothing would ever run."""
    for workers in (0, -1):
        try:
            strategy.start(workers).close()
        except ArgumentValueError:
            continue
        except Exception as error:
            raised = f"{type(error).__name__}: {error}"
            raise ConformanceError("ArgumentValueError", raised, "raise combee_dspy's own error") from error
        raise ConformanceError(
            f"`start({workers})` raises ArgumentValueError",
            "it returned a session",
            'raise ArgumentValueError("num_threads", workers, "is below 1", "Give at least one worker.")',
        )


CHECKS = (
    check_results_come_in_the_order_of_submission,
    check_says_how_many_workers_it_has,
    check_exceptions_travel,
    check_copies_context_variables,
    check_close_leaves_no_task_behind,
    check_refuses_fewer_than_one_worker,
)
