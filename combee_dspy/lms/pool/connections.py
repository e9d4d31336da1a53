"""Keep-alive connections for threads.

Plain ``http.client``: measured at a third of the CPU time of the general
clients, and threads need no event loop between them and their socket.
"""

from __future__ import annotations

import base64
import http.client
import os
import ssl
import threading
import urllib.request
import weakref
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

from dspy.lm15 import TimeoutError as LM15TimeoutError
from dspy.lm15 import TransportError

from combee_dspy.lms.pool.answer import LONGEST, Answer, WireRequest

__all__ = ["CONNECT_SECONDS", "Connections", "authorization", "proxy_of"]

CONNECT_SECONDS = 10.0
"""How long a service may take to accept a connection, as DSPy's own engine has it."""

# A service that closed an idle connection shows it in one of these ways, before it has answered anything.
_GONE = (
    http.client.RemoteDisconnected,
    ConnectionResetError,
    BrokenPipeError,
    http.client.CannotSendRequest,
    http.client.ResponseNotReady,
)


class _Own:
    """What belongs to one process: its free connections, and its locks."""

    def __init__(self, most: int) -> None:
        self.free: list[http.client.HTTPConnection] = []
        self.places = threading.BoundedSemaphore(most)
        self.lock = threading.Lock()


class Connections:
    """Connections to one service, the last used first. Thread-safe; a process that is forked has its own.

    Args:
        url: Where requests go: scheme, host and port count.
        most: Connections at most; whoever needs another one waits for one.
        timeout: Seconds that the service may stay silent.
    """

    def __init__(self, url: str, most: int, timeout: float) -> None:
        self._where = urlsplit(url)
        self._proxy = proxy_of(self._where)
        self._timeout = timeout
        self._most = most
        self._by_process: dict[int, _Own] = {}
        self._tls: ssl.SSLContext | None = None

    def stream(self, request: WireRequest) -> Answer:
        """Send a request and read its answer whole. The name is the dialect's.

        Raises:
            TimeoutError: lm15's: the service stayed silent.
            TransportError: lm15's: no connection, or it broke.
        """
        own = self._own()
        with own.places:
            kept = self._kept(own)
            connection = kept or self._connect()
            try:
                try:
                    response = self._asked(connection, request)
                except _GONE:
                    if kept is None:
                        raise
                    # Once, and over a new one: what else is kept may be as old, and each time may cost an answer.
                    connection.close()
                    connection = self._connect()
                    response = self._asked(connection, request)
                return self._read(own, connection, response)
            except TimeoutError as error:
                connection.close()
                raise LM15TimeoutError(f"no answer within {self._timeout:g} s") from error
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                raise TransportError(_told(error)) from error
            except BaseException:
                connection.close()
                raise

    def close(self) -> None:
        """Close the connections that are free. May be called at any time; later requests open new ones."""
        own = self._own()
        with own.lock:
            _close_all(own.free)

    def _own(self) -> _Own:
        process = os.getpid()
        own = self._by_process.get(process)
        if own is None:
            # Over a connection that was open before a fork, two processes would read each other's answers, and a lock
            # that another thread held then is never let go of.
            before = list(self._by_process)
            own = self._by_process.setdefault(process, _Own(self._most))
            for forked_from in before:
                if forked_from != process and (theirs := self._by_process.pop(forked_from, None)) is not None:
                    # This process's copies: the service hears of it when the other closes its own.
                    _close_all(theirs.free)
            # An LM that nobody holds any more takes its sockets with it.
            weakref.finalize(self, _close_all, own.free)
        return own

    def _kept(self, own: _Own) -> http.client.HTTPConnection | None:
        with own.lock:
            return own.free.pop() if own.free else None

    def _asked(self, connection: http.client.HTTPConnection, request: WireRequest) -> http.client.HTTPResponse:
        where = urlsplit(request.url)
        target = f"{where.path or '/'}{'?' + where.query if where.query else ''}"
        headers = dict(request.headers)
        if self._proxy is not None and where.scheme == "http":
            target = request.url
            headers.update(authorization(self._proxy))
        connection.request("POST", target, request.body, headers)
        return connection.getresponse()

    def _read(self, own: _Own, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> Answer:
        body = response.read(LONGEST + 1)
        if len(body) > LONGEST:
            raise TransportError(f"the answer is longer than {LONGEST:,} bytes")
        if response.length:
            # What was announced and did not come; read() says nothing of it.
            raise TransportError("the answer was cut short")
        answer = Answer(response.status, response.reason, response.getheaders(), body)
        if response.will_close:
            connection.close()
        else:
            with own.lock:
                own.free.append(connection)
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        try:
            connection = self._made()
            connection.connect()
        except TimeoutError as error:
            raise TransportError(f"no connection within {CONNECT_SECONDS:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise TransportError(_told(error)) from error
        connection.sock.settimeout(self._timeout)
        return connection

    def _made(self) -> http.client.HTTPConnection:
        first = self._proxy or self._where
        if self._where.scheme == "http":
            return _OneWrite(first.hostname or "", first.port, timeout=CONNECT_SECONDS)
        connection = _OneWriteTLS(first.hostname or "", first.port, timeout=CONNECT_SECONDS, context=self._context())
        if self._proxy is not None:
            port = self._where.port or http.client.HTTPS_PORT
            connection.set_tunnel(self._where.hostname or "", port, headers=authorization(self._proxy))
        return connection

    def _context(self) -> ssl.SSLContext:
        with self._own().lock:
            if self._tls is None:
                self._tls = ssl.create_default_context()
            return self._tls


class _OneWrite(http.client.HTTPConnection):
    """Sends a request's head and body together.

    Each write lets go of the interpreter's lock: one of many threads wakes up for it in vain, and this one may wait.
    """

    _held: list[bytes] | None = None

    def request(self, *args: Any, **kwargs: Any) -> None:
        held: list[bytes] = []
        self._held = held
        try:
            super().request(*args, **kwargs)
        finally:
            self._held = None
        self.send(b"".join(held))

    def send(self, data: Any) -> None:
        if self._held is None:
            super().send(data)
        else:
            self._held.append(data)


class _OneWriteTLS(_OneWrite, http.client.HTTPSConnection):
    """The same, encrypted."""


def _close_all(free: list[http.client.HTTPConnection]) -> None:
    while free:
        free.pop().close()


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def proxy_of(where: SplitResult) -> SplitResult | None:
    """Return the proxy that the environment names for a service, if any."""
    named = urllib.request.getproxies().get(where.scheme)
    if not named or urllib.request.proxy_bypass(where.netloc):
        return None
    return urlsplit(named if "://" in named else f"http://{named}")


def authorization(proxy: SplitResult) -> dict[str, str]:
    """Return the header by which a proxy knows who asks; empty where it asks for none."""
    if proxy.username is None:
        return {}
    said = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}".encode()
    return {"Proxy-Authorization": f"Basic {base64.b64encode(said).decode()}"}
