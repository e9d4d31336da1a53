"""Sessions in parallel: a few environments, started when needed, replaced when broken."""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from combee_agents._base import Environment, EnvironmentFaultError
from combee_agents._pooled import PooledSession, SessionLimits, guarded
from combee_dspy.exceptions import ArgumentValueError

__all__ = ["PoolStats", "SessionPool"]


@dataclass(frozen=True, slots=True)
class PoolStats:
    """What a pool has done so far.

    Attributes:
        started: Environments that were started.
        sessions: Sessions that were opened.
        peak: The most sessions that were open at once.
        faults: Fault kind to count.
    """

    started: int
    sessions: int
    peak: int
    faults: Mapping[str, int]


class SessionPool:
    """Up to ``size`` environments, shared by all threads of a run.

    An environment is started when a session is asked for and none is free,
    used again after a session that went well, and killed and replaced after a
    fault. Whoever asks while all are taken waits. Thread-safe. Programs that
    hold a pool share it when they are copied; pickled, it starts anew with no
    environment.

    Args:
        make: Makes an environment, not started.
        size: The most environments at once.
        limits: How long each step may take.
        reuse: Sessions after which an environment is replaced, so that what it leaks does not add
            up.
        identity: What the environments are, for journals: whatever a result depends on beside the
            program. By default the name of ``make``.

    Raises:
        ArgumentValueError: ``size`` or ``reuse`` is below 1.
    """

    # Without a dictionary a journal knows a pool by its repr, whatever it has been through.
    __slots__ = (
        "__weakref__",
        "_all",
        "_closed",
        "_counts",
        "_faults",
        "_finalizer",
        "_free",
        "_given",
        "_identity",
        "_idle",
        "_limits",
        "_make",
        "_open",
        "_reuse",
        "_size",
        "_uses",
    )

    def __init__(
        self,
        make: Callable[[], Environment],
        size: int,
        *,
        limits: SessionLimits | None = None,
        reuse: int = 50,
        identity: str | None = None,
    ) -> None:
        self._given = (make, size, limits, reuse, identity)
        for name, value in (("size", size), ("reuse", reuse)):
            if value < 1:
                raise ArgumentValueError(name, value, "is below 1", "Give at least 1.")
        self._limits = limits or SessionLimits()
        self._make = make
        self._size = size
        self._reuse = reuse
        self._identity = (
            identity
            or f"{getattr(make, '__module__', '')}.{getattr(make, '__qualname__', repr(make))}"
        )
        self._free = threading.Condition()
        self._idle: list[Environment] = []
        self._uses: dict[int, int] = {}
        self._all: set[Environment] = set()
        self._open = 0
        self._closed = False
        self._counts: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        # A pool that nobody closed leaves nothing behind either.
        self._finalizer = weakref.finalize(self, _kill, self._all)

    @property
    def size(self) -> int:
        """The most environments at once."""
        return self._size

    @property
    def stats(self) -> PoolStats:
        """What has been done so far."""
        with self._free:
            count = self._counts
            return PoolStats(count["started"], count["sessions"], count["peak"], dict(self._faults))

    @contextmanager
    def session(self, task: str) -> Iterator[PooledSession]:
        """Open a session for a task, by its id, in a free environment; it is closed at the end of
        the block.

        Raises:
            EnvironmentFaultError: No environment came up or became free, or the session could not
                be opened.
            ArgumentValueError: The pool is closed.
        """
        environment = self._lease()
        session: PooledSession | None = None
        fault: EnvironmentFaultError | None = None
        try:
            session = self._begin(environment, task)
            with session.whole:
                try:
                    yield session
                finally:
                    session.close()
        except EnvironmentFaultError as error:
            fault = error
            raise
        finally:
            # Work that was done stands, even where its environment could not be closed after it.
            fault = fault or (session.fault if session else None)
            self._end(environment, session, fault)

    def close(self) -> None:
        """Kill all environments. Sessions that are open fail. May be called twice."""
        with self._free:
            self._closed = True
            self._idle.clear()
            self._free.notify_all()
        _kill(self._all)

    def __enter__(self) -> SessionPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __copy__(self) -> SessionPool:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SessionPool:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, self._given

    def __repr__(self) -> str:
        return f"SessionPool({self._identity!r})"

    def _begin(self, environment: Environment, task: str) -> PooledSession:
        what = f"opening task {task}"
        inner = guarded(environment, self._limits.open, what, lambda: environment.open(task))
        with self._free:
            self._open += 1
            self._counts["sessions"] += 1
            self._counts["peak"] = max(self._counts["peak"], self._open)
        return PooledSession(task, inner, environment, self._limits)

    def _end(
        self,
        environment: Environment,
        session: PooledSession | None,
        fault: EnvironmentFaultError | None,
    ) -> None:
        with self._free:
            self._open -= session is not None
        if fault is not None:
            self._note(fault)
        self._give_back(environment, broken=session is None or fault is not None)

    def _note(self, fault: EnvironmentFaultError) -> None:
        with self._free:
            self._faults[fault.kind] += 1

    def _lease(self) -> Environment:
        until = time.monotonic() + self._limits.wait
        with self._free:
            while not self._closed and not self._idle and len(self._all) >= self._size:
                left = until - time.monotonic()
                if left <= 0 or not self._free.wait(left):
                    reason = (
                        f"none of {self._size} environments became free within"
                        f" {self._limits.wait:g} s"
                    )
                    raise EnvironmentFaultError("start", reason)
            if self._closed:
                raise ArgumentValueError("pool", self, "is closed", "Make a new one.")
            while self._idle:
                environment = self._idle.pop()
                if environment.healthy():
                    return environment
                # It ended while nobody used it, which concerns no rollout.
                environment.kill()
                self._all.discard(environment)
            environment = self._make()
            self._all.add(environment)
        try:
            guarded(environment, self._limits.start, "starting an environment", environment.start)
        except BaseException as error:
            if isinstance(error, EnvironmentFaultError):
                self._note(error)
            self._give_back(environment, broken=True)
            raise
        with self._free:
            self._counts["started"] += 1
        return environment

    def _give_back(self, environment: Environment, *, broken: bool) -> None:
        with self._free:
            uses = self._uses[id(environment)] = self._uses.get(id(environment), 0) + 1
            keep = not broken and uses < self._reuse and not self._closed
            if keep:
                self._idle.append(environment)
                self._free.notify()
                return
        environment.kill()
        with self._free:
            self._uses.pop(id(environment), None)
            self._all.discard(environment)
            self._free.notify()


def _kill(environments: set[Environment]) -> None:
    for environment in list(environments):
        environment.kill()


def _rebuild(
    make: Callable[[], Environment],
    size: int,
    limits: SessionLimits | None,
    reuse: int,
    identity: str | None,
) -> SessionPool:
    return SessionPool(make, size, limits=limits, reuse=reuse, identity=identity)
