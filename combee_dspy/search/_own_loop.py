"""An event loop of a search's own, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, TypeVar

from combee_dspy.exceptions import copy_attached
from combee_dspy.rollouts import DaemonPool
from combee_dspy.tracking import note_caller

__all__ = ["in_own_loop"]

_logger = logging.getLogger(__name__)

T = TypeVar("T")

_GONE = 1.8  # seconds that the work has to end after an interrupt


def in_own_loop(
    work: Callable[[], Coroutine[object, object, T]],
    log_dir: str | None = None,
) -> T:
    """Run a coroutine to its end on an event loop of its own, in a thread of its own.

    So a caller may have a running loop (a notebook) or none. The thread sees the caller's context
    variables, DSPy's settings among them. An interrupt of the caller cancels the work and is raised
    within two seconds, with what the work attached to its own end; a second one is raised at once.
    """
    # Futures, not Thread.join: interrupted once, that takes the thread for dead (CPython 3.11).
    running: Future[asyncio.Task[Any]] = Future()
    ended: Future[T] = Future()
    context = contextvars.copy_context()
    context.run(note_caller)
    thread = threading.Thread(
        target=context.run, args=(_run, work, running, ended), name="combee-search", daemon=True
    )
    thread.start()
    try:
        _wait(ended)
        return ended.result()
    except BaseException as error:
        if not ended.done():
            _logger.warning(
                "Interrupted. %s Interrupt again to end at once.", _how_to_go_on(log_dir)
            )
            task = running.result()
            with suppress(RuntimeError):  # the loop has ended meanwhile
                task.get_loop().call_soon_threadsafe(task.cancel)
            _wait(ended, _GONE)
            if ended.done():
                copy_attached(ended.exception(), error)
        raise


def _run(
    work: Callable[[], Coroutine[object, object, T]],
    running: Future[asyncio.Task[Any]],
    ended: Future[T],
) -> None:
    async def noted() -> T:
        asyncio.get_running_loop().set_default_executor(DaemonPool())
        if task := asyncio.current_task():
            running.set_result(task)
        return await work()

    try:
        ended.set_result(asyncio.run(noted()))
    except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
        ended.set_exception(error)


def _wait(ended: Future[T], seconds: float = float("inf")) -> None:
    """Wait in steps: a signal to another thread does not end a wait without a timeout."""
    until = time.monotonic() + seconds
    while not wait([ended], timeout=0.1).done and time.monotonic() < until:
        pass


def _how_to_go_on(log_dir: str | None) -> str:
    if log_dir is None:
        return "Without a log_dir nothing stays on disk; the error has the best program so far."
    return (
        f"What was paid for is kept in {log_dir}: compile again with this log_dir to go on, or take"
        f" the best so far, load_candidate(program, {log_dir!r}, 'best'), which the error has as"
        " well."
    )
