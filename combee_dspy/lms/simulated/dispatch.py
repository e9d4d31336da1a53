"""From an HTTP request to its answer: validation, draws, slots, queue and counting."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, deque
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

from combee_dspy.lms.simulated.answering import SimulatedModel
from combee_dspy.lms.simulated.config import SimulatedConfig
from combee_dspy.lms.simulated.failures import Status
from combee_dspy.lms.simulated.http11 import Exchange
from combee_dspy.lms.simulated.requests import (
    BadRequestError,
    ChatRequest,
    Message,
    parse_request,
    prompt_tokens,
    text_tokens,
)
from combee_dspy.lms.simulated.stats import CallRecord, Kind, Recorder

__all__ = ["MODEL", "Dispatcher"]

MODEL = "simulated"

_GARBLED = "This simulated reply is malformed on purpose and holds no field."
_BILLED = (Status.OK, Status.MALFORMED, Status.TRUNCATED, Status.SLOW)


@dataclass(frozen=True, slots=True)
class _Call:
    """An answer that waits for its time."""

    exchange: Exchange
    kind: Kind
    status: Status
    code: HTTPStatus
    body: bytes
    tokens: tuple[int, int]
    seconds: float
    arrived: float
    messages: tuple[Message, ...] = ()
    text: str = ""
    headers: tuple[tuple[str, str], ...] = ()


class Dispatcher:
    """The service without its socket. Runs on the event loop's thread only.

    Args:
        config: The settings.
        model: Gives the answers.
        recorder: Counts.
        loop: The loop whose clock and timers are used.
    """

    def __init__(
        self, config: SimulatedConfig, model: SimulatedModel, recorder: Recorder, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._config = config
        self._model = model
        self._recorder = recorder
        self._loop = loop
        self._queue: deque[_Call] = deque()
        self._in_flight = 0
        self._slots = config.slots
        self._attempts: Counter[str] = Counter()

    def handle(self, method: str, path: str, body: bytes, exchange: Exchange) -> None:
        """Answer one HTTP request, now or later."""
        route = (method, path.rstrip("/"))
        if route == ("POST", "/v1/chat/completions"):
            self._complete(body, exchange)
        elif route == ("GET", "/v1/models"):
            model = {"id": MODEL, "object": "model", "created": 0, "owned_by": MODEL}
            exchange.respond(HTTPStatus.OK, _json({"object": "list", "data": [model]}))
        elif route == ("GET", "/stats"):
            exchange.respond(HTTPStatus.OK, _json(self._recorder.snapshot().to_dict()))
        else:
            exchange.respond(HTTPStatus.NOT_FOUND, _error("no such endpoint", "not_found_error"))

    def resize(self, slots: int) -> None:
        """Serve so many calls at once from now on. Calls that hold a slot keep it."""
        self._slots = slots
        self._start_waiting()

    def forget_attempts(self) -> None:
        """Treat every content as not seen before."""
        self._attempts.clear()

    def _complete(self, body: bytes, exchange: Exchange) -> None:
        self._recorder.arrived()
        try:
            request = parse_request(body)
            self._check_window(request)
        except BadRequestError as error:
            self._recorder.ended(Kind.OTHER, Status.BAD_REQUEST, (0, 0), 0.0)
            exchange.respond(HTTPStatus.BAD_REQUEST, _error(str(error), "invalid_request_error", _code(error)))
            return
        attempt = self._attempt(request)
        call = self._call(request, attempt, exchange)
        full = self._in_flight >= self._slots
        if full and self._config.reject_when_full and call.status is not Status.RATE_LIMITED:
            call = self._refused(call, Status.RATE_LIMITED, HTTPStatus.TOO_MANY_REQUESTS)
        if call.status is Status.RATE_LIMITED or self._config.time_scale == 0:
            # A refusal takes no slot; without waiting, no call holds one for any time.
            self._recorder.started(self._in_flight + (call.status is not Status.RATE_LIMITED), 0.0)
            self._end(call)
        elif full:
            self._queue.append(call)
            self._recorder.waiting(len(self._queue))
        else:
            self._start(call, call.arrived)

    def _check_window(self, request: ChatRequest) -> None:
        window = self._config.context_window
        if window is not None and (used := prompt_tokens(request.messages)) > window:
            raise BadRequestError(f"the maximum context length is {window} tokens, the messages have {used}")

    def _attempt(self, request: ChatRequest) -> int:
        # Counted only where something depends on it: a long run would hold a counter per request for nothing.
        if request.temperature == 0 and self._config.failures.total == 0:
            return 0
        attempt = self._attempts[request.content]
        self._attempts[request.content] = attempt + 1
        return attempt

    def _call(self, request: ChatRequest, attempt: int, exchange: Exchange) -> _Call:
        config, content = self._config, request.content
        occurrence = attempt if request.temperature > 0 else 0
        status = config.failures.draw(config.seed, content, attempt)
        replies = [self._model.reply(request, occurrence, choice) for choice in range(request.choices)]
        kind = replies[0].kind
        texts = [_GARBLED if status is Status.MALFORMED else reply.text for reply in replies]
        parts = [_cut(text, request.max_tokens, status) for text in texts]
        written = [text_tokens(text) for text, _ in parts]
        tokens = (prompt_tokens(request.messages), sum(written))
        seconds = config.latency.seconds(max(written), config.seed, content, occurrence)
        if status is Status.SLOW:
            seconds += config.failures.slow_seconds
        body = _json(_completion(f"{content}-{attempt}", parts, tokens))
        call = _Call(exchange, kind, status, HTTPStatus.OK, body, tokens, seconds, self._loop.time())
        if config.log_calls:
            call = replace(call, messages=request.messages, text="\n".join(text for text, _ in parts))
        if status is Status.RATE_LIMITED:
            return self._refused(call, status, HTTPStatus.TOO_MANY_REQUESTS)
        if status is Status.SERVER_ERROR:
            first = config.latency.seconds(0, config.seed, content, occurrence)
            return replace(self._refused(call, status, HTTPStatus.INTERNAL_SERVER_ERROR), seconds=first)
        return call

    def _refused(self, call: _Call, status: Status, code: HTTPStatus) -> _Call:
        wait = f"{self._config.failures.retry_after * self._config.time_scale:.3f}"
        kind = "rate_limit_error" if code == HTTPStatus.TOO_MANY_REQUESTS else "server_error"
        body = _error(f"simulated {code.phrase.lower()}", kind)
        return replace(
            call, status=status, code=code, body=body, tokens=(0, 0), seconds=0.0, headers=(("retry-after", wait),)
        )

    def _start(self, call: _Call, now: float) -> None:
        self._in_flight += 1
        scale = self._config.time_scale
        self._recorder.started(self._in_flight, (now - call.arrived) / scale)
        self._loop.call_at(now + call.seconds * scale, self._finish, call, now)

    def _finish(self, call: _Call, started: float) -> None:
        self._in_flight -= 1
        self._end(call, started)
        self._start_waiting()

    def _start_waiting(self) -> None:
        while self._queue and self._in_flight < self._slots:
            self._start(self._queue.popleft(), self._loop.time())

    def _end(self, call: _Call, started: float | None = None) -> None:
        gone = call.exchange.gone
        status = Status.ABANDONED if gone and call.status in _BILLED else call.status
        # Counted before it is sent: who has the answer finds it in the counters.
        self._recorder.ended(call.kind, status, call.tokens, call.seconds)
        if self._config.log_calls:
            self._log(call, status, call.arrived if started is None else started)
        call.exchange.respond(call.code, call.body, call.headers)

    def _log(self, call: _Call, status: Status, started: float) -> None:
        # Without a scale time has no meaning, and everything happens at once.
        per_second = 1 / self._config.time_scale if self._config.time_scale else 0.0
        arrived, began, ended = (moment * per_second for moment in (call.arrived, started, self._loop.time()))
        record = (call.kind, status, arrived, began, ended, call.seconds, *call.tokens, call.messages, call.text)
        self._recorder.log(CallRecord(*record))


def _cut(text: str, max_tokens: int | None, status: Status) -> tuple[str, str]:
    """Return the text that fits and its finish reason."""
    keep = len(text) if max_tokens is None else 4 * max_tokens
    if status is Status.TRUNCATED:
        keep = min(keep, len(text) // 2)
    return text[:keep], "length" if keep < len(text) else "stop"


def _completion(name: str, parts: list[tuple[str, str]], tokens: tuple[int, int]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-simulated-{name}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": MODEL,
        "system_fingerprint": MODEL,
        "choices": [
            {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": reason}
            for index, (text, reason) in enumerate(parts)
        ],
        "usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1], "total_tokens": sum(tokens)},
    }


def _code(error: BadRequestError) -> str | None:
    return "context_length_exceeded" if "context length" in str(error) else None


def _error(message: str, kind: str, code: str | None = None) -> bytes:
    return _json({"error": {"message": message, "type": kind, "code": code}})


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
