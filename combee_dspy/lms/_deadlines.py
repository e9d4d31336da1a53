"""DSPy's HTTP transports, with a deadline for a whole reply.

DSPy's own limits are for each wait. A service that sends a byte now and then passes none of them.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

from dspy.utils.exceptions import LMTimeoutError

from combee_dspy._private import StdlibAsyncTransport, StdlibTransport

_SECONDS: ContextVar[float | None] = ContextVar("combee_reply_seconds", default=None)
_TIMEOUT: ContextVar[tuple[asyncio.Timeout, float] | None] = ContextVar(
    "combee_reply_timeout", default=None
)


@contextmanager
def reply_within(seconds: float | None) -> Iterator[None]:
    """Limit replies to the requests that this thread sends in the block; ``None`` sets no limit.

    The seconds begin when a :class:`DeadlineTransport` has a connection for the request.
    """
    token = _SECONDS.set(seconds)
    try:
        yield
    finally:
        _SECONDS.reset(token)


@asynccontextmanager
async def reply_within_on_loop(seconds: float | None) -> AsyncIterator[None]:
    """Do what :func:`reply_within` does for a task.

    The seconds begin at once where no :class:`AsyncDeadlineTransport` sends the request.
    """
    if seconds is None:
        yield
        return
    timeout = asyncio.timeout(seconds)
    token = _TIMEOUT.set((timeout, seconds))
    try:
        async with timeout:
            yield
    except TimeoutError:
        if not timeout.expired():
            raise
        raise _too_late(seconds) from None
    finally:
        _TIMEOUT.reset(token)


def _too_late(seconds: float) -> LMTimeoutError:
    return LMTimeoutError(f"no whole answer within {seconds:g} seconds, twice the LM's timeout")


class DeadlineTransport(StdlibTransport):
    """DSPy's transport for threads. It gives up a reply that is not whole within the seconds of
    :func:`reply_within`, and closes its connection.
    """

    def _send_request(self, conn: Any, *args: Any, **kwargs: Any) -> None:
        # DSPy calls this when it has a connection, and before it sends anything.
        plain = conn.sock.plain if isinstance(conn.sock, _TimedSocket) else conn.sock
        seconds = _SECONDS.get()
        conn.sock = plain if seconds is None else _TimedSocket(plain, seconds)
        super()._send_request(conn, *args, **kwargs)


class AsyncDeadlineTransport(StdlibAsyncTransport):
    """The same for event loops, with the seconds of :func:`reply_within_on_loop`."""

    async def _do_stream(self, request: Any) -> Any:
        if (limit := _TIMEOUT.get()) is not None:
            limit[0].reschedule(None)  # the wait for a connection does not count
        return await super()._do_stream(request)

    async def _send_request(self, *args: Any, **kwargs: Any) -> None:
        if (limit := _TIMEOUT.get()) is not None:
            timeout, seconds = limit
            timeout.reschedule(asyncio.get_running_loop().time() + seconds)
        await super()._send_request(*args, **kwargs)


class _TimedSocket:
    """A socket that can be read for so many seconds in all."""

    def __init__(self, plain: socket.socket, seconds: float) -> None:
        self.plain = plain
        self.sendall, self.fileno, self.close = plain.sendall, plain.fileno, plain.close
        self._seconds, self._end = seconds, time.monotonic() + seconds
        self._silence = seconds

    def settimeout(self, seconds: float) -> None:
        self._silence = seconds
        self.plain.settimeout(seconds)

    def recv(self, size: int) -> bytes:
        left = self._end - time.monotonic()
        if left > 0:
            self.plain.settimeout(min(left, self._silence))
            try:
                return self.plain.recv(size)
            except TimeoutError:
                if left > self._silence:
                    raise  # the service was silent, and the reply is not late yet
        raise _too_late(self._seconds)
