"""Keep-alive connections for event loops: one ``aiohttp`` session a loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit

from dspy.lm15 import TimeoutError as LM15TimeoutError
from dspy.lm15 import TransportError

from combee_dspy.lms.pool.answer import LONGEST, Answer, AsyncAnswer, WireRequest
from combee_dspy.lms.pool.connections import CONNECT_SECONDS, authorization, proxy_of

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Sessions"]


class Sessions:
    """Connections to one service from coroutines. Thread-safe; each loop has connections of its own.

    A loop that ends with ``loop.shutdown_asyncgens()``, as ``asyncio.run`` ends
    its own, closes its connections then.

    Args:
        url: Where requests go: scheme, host and port count.
        most: Connections at most, in each loop; whoever needs another one waits for one.
        timeout: Seconds that the service may stay silent.
    """

    def __init__(self, url: str, most: int, timeout: float) -> None:
        # Found out once, as for threads: aiohttp's own search reads files, in two threads a request, and a
        # host that ~/.netrc names would make it refuse the key.
        self._proxy = proxy_of(urlsplit(url))
        self._most = most
        self._timeout = timeout
        self._lock = threading.Lock()
        self._open: dict[
            asyncio.AbstractEventLoop, tuple[aiohttp.ClientSession, AsyncGenerator[aiohttp.ClientSession, None]]
        ] = {}

    def stream(self, request: WireRequest) -> AsyncAnswer:
        """Return what sends a request and reads its answer whole. The name is the dialect's."""
        return AsyncAnswer(self._send(request))

    async def aclose(self) -> None:
        """Close the connections of this loop. Later requests open new ones."""
        with self._lock:
            found = self._open.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found[1].aclose()

    async def _send(self, request: WireRequest) -> Answer:
        import aiohttp

        session = await self._session()
        through = {} if self._proxy is None else _through(self._proxy, request)
        try:
            async with session.post(
                request.url, data=request.body, headers=request.headers, allow_redirects=False, **through
            ) as response:
                body = await response.content.read(-1) if _short(response) else await _bounded(response)
                headers = list(response.headers.items())
                return Answer(response.status, response.reason or "", headers, body)
        except aiohttp.ConnectionTimeoutError as error:
            raise TransportError(f"no connection within {CONNECT_SECONDS:g} s") from error
        except TimeoutError as error:
            raise LM15TimeoutError(f"no answer within {self._timeout:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise TransportError(f"{type(error).__name__}: {error}") from error

    async def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        found = self._open.get(loop)
        if found is None:
            keeper = self._keep()
            session = await anext(keeper)
            with self._lock:
                for ended in [one for one in self._open if one.is_closed()]:
                    del self._open[ended]
                # Another coroutine of this loop may have been here meanwhile.
                found = self._open.setdefault(loop, (session, keeper))
            if found[0] is not session:
                await keeper.aclose()
        return found[0]

    async def _keep(self) -> AsyncGenerator[aiohttp.ClientSession, None]:
        # A generator, because a loop that ends closes its generators: nobody else would close the session in time.
        import aiohttp

        connector = aiohttp.TCPConnector(limit=self._most, limit_per_host=self._most)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=self._timeout)
        async with aiohttp.ClientSession(
            connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
        ) as session:
            yield session


def _through(proxy: SplitResult, request: WireRequest) -> dict[str, Any]:
    """Return what sends a request through a proxy, and add to it what the proxy asks for."""
    # aiohttp would find user and password in the proxy's URL, but fails on those outside Latin-1, and encodes an é as
    # Latin-1 where threads send UTF-8.
    known = authorization(proxy)
    if urlsplit(request.url).scheme == "http":
        request.headers = [*request.headers, *known.items()]
        known = {}
    return {"proxy": f"http://{proxy.netloc.rpartition('@')[2]}", "proxy_headers": known or None}


def _short(response: Any) -> bool:
    length = response.content_length
    return length is not None and length <= LONGEST


async def _bounded(response: Any) -> bytes:
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > LONGEST:
            raise TransportError(f"the answer is longer than {LONGEST:,} bytes")
        parts.append(part)
    return b"".join(parts)
