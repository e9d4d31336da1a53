"""Threads that nobody has to wait for, and an event loop in one of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

Task = Callable[[], Callable[[], None]]
"""Work for a thread, which raises nothing and returns what tells of its end."""


def run_in_daemon(work: Callable[[], T]) -> T:
    """Carry out work in a thread of its own, and wait for it.

    An interrupt of the caller is raised at once, whatever the work hangs in; the work goes on, and
    an interpreter that exits does not wait for it. It has the caller's context variables.
    """
    pool = DaemonPool()
    ended = pool.submit(copy_context().run, work)
    pool.shutdown()
    # Again and again: a signal that another thread received wakes nobody who waits without an end.
    while not wait([ended], timeout=0.1).done:
        pass
    return ended.result()


def run_on_own_loop(work: Callable[[], Coroutine[object, object, T]]) -> T:
    """Carry out a coroutine on an event loop in a thread of its own, as :func:`run_in_daemon` does,
    whether the caller has a loop that runs or none. An interrupt cancels it.
    """
    beginning: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()

    async def carry_out() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        loop.set_default_executor(DaemonPool())
        if task is not None:
            beginning.set_result((loop, task))
        return await work()

    try:
        return run_in_daemon(lambda: asyncio.run(carry_out()))
    except BaseException:
        if not beginning.cancel():  # what has not begun fails to
            loop, task = beginning.result()
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(task.cancel)
        raise


class _Worker(threading.Thread):
    """A thread of a pool, and what it is to do next; ``None`` ends it."""

    def __init__(self, pool: DaemonPool) -> None:
        super().__init__(name="combee-worker", daemon=True)
        self.tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._pool = pool

    def run(self) -> None:
        while (task := self.tasks.get()) is not None:
            deliver = task()
            goes_on = self._pool.rest(self)  # first: who hears of the end may have more to do
            deliver()
            if not goes_on:
                return
            del task, deliver  # an idle thread keeps nothing alive


class DaemonPool(ThreadPoolExecutor):
    """Threads for blocking work, started where none is idle.

    Neither a loop that closes nor an interpreter that exits waits for them, as they do for those of
    ``concurrent.futures``. There is no most: one that hangs takes no other's place.
    """

    def __init__(self) -> None:
        super().__init__(1)  # asyncio takes no other kind for a loop's own
        self._idle: list[_Worker] = []
        self._over = False
        self._lock = threading.Lock()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Carry out a call in a thread."""
        future: Future[T] = Future()
        self.begin(partial(_settle, future, partial(fn, *args, **kwargs)))
        return future

    def begin(self, task: Task) -> None:
        """Carry out a task in a thread.

        Raises:
            RuntimeError: The pool has been shut down.
        """
        with self._lock:
            if self._over:
                raise RuntimeError("a pool of threads that is over takes no work: make another")
            worker = self._idle.pop() if self._idle else None
        if worker is None:
            worker = _Worker(self)
            worker.start()
        worker.tasks.put(task)

    def rest(self, worker: _Worker) -> bool:
        """Have an idle worker wait for more to do; return whether there may be more."""
        with self._lock:
            if not self._over:
                self._idle.append(worker)
            return not self._over

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End idle threads, and have the others end with what they are at. Nobody waits for
        those.
        """
        with self._lock:
            self._over = True
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.tasks.put(None)
        for worker in idle:
            worker.join()


def _settle(future: Future[T], work: Callable[[], T]) -> Callable[[], None]:
    if not future.set_running_or_notify_cancel():
        return lambda: None
    try:
        return partial(future.set_result, work())
    except BaseException as error:  # noqa: BLE001 - raised where it is waited for
        return partial(future.set_exception, error)


class LoopThread:
    """An event loop in a thread of its own, which a program may hold up without holding up anybody
    else.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(DaemonPool())
        self._over = False
        threading.Thread(target=self._run, name="combee-loop", daemon=True).start()

    def _run(self) -> None:
        while not self._over:
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                # A task of a program has raised it, and whoever awaits that task gets it. No signal
                # comes here.
                continue
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()

    async def answers(self, seconds: float) -> bool:
        """Return whether the loop gets round to anything within so many seconds. Called on another
        loop.
        """
        answered: Future[None] = Future()
        self.loop.call_soon_threadsafe(answered.set_result, None)
        return bool((await asyncio.wait([asyncio.wrap_future(answered)], timeout=seconds))[0])

    async def close(self, seconds: float) -> None:
        """Cancel what runs on the loop and end it; a loop that is held up is left alone after so
        many seconds.
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
