"""A session whose tasks run when the test says so, and a clock that the test sets."""

from __future__ import annotations

import contextvars
from concurrent.futures import Future

import pytest

from combee_dspy.rollouts import CURRENT_SESSION


class ByHand:
    """Holds what it is given; :meth:`run` carries the oldest out, in this thread."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.held: list[tuple[Future, contextvars.Context, object, tuple]] = []
        self.most = 0
        self.closed = 0
        self.refuse: Exception | None = None

    def submit(self, task, /, *args):
        if self.refuse is not None:
            raise self.refuse
        future: Future = Future()
        self.held.append((future, contextvars.copy_context(), task, args))
        self.most = max(self.most, sum(not one.done() for one, *_ in self.held))
        return future

    def run(self, index: int = 0) -> None:
        future, context, task, args = self.held.pop(index)
        if not future.set_running_or_notify_cancel():
            return

        def work():
            CURRENT_SESSION.set(self)
            return task(*args)

        try:
            result = context.run(work)
        except BaseException as error:  # noqa: BLE001 - as any executor does
            future.set_exception(error)
        else:
            future.set_result(result)

    def run_all(self) -> None:
        while self.held:
            self.run()

    def close(self) -> None:
        self.closed += 1
        for future, *_ in self.held:
            future.cancel()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def by_hand():
    return ByHand


@pytest.fixture
def clock():
    return Clock()
