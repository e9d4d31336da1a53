"""Threads that nobody waits for: pools, and sessions that run work in them."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from combee_dspy.rollouts import (
    DaemonPool,
    ExecutorSession,
    Threads,
    _threads,
    run_on_own_loop,
)

VARIABLE: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nothing")


def test_a_pool_that_is_over_takes_no_work():
    pool, release = DaemonPool(), threading.Event()
    idle, busy = pool.submit(int), pool.submit(release.wait, 30)
    assert idle.result(30) == 0
    pool.shutdown()
    release.set()
    assert busy.result(30), "what has started ends"
    for _ in range(2):
        with pytest.raises(RuntimeError, match="over"):
            pool.submit(int)


def test_work_that_is_interrupted_before_it_starts_never_starts(monkeypatch: pytest.MonkeyPatch):
    late: list[Callable[[], Any]] = []
    started: list[int] = []

    def begin(work: Callable[[], Any]) -> Future[None]:
        late.append(work)
        return Future()

    def interrupt(ended: Future[None], seconds: float = 0.0) -> None:
        raise KeyboardInterrupt

    async def work() -> None:
        started.append(1)
        await asyncio.sleep(0)

    monkeypatch.setattr(_threads, "_begin", begin)
    monkeypatch.setattr(_threads, "_wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_on_own_loop(work)
    with suppress(Exception):
        late[0]()
    assert not started


def in_session(test: Callable[[ExecutorSession], Awaitable[None]], workers: int = 4) -> None:
    async def main() -> None:
        session = Threads().start(workers)
        await test(session)
        await session.close()
        await session.close()
        with pytest.raises(RuntimeError, match="closed"):
            await session.run(lambda: None)

    asyncio.run(main())


def test_work_runs_in_at_most_so_many_threads_in_the_callers_context():
    async def test(session: ExecutorSession) -> None:
        VARIABLE.set("mine")
        before = threading.active_count()
        work = lambda: (VARIABLE.get(), threading.current_thread())  # noqa: E731
        results = await asyncio.gather(*(session.run(work) for _ in range(40)))
        assert {value for value, _ in results} == {"mine"}
        threads = {thread for _, thread in results}
        assert len(threads) <= 4
        assert threading.main_thread() not in threads
        await session.close()
        while threading.active_count() > before:
            await asyncio.sleep(0.001)

    in_session(test)


def fail(error: type[BaseException]) -> None:
    raise error("mine")


def test_errors_of_work_are_raised_and_those_that_would_end_the_loop_are_replaced():
    async def test(session: ExecutorSession) -> None:
        with pytest.raises(KeyError, match="mine"):
            await session.run(partial(fail, KeyError))
        for ending in (StopIteration, SystemExit, asyncio.CancelledError):
            with pytest.raises(RuntimeError, match=ending.__name__):
                await session.run(partial(fail, ending))

    in_session(test)


def test_closing_does_not_wait_for_a_thread_whose_caller_was_cancelled():
    running, release, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        running.set()
        release.wait(30)
        ended.set()

    async def test(session: ExecutorSession) -> None:
        task = asyncio.ensure_future(session.run(work))
        while not running.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await session.run(lambda: 1) == 1, "another thread takes its place"

    in_session(test, 1)
    assert not ended.is_set()
    release.set()
    assert ended.wait(30)
