"""The simulated service over HTTP: endpoints, usage, slots, failures and counters."""

from __future__ import annotations

import heapq
import http.client
import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import AdapterParseError
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.exceptions import ArgumentValueError, ServiceError
from combee_dspy.lms.simulated import (
    CapacityModel,
    FailureRates,
    LatencyLaw,
    SimulatedConfig,
    SimulatedQuestion,
    SimulatedService,
    SimulatedTask,
)
from combee_dspy.lms.simulated.__main__ import main
from combee_dspy.lms.simulated.answering import SimulatedModel
from combee_dspy.lms.simulated.dispatch import Dispatcher
from combee_dspy.lms.simulated.requests import parse_request
from combee_dspy.lms.simulated.stats import Recorder

TASK = SimulatedTask(
    tuple(
        SimulatedQuestion(
            f"Who guards gate number {number} at night?", f"guard {number}", "nobody", "G1", "name a guard"
        )
        for number in range(50)
    ),
    base_rate=0.5,
)
AT_ONCE = SimulatedConfig(time_scale=0.0)


@pytest.fixture(autouse=True)
def _no_price_table_download(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")


@pytest.fixture
def service() -> Iterator[SimulatedService]:
    with SimulatedService(AT_ONCE, TASK) as running:
        yield running


SCHEMA_WORDS = st.sampled_from(
    ["type", "items", "properties", "enum", "const", "anyOf", "$ref", "$defs", "array", "object", "x"]
)


def port_of(service: SimulatedService) -> int:
    return int(service.url.rpartition(":")[2])


def ask(service: SimulatedService, body: object, path: str = "/v1/chat/completions") -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(service), timeout=10)
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", path, raw, {"Content-Type": "application/json"})
    response = connection.getresponse()
    result = response.status, json.loads(response.read())
    connection.close()
    return result


def chat(text: str, **more: object) -> dict[str, object]:
    return {"model": "simulated", "messages": [{"role": "user", "content": text}], **more}


def test_models_and_stats_are_served_and_labelled(service: SimulatedService) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(service), timeout=10)
    connection.request("GET", "/v1/models")
    models = json.loads(connection.getresponse().read())
    connection.request("GET", "/stats?now=1")
    stats = json.loads(connection.getresponse().read())
    connection.request("GET", "/elsewhere")
    missing = connection.getresponse()
    missing.read()
    connection.close()
    assert [model["id"] for model in models["data"]] == ["simulated"]
    assert stats == service.stats().to_dict()
    assert stats["simulated"] is True
    assert missing.status == 404


def test_usage_follows_the_documented_counting(service: SimulatedService) -> None:
    _, reply = ask(service, chat("Who guards gate number 3 at night?"))
    text = reply["choices"][0]["message"]["content"]
    # 34 characters are 9 tokens, a message adds 4, the reply's opening 3.
    assert reply["usage"]["prompt_tokens"] == 16
    assert reply["usage"]["completion_tokens"] == -(-len(text) // 4)
    parts = [{"type": "text", "text": "abcde"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    _, reply = ask(service, {"messages": [{"role": "user", "content": parts}]})
    assert reply["usage"]["prompt_tokens"] == 3 + 4 + 2 + 85
    assert reply["model"] == "simulated"


def test_a_limit_on_the_answer_is_kept(service: SimulatedService) -> None:
    _, reply = ask(service, chat("hello", max_tokens=2, n=3))
    assert [choice["finish_reason"] for choice in reply["choices"]] == ["length"] * 3
    assert reply["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        {},
        {"messages": []},
        {"messages": ["x"]},
        {"messages": [{"role": 1}]},
        {"messages": [{"role": "user", "content": 5}]},
        chat("x", stream=True),
        chat("x", n=0.5),
        chat("x", max_tokens="many"),
        chat("x", temperature="hot"),
        chat("x", response_format="json"),
    ],
)
def test_a_bad_request_is_answered_400_counted_and_not_billed(service: SimulatedService, body: object) -> None:
    status, reply = ask(service, body)
    assert status == 400
    assert reply["error"]["type"] == "invalid_request_error"
    stats = service.stats()
    assert (stats.calls, stats.by_status["bad_request"].calls, stats.prompt_tokens) == (1, 1, 0)


def test_a_prompt_beyond_the_window_is_refused() -> None:
    with SimulatedService(SimulatedConfig(time_scale=0.0, context_window=20)) as service:
        assert ask(service, chat("x" * 52))[0] == 200
        status, reply = ask(service, chat("x" * 53))
    assert (status, reply["error"]["code"]) == (400, "context_length_exceeded")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SCHEMA_WORDS, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(SCHEMA_WORDS, JSON, max_size=4), st.booleans())
def test_any_schema_is_answered(schema: dict[str, Any], lessons: bool) -> None:
    name = "lessons" if lessons else "answer"
    wrapped = {"type": "json_schema", "json_schema": {"schema": {"properties": {name: schema}, "$defs": schema}}}
    body = json.dumps(chat("Who guards gate number 3 at night?", response_format=wrapped)).encode()
    reply = SimulatedModel(TASK, CapacityModel(), 0).reply(parse_request(body))
    assert set(json.loads(reply.text)) == {name}


def exchange_raw(service: SimulatedService, *pieces: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", port_of(service)), timeout=10) as connection:
        for piece in pieces:
            connection.sendall(piece)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while block := connection.recv(65536):
            received += block
    return received


def raw_request(text: str, connection: str = "keep-alive") -> bytes:
    body = json.dumps(chat(text)).encode()
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "Host: x",
        f"Connection: {connection}",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


def test_requests_sent_ahead_and_in_pieces_are_answered_in_order(service: SimulatedService) -> None:
    stream = b"".join(raw_request(f"Who guards gate number {number} at night?") for number in range(600))
    stream += raw_request("Who guards gate number 601 at night?", "close")
    received = exchange_raw(service, stream[:10], stream[10:500], stream[500:])
    assert received.count(b"HTTP/1.1 200 OK") == 601
    asked = [ask(service, chat(f"Who guards gate number {number} at night?"))[1] for number in (0, 1, 599, 601)]
    places = [received.find(reply["id"].encode()) for reply in asked]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"411"),
        (b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b"413"),
        (b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000, b"431"),
    ],
)
def test_bad_http_is_refused_and_the_connection_closed(service: SimulatedService, head: bytes, status: bytes) -> None:
    assert exchange_raw(service, head).split(b" ", 2)[1] == status


def test_the_counters_agree_with_what_many_clients_received(service: SimulatedService) -> None:
    lm = service.lm()
    predict = dspy.Predict("question -> answer")

    def one(number: int) -> None:
        with dspy.context(lm=lm):
            predict(question=f"Who guards gate number {number % 50} at night?")

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(one, range(200)))
    stats = service.stats()
    usages = [entry["usage"] for entry in lm.history]
    assert (len(usages), stats.calls, stats.by_kind["task"].calls, stats.by_status["ok"].calls) == (200,) * 4
    assert stats.prompt_tokens == sum(usage["prompt_tokens"] for usage in usages)
    assert stats.completion_tokens == sum(usage["completion_tokens"] for usage in usages)
    service.reset_stats()
    assert (service.stats().calls, service.stats().completion_tokens) == (0, 0)


def test_an_async_client_is_served(service: SimulatedService) -> None:
    import asyncio

    async def run() -> list[str]:
        with dspy.context(lm=service.lm()):
            predict = dspy.Predict("question -> answer")
            calls = [predict.acall(question=f"Who guards gate number {number} at night?") for number in range(20)]
            return [prediction.answer for prediction in await asyncio.gather(*calls)]

    answers = asyncio.run(run())
    assert {"nobody"} < set(answers) <= {"nobody", *(f"guard {number}" for number in range(20))}


def failing(**rates: float) -> SimulatedService:
    return SimulatedService(SimulatedConfig(time_scale=0.0, failures=FailureRates(**rates)), TASK)


def test_retries_get_through_errors_and_each_attempt_is_counted() -> None:
    with failing(server_error=0.3, rate_limited=0.3) as service, dspy.context(lm=service.lm(num_retries=40)):
        for number in range(20):
            dspy.Predict("question -> answer")(question=f"Who guards gate number {number} at night?")
    tallies = service.stats().by_status
    assert tallies["ok"].calls == 20
    assert tallies["server_error"].calls > 0
    assert tallies["rate_limited"].calls > 0
    assert tallies["server_error"].prompt_tokens == tallies["rate_limited"].prompt_tokens == 0


def test_the_same_attempts_fail_again_once_they_are_forgotten() -> None:
    with failing(server_error=0.5) as service:
        first = [ask(service, chat("hello"))[0] for _ in range(30)]
        service.forget_attempts()
        again = [ask(service, chat("hello"))[0] for _ in range(30)]
    assert first == again
    assert set(first) == {200, 500}


def test_a_malformed_answer_does_not_parse_with_either_adapter() -> None:
    with failing(malformed=1.0) as service, dspy.context(lm=service.lm()):
        with pytest.raises(AdapterParseError):
            dspy.Predict("question -> answer")(question="Who guards gate number 1 at night?")
        assert service.stats().by_status["malformed"].calls == 2


def test_a_truncated_answer_says_so() -> None:
    with failing(truncated=1.0) as service:
        _, reply = ask(service, chat("hello"))
    assert reply["choices"][0]["finish_reason"] == "length"
    assert "This is a simulated reply.".startswith(reply["choices"][0]["message"]["content"])


class FakeLoop:
    """A clock and timers that move only when told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self._numbers = itertools.count()
        self._timers: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._timers, (when, next(self._numbers), callback, args))

    def run(self, until: float = float("inf")) -> None:
        while self._timers and self._timers[0][0] <= until:
            self.now, _, callback, args = heapq.heappop(self._timers)
            callback(*args)


class Slip:
    """An exchange that remembers when it was answered."""

    def __init__(self, loop: FakeLoop, gone: bool = False) -> None:
        self._loop = loop
        self.gone = gone
        self.answered: list[tuple[float, int, tuple[tuple[str, str], ...]]] = []

    def respond(self, status: int, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self.answered.append((self._loop.now, int(status), headers))


def bench(config: SimulatedConfig) -> tuple[FakeLoop, Dispatcher, Recorder]:
    loop = FakeLoop()
    recorder = Recorder(config.slots, config.time_scale, loop.time)
    model = SimulatedModel(TASK, CapacityModel(), config.seed)
    return loop, Dispatcher(config, model, recorder, loop), recorder  # type: ignore[arg-type]


def post(dispatcher: Dispatcher, slip: Slip, text: str = "hello") -> None:
    dispatcher.handle("POST", "/v1/chat/completions", json.dumps(chat(text)).encode(), slip)


# "This is a simulated reply." is 7 tokens: 1 + 7 / 7 = 2 simulated seconds, 0.2 s of wall-clock.
STEADY = SimulatedConfig(latency=LatencyLaw(ttft=1, tokens_per_second=7, sigma=0), slots=2, time_scale=0.1)


def test_calls_beyond_the_slots_wait_in_order_of_arrival() -> None:
    loop, dispatcher, recorder = bench(STEADY)
    slips = [Slip(loop) for _ in range(5)]
    for slip in slips:
        post(dispatcher, slip)
    loop.run()
    assert [slip.answered[0][0] for slip in slips] == pytest.approx([0.2, 0.2, 0.4, 0.4, 0.6])
    stats = recorder.snapshot()
    assert (stats.peak_in_flight, stats.peak_queued) == (2, 3)
    assert stats.queue_seconds == pytest.approx(2 + 2 + 4)
    assert stats.slot_busy_seconds == pytest.approx(10)
    assert stats.clock_seconds == pytest.approx(6)


def test_a_full_service_can_refuse_instead() -> None:
    config = SimulatedConfig(latency=STEADY.latency, slots=2, time_scale=0.1, reject_when_full=True)
    loop, dispatcher, recorder = bench(config)
    slips = [Slip(loop) for _ in range(3)]
    for slip in slips:
        post(dispatcher, slip)
    assert slips[2].answered == [(0.0, 429, (("retry-after", "0.100"),))]
    loop.run()
    assert [slip.answered[0][1] for slip in slips] == [200, 200, 429]
    assert recorder.snapshot().by_status["rate_limited"].calls == 1
    assert recorder.snapshot().slot_busy_seconds == pytest.approx(4)


def test_a_slow_answer_is_late_and_an_abandoned_one_is_billed_apart() -> None:
    config = SimulatedConfig(
        latency=STEADY.latency, time_scale=0.1, failures=FailureRates(slow=1.0, slow_seconds=30), slots=2
    )
    loop, dispatcher, recorder = bench(config)
    patient, gone = Slip(loop), Slip(loop, gone=True)
    post(dispatcher, patient)
    post(dispatcher, gone)
    loop.run()
    assert patient.answered[0][0] == pytest.approx(3.2)
    tallies = recorder.snapshot().by_status
    assert (tallies["slow"].calls, tallies["abandoned"].calls) == (1, 1)
    assert tallies["abandoned"].completion_tokens == 7


def test_an_error_takes_the_time_to_the_first_token_and_says_when_to_retry() -> None:
    config = SimulatedConfig(latency=STEADY.latency, time_scale=0.1, failures=FailureRates(server_error=1.0))
    loop, dispatcher, _ = bench(config)
    slip = Slip(loop)
    post(dispatcher, slip)
    loop.run()
    assert slip.answered == [(pytest.approx(0.1), 500, (("retry-after", "0.100"),))]


def test_a_repeated_request_takes_as_long_again_at_temperature_0_and_not_above() -> None:
    # A failure rate that never strikes makes the service count attempts.
    loop, dispatcher, recorder = bench(SimulatedConfig(failures=FailureRates(malformed=1e-15)))
    seconds: dict[float, list[float]] = {0.0: [], 1.0: []}
    for temperature, taken in seconds.items():
        for _ in range(3):
            recorder.reset()
            body = json.dumps(chat("hello", temperature=temperature)).encode()
            dispatcher.handle("POST", "/v1/chat/completions", body, Slip(loop))
            loop.run()
            taken.append(recorder.snapshot().slot_busy_seconds)
    assert (len(set(seconds[0.0])), len(set(seconds[1.0]))) == (1, 3)


@pytest.mark.parametrize(("said", "same"), [(None, True), (0, True), (0.0, True), (0.5, False)])
def test_a_request_without_a_temperature_is_the_same_as_one_at_0(said: float | None, same: bool) -> None:
    silent = parse_request(json.dumps(chat("hello")).encode())
    asked = parse_request(json.dumps(chat("hello", temperature=said)).encode())
    assert (asked.content == silent.content) is same


def test_a_call_in_flight_at_a_reset_is_counted_when_it_ends() -> None:
    loop, dispatcher, recorder = bench(STEADY)
    post(dispatcher, Slip(loop))
    recorder.reset()
    assert recorder.snapshot().calls == 0
    loop.run()
    assert recorder.snapshot().calls == 1


def test_a_wall_clock_service_answers_and_holds_its_slots() -> None:
    config = SimulatedConfig(latency=LatencyLaw(ttft=1, sigma=0), slots=2, time_scale=0.01)
    with SimulatedService(config, TASK) as service, ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(lambda number: ask(service, chat(f"hello {number}")), range(12)))
        stats = service.stats()
    assert [status for status, _ in replies] == [200] * 12
    assert stats.peak_in_flight <= 2
    assert stats.slot_busy_seconds == pytest.approx(12 * (1 + 7 / 60))
    assert stats.clock_seconds is not None
    # Two slots cannot be busy for longer than twice the time that has passed.
    assert stats.slot_busy_seconds <= 2 * stats.clock_seconds + 1e-6


def test_start_and_stop_can_be_repeated_and_leave_no_thread() -> None:
    before = set(threading.enumerate())
    service = SimulatedService(AT_ONCE, TASK)
    with pytest.raises(ServiceError):
        _ = service.url
    for _ in range(2):
        assert service.start() is service.start()
        assert ask(service, chat("hello"))[0] == 200
        service.stop()
        service.stop()
    assert set(threading.enumerate()) == before
    with pytest.raises(ServiceError):
        service.lm()


def test_a_taken_port_is_named(service: SimulatedService, capsys: pytest.CaptureFixture[str]) -> None:
    port = port_of(service)
    with pytest.raises(ServiceError, match=str(port)):
        SimulatedService(SimulatedConfig(port=port)).start()
    assert main(["--port", str(port)]) == 1
    assert str(port) in capsys.readouterr().err


def test_the_service_listens_on_the_loopback_interface_alone(service: SimulatedService) -> None:
    assert service.api_base == f"http://127.0.0.1:{port_of(service)}/v1"
    for family, address in ((socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.2")):
        with pytest.raises(OSError), socket.socket(family) as probe:
            probe.settimeout(2)
            probe.connect((address, port_of(service)))


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        ({"text": "two words"}, "text"),
        ({"key": "1"}, "key"),
        ({"key": "a b"}, "key"),
        ({"wrong": "1.0"}, "wrong"),
        ({"lesson": " "}, "lesson"),
        ({"lesson": "a\nb"}, "lesson"),
    ],
)
def test_a_question_that_cannot_work_is_refused(change: dict[str, str], argument: str) -> None:
    good = {"text": "What is 2 - 1?", "target": "1", "wrong": "2", "key": "F1", "lesson": "subtract"}
    with pytest.raises(ArgumentValueError) as caught:
        SimulatedQuestion(**{**good, **change})
    assert caught.value.argument == argument


def test_a_task_without_questions_is_refused() -> None:
    with pytest.raises(ArgumentValueError, match="questions"):
        SimulatedTask(())
    with pytest.raises(ArgumentValueError, match="base_rate"):
        SimulatedTask(TASK.questions, base_rate=-0.1)
    with pytest.raises(TypeError, match="answer_fields"):
        SimulatedTask(TASK.questions, answer_fields="answer")  # type: ignore[arg-type]
