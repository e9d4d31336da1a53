"""One HTTP answer, whole, in the form that DSPy's wire dialect reads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, Protocol

__all__ = ["LONGEST", "Answer", "AsyncAnswer", "WireRequest"]

LONGEST = 64 * 1024 * 1024
"""Bytes of an answer that are read at most: no completion comes near, and a hostile service must not fill memory."""


class WireRequest(Protocol):
    """What the dialect asks to be sent."""

    url: str
    headers: list[tuple[str, str]]
    body: bytes


class Answer:
    """An answer that has been read to its end, so that its connection is free again.

    Args:
        status: HTTP status.
        reason: The words after it.
        headers: Names and values, in order.
        body: All of it.
    """

    __slots__ = ("_body", "headers", "http_version", "reason", "status")

    def __init__(self, status: int, reason: str, headers: list[tuple[str, str]], body: bytes) -> None:
        self.status = status
        self.reason = reason
        self.headers = headers
        self.http_version = "HTTP/1.1"
        self._body = body

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *raised: object) -> None:
        return None

    def __iter__(self) -> Iterator[bytes]:
        yield self._body

    def read(self) -> bytes:
        """Return the body."""
        return self._body


class AsyncAnswer:
    """The same for the dialect's async form: the request is sent when the block is entered.

    Args:
        sent: Awaited for the answer.
    """

    __slots__ = ("_answer", "_sent")

    def __init__(self, sent: Any) -> None:
        self._sent = sent
        self._answer: Answer | None = None

    async def __aenter__(self) -> AsyncAnswer:
        self._answer = await self._sent
        return self

    async def __aexit__(self, *raised: object) -> None:
        return None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield await self.read()

    def __getattr__(self, name: str) -> Any:
        # Status, reason, headers and version are the answer's own.
        if self._answer is None:
            raise AttributeError(name)
        return getattr(self._answer, name)

    async def read(self) -> bytes:
        """Return the body."""
        return b"" if self._answer is None else self._answer.read()
