"""One session of a pool: every call within its limit, and a fault kept once there was one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Annotated, TypeVar

from pydantic import Field

from combee_agents._base import AgentSession, Environment, EnvironmentFaultError, Evaluation
from combee_dspy.strategies import parameters

__all__ = ["PooledSession", "SessionLimits", "guarded", "shorten"]

T = TypeVar("T")


Seconds = Annotated[float, Field(gt=0)]


@parameters
class SessionLimits:
    """How long a step may take, in seconds, before its environment is killed.

    Attributes:
        start: Until an environment is up.
        open: Until a session is open.
        exec: One call of ``exec``.
        evaluate: One call of ``evaluate``.
        close: One call of ``close``.
        session: A session as a whole, the agent's own time included.
        wait: Until an environment is free; nothing is killed then.
    """

    start: Seconds = 180.0
    open: Seconds = 120.0
    exec: Seconds = 180.0
    evaluate: Seconds = 180.0
    close: Seconds = 60.0
    session: Seconds = 3_600.0
    wait: Seconds = 7_200.0


class Deadline:
    """Kills an environment unless left in time."""

    def __init__(self, environment: Environment, seconds: float, what: str) -> None:
        self._what = what
        self._seconds = seconds
        self.expired = False
        self._environment = environment
        self._timer = threading.Timer(seconds, self._expire)
        self._timer.daemon = True

    def _expire(self) -> None:
        self.expired = True
        self._environment.kill()

    def fault(self) -> EnvironmentFaultError:
        return EnvironmentFaultError(
            "timeout", f"{self._what} took more than {self._seconds:g} s and was killed"
        )

    def __enter__(self) -> Deadline:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()


def guarded(environment: Environment, seconds: float, what: str, call: Callable[[], T]) -> T:
    """Carry out one call to an environment within its limit.

    Raises:
        EnvironmentFaultError: It failed, in whatever way, or took too long.
    """
    with Deadline(environment, seconds, what) as deadline:
        try:
            result = call()
        except EnvironmentFaultError as fault:
            raise (deadline.fault() if deadline.expired else fault) from fault
        except Exception as error:
            # An environment's own code failed: that is no doing of the agent's.
            unread = EnvironmentFaultError("protocol", f"{what}: {type(error).__name__}: {error}")
            raise (deadline.fault() if deadline.expired else unread) from error
    if deadline.expired:
        raise deadline.fault()
    return result


class PooledSession(AgentSession):
    """A session under its pool's limits. After a fault every call raises that fault again.

    Made by :meth:`SessionPool.session`.

    Attributes:
        task: The task's id.
        fault: What went wrong with the environment, once something has.
        steps: What was carried out and what came back, in order.
        whole: The limit of the session as a whole.
    """

    def __init__(
        self, task: str, inner: AgentSession, environment: Environment, limits: SessionLimits
    ) -> None:
        self.task = task
        self.fault: EnvironmentFaultError | None = None
        self.steps: list[tuple[str, str]] = []
        self._inner = inner
        self._environment = environment
        self._limits = limits
        self._closed = False
        self.whole = Deadline(environment, limits.session, f"the session of task {task}")

    def _call(self, seconds: float, what: str, call: Callable[[], T]) -> T:
        self.check()
        if self._closed:
            raise EnvironmentFaultError("protocol", f"{what}: the session is closed")
        try:
            return guarded(self._environment, seconds, f"{what} in task {self.task}", call)
        except EnvironmentFaultError as fault:
            self.fault = self.whole.fault() if self.whole.expired else fault
            raise self.fault from fault

    def check(self) -> None:
        """Raise the fault of this session, where there was one, whether or not the agent
        noticed.
        """
        if self.fault is None and self.whole.expired:
            self.fault = self.whole.fault()
        if self.fault is not None:
            raise self.fault

    def exec(self, code: str) -> str:
        """Carry out code or a command, and return what it printed."""
        printed = self._call(self._limits.exec, "exec", lambda: self._inner.exec(code))
        self.steps.append((code, printed))
        return printed

    def evaluate(self) -> Evaluation:
        """Judge the present state."""
        return self._call(self._limits.evaluate, "evaluate", self._inner.evaluate)

    def close(self) -> None:
        """End the attempt. The pool does this; a fault is kept in :attr:`fault` and not raised."""
        if self._closed:
            return
        try:
            self._call(self._limits.close, "close", self._inner.close)
        except EnvironmentFaultError as fault:
            self.fault = fault
        finally:
            self._closed = True


def shorten(text: str, limit: int) -> str:
    """Return a text of at most about ``limit`` characters: its head and its tail, with what was
    left out counted.
    """
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    return (
        f"{text[:head]}\n[… {len(text) - head - tail} characters left out"
        f" …]\n{text[len(text) - tail :]}"
    )
