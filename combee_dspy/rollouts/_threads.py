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


def run_in_daemon(work: Callable[[], T]) -> T:
    """Carry out work in a thread of its own, and wait for it.

    An interrupt of the caller is raised at once, whatever the work hangs in; the work goes on, and
    an interpreter that exits does not wait for it. It has the caller's context variables.
    """
    ended: Future[T] = Future()

    def run() -> None:
        try:
            ended.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            ended.set_exception(error)

    thread = threading.Thread(
        target=copy_context().run, args=(run,), name="combee-work", daemon=True
    )
    thread.start()
    # Again and again: a signal that another thread received wakes nobody who waits without an end.
    while not wait([ended], timeout=0.1).done:
        pass
    return ended.result()


def run_on_own_loop(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Carry out a coroutine on an event loop in a thread of its own, as :func:`run_in_daemon` does,
    whether the caller has a loop that runs or none. An interrupt cancels it.
    """
    begun: Future[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = Future()

    async def carry_out() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        loop.set_default_executor(DaemonPool())
        if task is not None:
            begun.set_result((loop, task))
        return await work()

    try:
        return run_in_daemon(lambda: asyncio.run(carry_out()))
    except BaseException:
        if begun.done():
            loop, task = begun.result()
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(task.cancel)
        raise


class DaemonPool(ThreadPoolExecutor):
    """Threads for what an event loop hands over, started where none is idle.

    Neither a loop that closes nor an interpreter that exits waits for them, as they do for those of
    ``concurrent.futures``. There is no most: one that hangs takes no other's place.
    """

    def __init__(self) -> None:
        super().__init__(1)
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._over = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Carry out a call in a thread."""
        future: Future[T] = Future()
        self._tasks.put((future, partial(fn, *args, **kwargs)))
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._serve, name="combee-helper", daemon=True).start()
        return future

    def _serve(self) -> None:
        while not self._over and (task := self._tasks.get()) is not None:
            future, work = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                    future.set_exception(error)
            del task, future, work  # an idle thread keeps nothing alive
            self._idle.release()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let idle threads end, and the others when they have ended what they are at. Nobody
        waits.
        """
        self._over = True
        while self._idle.acquire(blocking=False):
            self._tasks.put(None)


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
