"""Threads that nobody waits for: what is given up begins no more, and nothing waits for a pool that
is over.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from combee_dspy.rollouts import DaemonPool, _threads, run_on_own_loop


def test_a_pool_that_is_over_takes_no_work():
    pool, release = DaemonPool(), threading.Event()
    idle, busy = pool.submit(int), pool.submit(release.wait, 30)
    assert idle.result(30) == 0
    pool.shutdown()
    release.set()
    assert busy.result(30), "what was begun ends"
    for _ in range(2):
        with pytest.raises(RuntimeError, match="over"):
            pool.submit(int)


def test_what_is_interrupted_before_it_begins_never_begins(monkeypatch: pytest.MonkeyPatch):
    late: list[Callable[[], Any]] = []
    begun: list[int] = []

    def interrupted(work: Callable[[], Any]) -> None:
        late.append(work)
        raise KeyboardInterrupt

    async def work() -> None:
        begun.append(1)
        await asyncio.sleep(0)

    monkeypatch.setattr(_threads, "run_in_daemon", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_on_own_loop(work)
    with suppress(Exception):
        late[0]()
    assert not begun
