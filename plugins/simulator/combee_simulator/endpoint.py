"""From a request to its answer: validation, draws, slots, queue and counting."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Annotated

from aiohttp import web
from pydantic import Field

from combee_dspy.strategies import parameters
from combee_simulator.answering import SimulatedModel
from combee_simulator.capacity import CapacityModel
from combee_simulator.laws import FailureRates, LatencyLaw, ReasoningLaw, Status, WordingLaw
from combee_simulator.replies import MODEL, completion, cut_text, error_body, respond, to_json
from combee_simulator.requests import (
    BadRequestError,
    ChatRequest,
    Message,
    parse_request,
    prompt_tokens,
    text_tokens,
)
from combee_simulator.stats import CallRecord, Counters, Kind

__all__ = ["RequestHandler", "SimulatedConfig"]

_BODY_LIMIT = 256 * 1024 * 1024
_GARBLED = "This simulated reply is malformed on purpose and holds no field."
_BILLED = (Status.OK, Status.MALFORMED, Status.TRUNCATED, Status.SLOW)


@parameters
class SimulatedConfig:
    """Settings of the simulated service; the defaults are those of the project's benchmarks.

    Args:
        seed: Seed of every draw: answers, latencies, failures, attention.
        latency: The latency law.
        capacity: The law of context overload in writing requests.
        reasoning: How long a task's answer reasons where the program asks for it; None for one
            short sentence.
        wording: How calls word the lessons that they write.
        thinking: Tokens that a writing call thinks before it answers; they are billed.
        failures: Failures injected on purpose; none by default.
        slots: Calls served at once. Further calls wait in order of arrival.
        reject_when_full: Answer 429 with ``Retry-After`` instead of letting a call wait.
        time_scale: Wall seconds for one simulated second. 0 answers at once, without slots or
            queue.
        context_window: Most prompt tokens accepted, or None for no limit; beyond it HTTP 400.
        port: TCP port on 127.0.0.1; 0 lets the system choose.
        log_calls: Keep every call, with its texts, for :meth:`SimulatedService.calls`. Off by
            default: the memory of a long run would grow with its calls.
    """

    seed: int = 0
    latency: LatencyLaw = field(default_factory=LatencyLaw)
    capacity: CapacityModel = field(default_factory=CapacityModel)
    reasoning: ReasoningLaw | None = None
    wording: WordingLaw = field(default_factory=WordingLaw)
    thinking: Annotated[int, Field(ge=0)] = 0
    failures: FailureRates = field(default_factory=FailureRates)
    slots: Annotated[int, Field(ge=1)] = 64
    reject_when_full: bool = False
    time_scale: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    context_window: Annotated[int, Field(ge=1)] | None = None
    port: Annotated[int, Field(ge=0, le=65_535)] = 0
    log_calls: bool = False


@dataclass(frozen=True, slots=True)
class _Reply:
    """What one attempt gets, before it waits for its time."""

    kind: Kind
    status: Status
    code: HTTPStatus
    body: bytes
    tokens: tuple[int, int]
    seconds: float
    text: str = ""
    headers: tuple[tuple[str, str], ...] = ()


class RequestHandler:
    """The service without its socket and thread. Runs on the event loop alone."""

    def __init__(self, config: SimulatedConfig, model: SimulatedModel, counters: Counters) -> None:
        self._config = config
        self._model = model
        self._counters = counters
        self._slots = config.slots
        self._in_flight = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self.attempts: Counter[str] = Counter()

    def application(self) -> web.Application:
        """Return what a server serves."""
        application = web.Application(client_max_size=_BODY_LIMIT)
        application.router.add_post("/v1/chat/completions", self._complete)
        application.router.add_get("/v1/models", self._models)
        application.router.add_get("/stats", self._stats)
        return application

    def resize(self, slots: int) -> None:
        """Serve so many calls at once from now on. Calls that hold a slot keep it."""
        self._slots = slots
        self._start_waiting()

    async def _models(self, _: web.Request) -> web.Response:
        model = {"id": MODEL, "object": "model", "created": 0, "owned_by": MODEL}
        return respond(HTTPStatus.OK, to_json({"object": "list", "data": [model]}))

    async def _stats(self, _: web.Request) -> web.Response:
        return respond(HTTPStatus.OK, to_json(self._counters.snapshot().to_dict()))

    async def _complete(self, http: web.Request) -> web.Response:
        try:
            body = await http.read()
        except ConnectionError:
            # Whoever asked was killed with half the question sent: there is no call to count, and
            # nobody to answer.
            return respond(HTTPStatus.BAD_REQUEST, b"")
        arrived = asyncio.get_running_loop().time()
        self._counters.note()
        try:
            request = parse_request(body)
            self._check_window(request)
        except BadRequestError as error:
            self._counters.ended(Kind.OTHER, Status.BAD_REQUEST, (0, 0), 0.0)
            code = "context_length_exceeded" if "context length" in str(error) else None
            body = error_body(str(error), "invalid_request_error", code)
            return respond(HTTPStatus.BAD_REQUEST, body)
        reply = self._reply(request)
        full = self._in_flight >= self._slots
        if full and self._config.reject_when_full and reply.status is not Status.RATE_LIMITED:
            reply = self._refused(reply, Status.RATE_LIMITED, HTTPStatus.TOO_MANY_REQUESTS)
        if reply.status is Status.RATE_LIMITED or self._config.time_scale == 0:
            # A refusal takes no slot; without waiting, no call holds one for any time.
            started = arrived
            self._counters.note(
                in_flight=self._in_flight + (reply.status is not Status.RATE_LIMITED)
            )
        else:
            started = await self._held(reply.seconds, arrived)
        gone = http.transport is None or http.transport.is_closing()
        status = Status.ABANDONED if gone and reply.status in _BILLED else reply.status
        moments = (arrived, started, asyncio.get_running_loop().time())
        record = (
            self._record(reply, status, moments, request.messages)
            if self._config.log_calls
            else None
        )
        # Counted before it is sent: who has the answer finds it in the counters.
        self._counters.ended(reply.kind, status, reply.tokens, reply.seconds, record)
        return respond(reply.code, reply.body, reply.headers)

    async def _held(self, seconds: float, arrived: float) -> float:
        """Wait for a slot, hold it as long as the answer takes, and return when it was taken."""
        loop, scale = asyncio.get_running_loop(), self._config.time_scale
        if self._in_flight < self._slots:
            self._in_flight += 1
            started = arrived
        else:
            turn = loop.create_future()
            self._queue.append(turn)
            self._counters.note(queued=len(self._queue))
            # Whoever frees a slot hands it over.
            await turn
            started = loop.time()
        self._counters.note(in_flight=self._in_flight, queue_seconds=(started - arrived) / scale)
        try:
            await asyncio.sleep(started + seconds * scale - loop.time())
        finally:
            self._in_flight -= 1
            self._start_waiting()
        return started

    def _start_waiting(self) -> None:
        while self._queue and self._in_flight < self._slots:
            turn = self._queue.popleft()
            if not turn.done():
                self._in_flight += 1
                turn.set_result(None)

    def _check_window(self, request: ChatRequest) -> None:
        window = self._config.context_window
        if window is not None and (used := prompt_tokens(request.messages)) > window:
            raise BadRequestError(
                f"the maximum context length is {window} tokens, the messages have {used}"
            )

    def _attempt(self, request: ChatRequest) -> int:
        # Counted only where something depends on it: a long run would hold a counter per request
        # for nothing.
        if request.temperature == 0 and self._config.failures.total == 0:
            return 0
        attempt = self.attempts[request.content]
        self.attempts[request.content] = attempt + 1
        return attempt

    def _reply(self, request: ChatRequest) -> _Reply:
        config, content = self._config, request.content
        attempt = self._attempt(request)
        occurrence = attempt if request.temperature > 0 else 0
        status = config.failures.draw(config.seed, content, attempt)
        replies = [
            self._model.reply(request, occurrence, choice) for choice in range(request.choices)
        ]
        texts = [_GARBLED if status is Status.MALFORMED else reply.text for reply in replies]
        parts = [cut_text(text, request.max_tokens, status) for text in texts]
        thought = config.thinking if replies[0].kind is Kind.REFLECT else 0
        written = [text_tokens(text) + thought for text, _ in parts]
        tokens = (prompt_tokens(request.messages), sum(written))
        seconds = config.latency.seconds(max(written), config.seed, content, occurrence)
        if status is Status.SLOW:
            seconds += config.failures.slow_seconds
        body = to_json(completion(f"{content}-{attempt}", parts, tokens))
        text = "\n".join(text for text, _ in parts)
        reply = _Reply(replies[0].kind, status, HTTPStatus.OK, body, tokens, seconds, text)
        if status is Status.RATE_LIMITED:
            return self._refused(reply, status, HTTPStatus.TOO_MANY_REQUESTS)
        if status is Status.SERVER_ERROR:
            first = config.latency.seconds(0, config.seed, content, occurrence)
            return replace(
                self._refused(reply, status, HTTPStatus.INTERNAL_SERVER_ERROR), seconds=first
            )
        return reply

    def _refused(self, reply: _Reply, status: Status, code: HTTPStatus) -> _Reply:
        wait = f"{self._config.failures.retry_after * self._config.time_scale:.3f}"
        kind = "rate_limit_error" if code == HTTPStatus.TOO_MANY_REQUESTS else "server_error"
        body, headers = (
            error_body(f"simulated {code.phrase.lower()}", kind),
            (("retry-after", wait),),
        )
        return replace(
            reply, status=status, code=code, body=body, tokens=(0, 0), seconds=0.0, headers=headers
        )

    def _record(
        self,
        reply: _Reply,
        status: Status,
        moments: tuple[float, float, float],
        messages: tuple[Message, ...],
    ) -> CallRecord:
        # Without a scale time has no meaning, and everything happens at once.
        per_second = 1 / self._config.time_scale if self._config.time_scale else 0.0
        arrived, started, ended = (moment * per_second for moment in moments)
        return CallRecord(
            reply.kind,
            status,
            arrived,
            started,
            ended,
            reply.seconds,
            reply.tokens,
            messages,
            reply.text,
        )
