"""A server before the simulated service that spoils some of its answers, and counts every
request.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import math
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from aiohttp import ClientSession, web

from combee_simulator.laws import uniform

Spoil = Callable[[web.Request, dict[str, Any]], Awaitable[web.StreamResponse]]
"""Answers a request whose right reply is known."""

_DRIP = 0.5
# Bytes of a request whose prompt a model of a short context still takes: half of what a shard is
# read by.
_LONGEST = 9_000
_TURNED_AWAY = (429, 503)


@dataclass(frozen=True, slots=True)
class Fault:
    """One way in which a service misbehaves.

    Attributes:
        whose: The ``service``'s, which says nothing of a rollout; or what a ``model`` may answer,
            which is scored.
        spoil: Answers a request.
        always: Whether it meets every request, and decides itself.
    """

    whose: Literal["service", "model"]
    spoil: Spoil
    always: bool = False


class Spoiling:
    """What stands before a service; its attributes may be set from any thread.

    Attributes:
        name: Names what happens, for the draws.
        fault: What spoils answers, ``None`` for nothing.
        requests: Requests so far.
        spoiled: Those of them that did not get their right answer.
        charged: Tokens that a service would charge for: not where it turned the request away.
        away_from: The request from which on the service is away; ``None`` for never.
        away: Seconds that it is away.
    """

    def __init__(self, url: str, rate: float, seed: int) -> None:
        self._url, self._rate, self._seed = url, rate, seed
        self.name = ""
        self.fault: Fault | None = None
        self.away_from: int | None = None
        self.away = 0.0
        self.reset()

    def reset(self) -> None:
        """Begin to count anew."""
        self.requests = self.spoiled = self.charged = 0
        self._attempts: Counter[tuple[str, str]] = Counter()
        self._since: float | None = None

    def application(self) -> web.Application:
        """Return what a server serves."""
        application = web.Application(client_max_size=2**28)
        application.router.add_post("/v1/chat/completions", self._complete)
        application.cleanup_ctx.append(self._asking)
        return application

    async def _asking(self, _: web.Application) -> AsyncIterator[None]:
        async with ClientSession() as self._session:
            yield

    async def _complete(self, http: web.Request) -> web.StreamResponse:
        body = await http.read()
        self.requests += 1
        content = hashlib.blake2b(body, digest_size=8).hexdigest()
        self._attempts[self.name, content] += 1
        if self.away_from is not None and self.requests > self.away_from:
            self._since = self._since or time.monotonic()
            if time.monotonic() - self._since < self.away:
                self.spoiled += 1
                return await _reset(http, {})
        async with self._session.post(self._url, data=body) as reply:
            right, status = await reply.json(), reply.status
        tokens = right["usage"]["total_tokens"] if status == 200 else 0
        fault, drawn = (
            self.fault,
            uniform(self._seed, "fault", self.name, content, self._attempts[self.name, content]),
        )
        if status != 200 or fault is None or not (fault.always or drawn < self._rate):
            self.charged += tokens
            return web.json_response(right, status=status)
        self.spoiled += not fault.always
        answer = await fault.spoil(http, right)
        self.charged += tokens if answer.status not in _TURNED_AWAY else 0
        return answer


def _status(code: int, **headers: str) -> Spoil:
    async def spoil(http: web.Request, right: dict[str, Any]) -> web.StreamResponse:
        error = {"error": {"message": f"spoiled: HTTP {code}", "type": "spoiled", "code": None}}
        return web.json_response(
            error, status=code, headers={name.replace("_", "-"): it for name, it in headers.items()}
        )

    return spoil


async def _reset(http: web.Request, right: dict[str, Any]) -> web.StreamResponse:
    if http.transport is not None:
        http.transport.abort()
    return web.Response()


async def _hang(http: web.Request, right: dict[str, Any]) -> web.StreamResponse:
    while http.transport is not None and not http.transport.is_closing():
        await asyncio.sleep(0.05)
    return web.Response()


async def _slow(http: web.Request, right: dict[str, Any]) -> web.StreamResponse:
    await asyncio.sleep(1.0)
    return web.json_response(right)


async def _short(http: web.Request, right: dict[str, Any]) -> web.StreamResponse:
    if len(await http.read()) <= _LONGEST:
        return web.json_response(right)
    error = {
        "message": "This model's maximum context length is 2000 tokens.",
        "code": "context_length_exceeded",
    }
    return web.json_response({"error": error}, status=400)


def _send_part(
    data: bytes, seconds: float = 0.0, most: int | None = None
) -> Callable[[web.Request], Any]:
    async def sent(http: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"content-length": str(len(data)), "content-type": "application/json"}
        )
        await response.prepare(http)
        with suppress(ConnectionError):  # whoever asked has given up
            for byte in data[:most] if seconds else ():
                await response.write(bytes([byte]))
                await asyncio.sleep(seconds)
            await response.write(data[:most])
        return await _reset(http, {})

    return sent


async def _half(http: web.Request, right: dict[str, Any]) -> web.StreamResponse:
    data = json.dumps(right).encode()
    response: web.StreamResponse = await _send_part(data, most=len(data) // 2)(http)
    return response


async def _drip(http: web.Request, right: dict[str, Any]) -> web.StreamResponse:
    response: web.StreamResponse = await _send_part(json.dumps(right).encode(), _DRIP)(http)
    return response


def _body(data: bytes, kind: str = "application/json") -> Spoil:
    async def spoil(http: web.Request, right: dict[str, Any]) -> web.StreamResponse:
        return web.Response(body=data, content_type=kind)

    return spoil


def _changed(change: Callable[[dict[str, Any]], Any]) -> Spoil:
    """Return what answers with the right reply, changed in its first choice or beside it."""

    async def spoil(http: web.Request, right: dict[str, Any]) -> web.StreamResponse:
        change(right)
        return web.json_response(right)

    return spoil


def _answer(text: str | None, finish: str = "stop", **more: Any) -> Spoil:
    def change(right: dict[str, Any]) -> None:
        right["choices"][0] |= {
            "message": {"role": "assistant", "content": text, **more},
            "finish_reason": finish,
        }

    return _changed(change)


async def _answer_in_large(http: web.Request, right: dict[str, Any]) -> web.StreamResponse:
    # Written once: what takes its time must be who reads it.
    return web.Response(body=_large(), content_type="application/json")


@functools.cache
def _large() -> bytes:
    message = {"role": "assistant", "content": "word " * 10_000_000}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
    return json.dumps(
        {"id": "large", "object": "chat.completion", "choices": [choice], "usage": usage}
    ).encode()


def _cut(right: dict[str, Any]) -> None:
    choice = right["choices"][0]
    choice["message"]["content"] = choice["message"]["content"][
        : len(choice["message"]["content"]) // 2
    ]
    choice["finish_reason"] = "length"


def _with_usage(number: float) -> Spoil:
    return _changed(lambda right: right["usage"].update(prompt_tokens=number))


async def _bad_encoding(http: web.Request, right: dict[str, Any]) -> web.StreamResponse:
    data = json.dumps(right).encode().replace(b'"content": "', b'"content": "\xff\xfe', 1)
    return web.Response(body=data, content_type="application/json")


async def _infinite(http: web.Request, right: dict[str, Any]) -> web.StreamResponse:
    data = (
        json.dumps(right)
        .encode()
        .replace(b'"prompt_tokens": ', b'"prompt_tokens": 1e999, "was": ', 1)
    )
    return web.Response(body=data, content_type="application/json")


def _nul(right: dict[str, Any]) -> None:
    right["choices"][0]["message"]["content"] += "\0" * 100


def _mixed(kinds: Sequence[Spoil]) -> Spoil:
    async def spoil(http: web.Request, right: dict[str, Any]) -> web.StreamResponse:
        return await kinds[zlib.crc32(await http.read()) % len(kinds)](http, right)

    return spoil


FAULTS: dict[str, Fault] = {
    "429": Fault("service", _status(429)),
    "429-retry-after": Fault("service", _status(429, **{"Retry-After": "0.2"})),
    "500": Fault("service", _status(500)),
    "503": Fault("service", _status(503)),
    "reset": Fault("service", _reset),
    "hang": Fault("service", _hang),
    "half-body": Fault("service", _half),
    "drip": Fault("service", _drip),
    "html": Fault("service", _body(b"<html><body>Welcome</body></html>", "text/html")),
    "broken-json": Fault("service", _body(b'{"choices": [{"index": 0,')),
    "empty-object": Fault("service", _body(b"{}")),
    "no-choices": Fault("service", _changed(lambda right: right.update(choices=[]))),
    "message-null": Fault(
        "service", _changed(lambda right: right["choices"][0].update(message=None))
    ),
    "list": Fault("service", _body(b"[1, 2]")),
    "nested-reply": Fault("service", _body(b'{"a":' * 10_000 + b"1" + b"}" * 10_000)),
    "invalid-utf8": Fault("service", _bad_encoding),
    "nan-usage": Fault("service", _with_usage(math.nan)),
    "1e999-usage": Fault("service", _infinite),
    "empty-text": Fault("model", _answer("")),
    "refusal": Fault("model", _answer(None, refusal="I cannot help with that.")),
    "1-mb": Fault("model", _answer("word " * 200_000)),
    "50-mb": Fault("model", _answer_in_large),
    "nested-answer": Fault("model", _answer('{"a":' * 10_000)),
    "another-language": Fault("model", _answer("Я не могу ответить на этот вопрос. 对不起。")),
    "length": Fault("model", _changed(_cut)),
    "nul": Fault("model", _changed(_nul)),
    "long-prompts": Fault("model", _short, always=True),
    "slow": Fault("service", _slow, always=True),
}
_NOW_AND_THEN = [one.spoil for one in FAULTS.values() if one.whose == "service" and not one.always]
FAULTS["mixed"] = Fault("service", _mixed(_NOW_AND_THEN))
"""What a service may do to a share of its requests. Sizes are in characters."""
