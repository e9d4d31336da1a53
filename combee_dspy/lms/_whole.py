"""Replies that are whole by a deadline: a client's own limits are for each wait, and a service that
sends a byte now and then breaks none of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

from dspy.utils.exceptions import LMTimeoutError

from combee_dspy._private import StdlibAsyncTransport, StdlibTransport

__all__ = [
    "WholeAsyncTransport",
    "WholeTransport",
    "whole_within",
    "whole_within_on_loop",
]

_LIMIT: ContextVar[float | None] = ContextVar("combee_whole_within", default=None)
_CLOCK: ContextVar[tuple[asyncio.Timeout, float | None] | None] = ContextVar(
    "combee_whole_clock", default=None
)


@contextmanager
def whole_within(seconds: float | None) -> Iterator[None]:
    """Have each reply to a request that is sent in the block end within so many seconds, if any are
    named. They begin when the request has a connection of a :class:`WholeTransport`.
    """
    token = _LIMIT.set(seconds)
    try:
        yield
    finally:
        _LIMIT.reset(token)


@asynccontextmanager
async def whole_within_on_loop(seconds: float | None) -> AsyncIterator[None]:
    """Do what :func:`whole_within` does for a task. Where no :class:`WholeAsyncTransport` sends the
    request, the seconds begin at once.
    """
    try:
        async with asyncio.timeout(seconds) as clock:
            token = _CLOCK.set((clock, seconds))
            try:
                yield
            finally:
                _CLOCK.reset(token)
    except TimeoutError:
        raise _too_late(seconds) from None


def _too_late(seconds: float | None) -> LMTimeoutError:
    """Return the error of a reply that was not whole within so many seconds."""
    return LMTimeoutError(f"no whole answer within {seconds:g} seconds, twice the LM's timeout")


class WholeTransport(StdlibTransport):
    """DSPy's transport for threads, whose replies are whole within the seconds of
    :func:`whole_within`, or given up and their connection closed. Outside of such a block it is as
    ever.
    """

    def _send_request(self, conn: Any, *args: Any, **kwargs: Any) -> None:
        # Here: a connection is held, and neither the request nor a byte of the reply was under way.
        plain = conn.sock.plain if isinstance(conn.sock, _Timed) else conn.sock
        limit = _LIMIT.get()
        conn.sock = plain if limit is None else _Timed(plain, limit)
        super()._send_request(conn, *args, **kwargs)


class WholeAsyncTransport(StdlibAsyncTransport):
    """DSPy's transport for event loops: the seconds of :func:`whole_within_on_loop` begin when a
    connection is held.
    """

    async def _do_stream(self, request: Any) -> Any:
        if (timed := _CLOCK.get()) is not None:
            timed[0].reschedule(None)
        return await super()._do_stream(request)

    async def _send_request(self, *args: Any, **kwargs: Any) -> None:
        if (timed := _CLOCK.get()) is not None and timed[1] is not None:
            timed[0].reschedule(asyncio.get_running_loop().time() + timed[1])
        await super()._send_request(*args, **kwargs)


class _Timed:
    """A socket that is read for so many seconds in all."""

    def __init__(self, plain: Any, seconds: float) -> None:
        self.plain = plain
        self.sendall, self.fileno, self.close = plain.sendall, plain.fileno, plain.close
        self._seconds, self._until = seconds, time.monotonic() + seconds
        self._silence = seconds

    def settimeout(self, seconds: float) -> None:
        self._silence = seconds
        self.plain.settimeout(seconds)

    def recv(self, size: int) -> bytes:
        left = self._until - time.monotonic()
        if left > 0:
            self.plain.settimeout(min(left, self._silence))
            try:
                return bytes(self.plain.recv(size))
            except TimeoutError:
                if left > self._silence:
                    raise  # silent, and not yet late
        raise _too_late(self._seconds)
