"""Threads that nobody has to wait for, and an event loop in one of them."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from combee_dspy.exceptions import copy_attached

P = ParamSpec("P")
T = TypeVar("T")


Deliver = Callable[[], None]
Task = Callable[[], Deliver]
"""Work for a thread. It raises nothing, and returns the call that delivers its result."""


class DaemonPool(ThreadPoolExecutor):
    """Threads for blocking work, one more whenever none is idle.

    Neither a loop that closes nor an interpreter that exits waits for them, as they do for threads
    of ``concurrent.futures``. Their number has no bound: a thread that hangs takes no other's
    place. Thread-safe.
    """

    def __init__(self) -> None:
        super().__init__(1)  # asyncio takes no other kind for a loop's own executor
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._idle = 0
        self._over = False
        self._lock = threading.Lock()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a call in a thread; may raise as :meth:`start` does."""
        future: Future[T] = Future()
        self.start(partial(_settle, future, partial(fn, *args, **kwargs)))
        return future

    def start(self, task: Task) -> None:
        """Run a task in a thread.

        Raises:
            RuntimeError: The pool has been shut down.
        """
        with self._lock:
            if self._over:
                raise RuntimeError("this pool of threads is over: make another")
            needs_thread = self._idle == 0
            self._idle -= 0 if needs_thread else 1
        self._tasks.put(task)
        if needs_thread:
            threading.Thread(target=self._work, name="combee-worker", daemon=True).start()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            deliver = task()
            # Idle before it delivers: who gets the result may have the next task.
            with self._lock:
                over = self._over
                self._idle += 0 if over else 1
            deliver()
            if over:
                return
            del task, deliver  # an idle thread keeps nothing alive

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End idle threads now, and the others after their task. Waits for none of them."""
        with self._lock:
            self._over = True
            idle, self._idle = self._idle, 0
        for _ in range(idle):
            self._tasks.put(None)


def _settle(future: Future[T], call: Callable[[], T]) -> Deliver:
    if not future.set_running_or_notify_cancel():
        return lambda: None
    try:
        return partial(future.set_result, call())
    except BaseException as error:  # noqa: BLE001 - raised where it is waited for
        return partial(future.set_exception, error)


def run_in_daemon(work: Callable[[], T]) -> T:
    """Run work in a thread of its own, with the caller's context variables, and wait for it.

    An interrupt of the caller is raised at once, whatever the work hangs in; the work goes on, and
    an interpreter that exits does not wait for it.
    """
    ended = _begin(work)
    _wait(ended)
    return ended.result()


def run_on_own_loop(
    work: Callable[[], Coroutine[object, object, T]],
    interrupted: Callable[[], None] = lambda: None,
    grace: float = 0.0,
) -> T:
    """Run a coroutine on an event loop in a thread of its own, as :func:`run_in_daemon` does,
    whether the caller has a running loop or not.

    An interrupt of the caller cancels it, and is raised with what the work attached to its own end.

    Args:
        work: Makes the coroutine.
        interrupted: Called at an interrupt.
        grace: Seconds that the work has to end after it.
    """
    started: Future[asyncio.Task[Any]] = Future()

    async def start() -> T:
        asyncio.get_running_loop().set_default_executor(DaemonPool())
        if task := asyncio.current_task():
            started.set_result(task)
        return await work()

    ended = _begin(lambda: asyncio.run(start()))
    try:
        _wait(ended)
        return ended.result()
    except BaseException as error:
        # Cancelled before it started, it fails to.
        if not ended.done():
            interrupted()
            if not started.cancel():
                task = started.result()
                with suppress(RuntimeError):  # the loop has ended
                    task.get_loop().call_soon_threadsafe(task.cancel)
                _wait(ended, grace)
            if ended.done():
                copy_attached(ended.exception(), error)
        raise


def _begin(work: Callable[[], T]) -> Future[T]:
    pool = DaemonPool()
    future = pool.submit(copy_context().run, work)
    pool.shutdown()
    return future


def _wait(ended: Future[T], seconds: float = math.inf) -> None:
    """Wait in steps: a signal to another thread ends no wait without a timeout."""
    until = time.monotonic() + seconds
    while not wait([ended], timeout=0.1).done and time.monotonic() < until:
        pass


class LoopThread:
    """An event loop in a thread of its own, which a program may block without blocking others."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(DaemonPool())
        self._over = False
        threading.Thread(target=self._run, name="combee-loop", daemon=True).start()

    def _run(self) -> None:
        while not self._over:
            # A program's task may raise these; its own waiter gets them. No signal comes here.
            with suppress(SystemExit, KeyboardInterrupt):
                self.loop.run_forever()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    async def answers(self, seconds: float) -> bool:
        """Return whether the loop runs a callback within so many seconds. Called on another
        loop.
        """
        answered: Future[None] = Future()
        self.loop.call_soon_threadsafe(answered.set_result, None)
        return bool((await asyncio.wait([asyncio.wrap_future(answered)], timeout=seconds))[0])

    async def close(self, seconds: float) -> None:
        """Cancel what runs on the loop and end it; a blocked loop is left alone after so many
        seconds.
        """
        ended: Future[None] = Future()
        self.loop.call_soon_threadsafe(lambda: self.loop.create_task(self._end(ended)))
        await asyncio.wait([asyncio.wrap_future(ended)], timeout=seconds)

    async def _end(self, ended: Future[None]) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._over = True
        self.loop.call_soon(self.loop.stop)
        ended.set_result(None)
