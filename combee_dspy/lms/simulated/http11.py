"""A small HTTP/1.1 keep-alive server protocol for loopback use.

It knows what the clients of a chat endpoint send: requests with a
Content-Length or no body, one after another on a connection. Requests sent
ahead of a response are answered in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

__all__ = ["Exchange", "Handler", "HttpProtocol"]

_HEAD_LIMIT = 64 * 1024
_BODY_LIMIT = 256 * 1024 * 1024
_HEAD_PARTS = 3


class Exchange(Protocol):
    """Where the answer to one request goes. Used on the event loop's thread only."""

    @property
    def gone(self) -> bool:
        """Whether the client has closed the connection."""

    def respond(self, status: int, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> None:
        """Send the answer. Call it exactly once."""


Handler = Callable[[str, str, bytes, Exchange], None]


class HttpProtocol(asyncio.Protocol):
    """One connection.

    Args:
        handler: Called with method, path without query, body and the exchange to answer on.
        connections: Set of open connections that this one joins and leaves.
    """

    def __init__(self, handler: Handler, connections: set[HttpProtocol]) -> None:
        self._handler = handler
        self._connections = connections
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._head: tuple[str, str, int] | None = None
        self._keep_alive = True
        self._busy = False
        self._advancing = False

    @property
    def gone(self) -> bool:
        """Whether the client has closed the connection."""
        return self._transport is None or self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (called by asyncio)."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - what create_server always passes
        self._transport = transport
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the transport (called by asyncio)."""
        self._transport = None
        self._connections.discard(self)

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take bytes in (called by asyncio)."""
        self._buffer += data
        self._advance()

    def respond(self, status: int, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> None:
        """Send the answer to the request in hand, then look at the next one."""
        self._busy = False
        if self._transport is None or self._transport.is_closing():
            return
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "content-type: application/json"]
        lines.append(f"content-length: {len(body)}")
        lines.extend(f"{name}: {value}" for name, value in headers)
        lines.append("connection: keep-alive" if self._keep_alive else "connection: close")
        self._transport.write("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)
        if not self._keep_alive:
            self._transport.close()
        elif not self._advancing:
            self._advance()

    def _advance(self) -> None:
        # The flag turns an answer given at once into another turn of the loop instead of a recursion.
        self._advancing = True
        while not self._busy and not self.gone and self._next():
            pass
        self._advancing = False

    def _next(self) -> bool:
        """Hand over the next request; False while it is not complete."""
        if self._head is None:
            end = self._buffer.find(b"\r\n\r\n", 0, _HEAD_LIMIT)
            if end < 0:
                if len(self._buffer) >= _HEAD_LIMIT:
                    self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
                return False
            head = bytes(self._buffer[:end]).decode("latin-1")
            del self._buffer[: end + 4]
            if not self._parse_head(head):
                return False
        assert self._head is not None  # noqa: S101 - set just above; narrows the type
        method, path, length = self._head
        if len(self._buffer) < length:
            return False
        body = bytes(self._buffer[:length])
        del self._buffer[:length]
        self._head = None
        self._busy = True
        self._handler(method, path, body, self)
        return True

    def _parse_head(self, head: str) -> bool:
        first, *rest = head.split("\r\n")
        parts = first.split(" ")
        headers: dict[str, str] = {}
        for line in rest:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        length = headers.get("content-length", "0")
        if (
            len(parts) != _HEAD_PARTS
            or not parts[2].startswith("HTTP/1.")
            or not (length.isascii() and length.isdigit())
        ):
            return self._refuse(HTTPStatus.BAD_REQUEST)
        if "transfer-encoding" in headers:
            return self._refuse(HTTPStatus.LENGTH_REQUIRED)
        if int(length[:12]) > _BODY_LIMIT:
            return self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        connection = headers.get("connection", "").lower()
        self._keep_alive = connection != "close" and (parts[2] != "HTTP/1.0" or connection == "keep-alive")
        if headers.get("expect", "").lower() == "100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._head = (parts[0], parts[1].partition("?")[0], int(length))
        return True

    def _refuse(self, status: HTTPStatus) -> bool:
        self._keep_alive = False
        self.respond(status, b'{"error":{"message":"' + status.phrase.encode() + b'","type":"invalid_request_error"}}')
        return False
