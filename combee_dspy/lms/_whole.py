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

from combee_dspy._private import TransportResponse

__all__ = ["WholeReplies", "too_late", "whole_within"]

_LIMIT: ContextVar[tuple[float, float] | None] = ContextVar("combee_whole_within", default=None)


@contextmanager
def whole_within(seconds: float | None) -> Iterator[None]:
    """Have the replies that are read in the block end within so many seconds, if any are named."""
    token = _LIMIT.set(None if seconds is None else (seconds, time.monotonic() + seconds))
    try:
        yield
    finally:
        _LIMIT.reset(token)


def too_late(seconds: float | None) -> LMTimeoutError:
    """Return the error of a reply that was not whole within so many seconds."""
    return LMTimeoutError(f"no whole answer within {seconds:g} seconds, twice the LM's timeout")


class WholeReplies:
    """A transport whose replies are whole within the seconds of :func:`whole_within`, or given up:
    the first byte after them closes the connection.

    Args:
        transport: DSPy's own, which bounds each wait for a byte.
    """

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    def stream(self, request: Any) -> TransportResponse:
        """Send a request, and return its reply to be read."""
        response, limit = self._transport.stream(request), _LIMIT.get()
        return response if limit is None else _in_time(response, *limit)

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()


def _in_time(response: TransportResponse, seconds: float, until: float) -> TransportResponse:
    def read() -> Iterator[bytes]:
        for chunk in response:
            if time.monotonic() > until:
                raise too_late(seconds)
            yield chunk

    return TransportResponse(
        status=response.status,
        reason=response.reason,
        headers=response.headers,
        http_version=response.http_version,
        chunks=read(),
        release=lambda whole: response.close(),
    )
