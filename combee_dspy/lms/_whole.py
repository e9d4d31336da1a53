"""Replies that are whole by a deadline: a client's own limits are for each wait, and a service that
sends a byte now and then breaks none of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from dspy.utils.exceptions import LMTimeoutError

from combee_dspy._private import StdlibTransport

__all__ = ["guard", "too_late", "whole_within"]

_LIMIT: ContextVar[float | None] = ContextVar("combee_whole_within", default=None)


@contextmanager
def whole_within(seconds: float | None) -> Iterator[None]:
    """Have each reply to a request that is sent in the block end within so many seconds, if any are
    named. They begin when the request has a connection. Transports heed it once :func:`guard` had
    them.
    """
    token = _LIMIT.set(seconds)
    try:
        yield
    finally:
        _LIMIT.reset(token)


def too_late(seconds: float | None) -> LMTimeoutError:
    """Return the error of a reply that was not whole within so many seconds."""
    return LMTimeoutError(f"no whole answer within {seconds:g} seconds, twice the LM's timeout")


def guard(transport: StdlibTransport) -> None:
    """Have a transport's replies be whole within the seconds of :func:`whole_within`, or given up
    and their connection closed. In place, since clients that exist hold it; outside of such a block
    nothing changes.
    """
    transport.__class__ = _WholeTransport


class _WholeTransport(StdlibTransport):
    def _send_request(self, conn: Any, *args: Any, **kwargs: Any) -> None:
        # Here: a connection is held, and neither the request nor a byte of the reply was under way.
        plain = conn.sock.plain if isinstance(conn.sock, _Timed) else conn.sock
        limit = _LIMIT.get()
        conn.sock = plain if limit is None else _Timed(plain, limit)
        super()._send_request(conn, *args, **kwargs)


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
        raise too_late(self._seconds)
