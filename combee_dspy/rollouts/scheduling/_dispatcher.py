"""Hands tasks on to the inner session, and hears what becomes of them."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import Any

from combee_dspy.records import Rollout
from combee_dspy.rollouts._base import CURRENT_SESSION, ExecutorSession
from combee_dspy.rollouts.scheduling._core import Core
from combee_dspy.rollouts.scheduling._gate import GuardedLimit, GuardedRule
from combee_dspy.rollouts.scheduling._job import Job
from combee_dspy.rollouts.scheduling._limit import Outcome
from combee_dspy.rollouts.scheduling._place import RELEASE
from combee_dspy.rollouts.scheduling._teller import Teller

__all__ = ["Dispatcher"]


class Dispatcher:
    """Keeps as many tasks in flight as may be. Thread-safe; the owner of every ticket.

    Args:
        session: What tasks see as the current session.
        inner: Carries tasks out.
        core: Decides what goes.
        limit: Hears of what goes and ends.
        rule: Hears the scores of rollouts.
        teller: Hears of decisions, and rings.
        wanted: Whether anybody wants to hear of decisions.
        clock: Seconds that only grow.

    Attributes:
        lock: Guards the core. Nothing foreign is called under it but the limit's and the rule's questions.
    """

    def __init__(  # noqa: PLR0913 - one wiring point
        self,
        session: object,
        inner: ExecutorSession,
        core: Core,
        limit: GuardedLimit,
        rule: GuardedRule,
        teller: Teller,
        *,
        wanted: bool,
        clock: Callable[[], float],
    ) -> None:
        self.session = session
        self.lock = threading.Lock()
        self._inner = inner
        self._awaits = getattr(inner, "awaits", False) is True
        self._core = core
        self._limit = limit
        self._rule = rule
        self._teller = teller
        self._wanted = wanted
        self._clock = clock
        self._sending = False
        self._again = False

    def send(self) -> None:
        """Hand on what may go now. One thread at a time does; the others leave it a mark."""
        raised: BaseException | None = None
        while self._begin_sending():
            try:
                while self._send_some():
                    pass
            except BaseException as error:  # noqa: BLE001 - raised below: the mark of another thread comes first
                raised = raised or error
            if not self._end_sending():
                break
        if raised is not None:
            raise raised

    def _begin_sending(self) -> bool:
        with self.lock:
            self._again = self._sending
            self._sending = True
            return not self._again

    def _end_sending(self) -> bool:
        """Return whether another thread has left a mark meanwhile."""
        with self.lock:
            self._sending = False
            return self._again

    def _send_some(self) -> bool:
        with self.lock:
            taken = self._core.take(self._clock())
        if self._wanted:
            for note in taken.notes:
                self._teller.note(note)
        if taken.ring_at < math.inf:
            self._teller.ring_at(taken.ring_at)
        for job in taken.jobs:
            self._hand_on(job)
        return taken.more

    def _hand_on(self, job: Job) -> None:
        self._limit.started(job.place.lane)
        try:
            work = self._await if self._awaits and inspect.iscoroutinefunction(job.task) else self._work
            job.context.run(RELEASE.set, f"batch-{job.batch:06d}")
            # The inner session copies this context for the task, anew each time that it is handed on.
            inner = job.context.run(self._inner.submit, work, job)
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits for the task
            self._refused(job, error)
            return
        job.inner = inner
        inner.add_done_callback(partial(self._ended, job))

    def _refused(self, job: Job, error: Exception) -> None:
        with self.lock:
            runs = (job.settled or not self._core.closed) and job.settle()
            self._core.lane(job).failed += runs
        self._limit.finished(job.place.lane, 0.0, "cancelled")
        if runs:
            job.ticket.set_exception(error)
        else:
            job.ticket.cancel()
        self.set_down(job)

    def _work(self, job: Job) -> Any:
        """Carry a task out, in a worker of the inner session."""
        return self._in_context(job) if self._begin(job) else None

    async def _await(self, job: Job) -> Any:
        """Carry a coroutine function out, on the inner session's event loop."""
        if not self._begin(job):
            return None
        CURRENT_SESSION.set(self.session)
        return await job.task(*job.args)

    def _begin(self, job: Job) -> bool:
        with self.lock:
            if job.settle():
                job.began = self._clock()
            return job.settled

    def _in_context(self, job: Job) -> Any:
        CURRENT_SESSION.set(self.session)
        return job.task(*job.args)

    def _ended(self, job: Job, inner: Future[Any]) -> None:
        """Hear that a task is no longer with the inner session. Runs in the thread that ended it."""
        cancelled = inner.cancelled()
        failed = not cancelled and inner.exception() is not None
        with self.lock:
            core, now = self._core, self._clock()
            seconds = core.ended(job, now)
            back = cancelled and job.recalled and not job.gone and not core.closed
            if back:
                core.put_back(job, now)
            elif job.settled:
                lane = core.lane(job)
                lane.cancelled += cancelled
                lane.failed += failed
                lane.finished += not (cancelled or failed)
        outcome: Outcome = "cancelled" if cancelled or job.gone else "failed" if failed else "ok"
        self._limit.finished(job.place.lane, seconds, outcome)
        if not back:
            try:
                # Before the slot is given on: what the future's callbacks submit may need it more.
                self._resolve(job, inner)
            finally:
                self.set_down(job)
        self.send()

    def _resolve(self, job: Job, inner: Future[Any]) -> None:
        if not job.settled:
            job.ticket.cancel()
        elif inner.cancelled():
            job.ticket.set_exception(CancelledError())
        elif (error := inner.exception()) is not None:
            job.ticket.set_exception(error)
        else:
            result = inner.result()
            if isinstance(result, Rollout):
                self._rule.scored(result.score)
            job.ticket.set_result(result)

    def set_down(self, job: Job) -> None:
        """Free a task's slot, and forget its futures."""
        with self.lock:
            self._core.land(job)
        job.forget()

    def withdrawn(self, job: Job) -> None:
        """Hear that a task's owner has cancelled it. For tickets."""
        with self.lock:
            # Whoever waits for several futures at once hears of it here.
            job.settle()
            lane = self._core.lane(job)
            if job.dropped:
                lane.dropped += 1
            else:
                lane.cancelled += 1
            self._core.remove(job)
            inner = job.inner
        if inner is not None:
            inner.cancel()
        self.send()

    def do_here(self, job: Job) -> bool:
        """Carry out a task that waits, in the thread of a worker that waits for it. For tickets."""
        with self.lock:
            if not self._core.remove(job) or not job.settle():
                return False
            lane = self._core.lane(job)
            lane.helped += 1
            lane.in_flight += 1
        error: BaseException | None = None
        result: Any = None
        try:
            alone = asyncio.run if self._awaits and inspect.iscoroutinefunction(job.task) else _as_it_is
            result = job.context.copy().run(lambda: alone(self._in_context(job)))
        except BaseException as raised:  # noqa: BLE001 - it belongs to whoever asks for the result
            error = raised
        with self.lock:
            lane.in_flight -= 1
            lane.failed += error is not None
            lane.finished += error is None
        if error is None:
            job.ticket.set_result(result)
        else:
            job.ticket.set_exception(error)
        job.forget()
        self.send()
        return True


def _as_it_is(result: Any) -> Any:
    return result
