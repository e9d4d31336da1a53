"""The simulated service over HTTP: endpoints, usage, slots, failures and counters."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import AdapterParseError

from combee_dspy.exceptions import ArgumentError, ServiceError
from combee_simulator import (
    FailureRates,
    LatencyLaw,
    SimulatedConfig,
    SimulatedQuestion,
    SimulatedService,
    SimulatedTask,
)

TASK = SimulatedTask(
    tuple(
        SimulatedQuestion(
            f"Who guards gate number {number} at night?",
            f"guard {number}",
            "nobody",
            "G1",
            "name a guard",
        )
        for number in range(50)
    ),
    base_rate=0.5,
)


@pytest.fixture
def service() -> Iterator[SimulatedService]:
    with SimulatedService(SimulatedConfig(time_scale=0.0), TASK) as running:
        yield running


def port_of(service: SimulatedService) -> int:
    return int(service.url.rpartition(":")[2])


def ask(service: SimulatedService, body: object) -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection("127.0.0.1", port_of(service), timeout=10)
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.request("POST", "/v1/chat/completions", raw, {"Content-Type": "application/json"})
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
    parts = [
        {"type": "text", "text": "abcde"},
        {"type": "image_url", "image_url": {"url": "data:,"}},
    ]
    _, reply = ask(service, {"messages": [{"role": "user", "content": parts}]})
    assert reply["usage"]["prompt_tokens"] == 3 + 4 + 2 + 85


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
def test_a_bad_request_is_answered_400_counted_and_not_billed(
    service: SimulatedService, body: object
) -> None:
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
    assert (len(usages), stats.calls, stats.by_kind["task"].calls, stats.by_status["ok"].calls) == (
        200,
    ) * 4
    assert stats.prompt_tokens == sum(usage["prompt_tokens"] for usage in usages)
    assert stats.completion_tokens == sum(usage["completion_tokens"] for usage in usages)
    service.reset_stats()
    assert (service.stats().calls, service.stats().completion_tokens) == (0, 0)


def test_an_async_client_is_served(service: SimulatedService) -> None:
    async def run() -> list[str]:
        with dspy.context(lm=service.lm()):
            predict = dspy.Predict("question -> answer")
            calls = [
                predict.acall(question=f"Who guards gate number {number} at night?")
                for number in range(20)
            ]
            return [prediction.answer for prediction in await asyncio.gather(*calls)]

    answers = asyncio.run(run())
    assert {"nobody"} < set(answers) <= {"nobody", *(f"guard {number}" for number in range(20))}


def failing(**rates: float) -> SimulatedService:
    return SimulatedService(SimulatedConfig(time_scale=0.0, failures=FailureRates(**rates)), TASK)


def test_retries_get_through_errors_and_each_attempt_is_counted() -> None:
    with (
        failing(server_error=0.3, rate_limited=0.3) as service,
        dspy.context(lm=service.lm(num_retries=40)),
    ):
        for number in range(20):
            dspy.Predict("question -> answer")(
                question=f"Who guards gate number {number} at night?"
            )
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


# "This is a simulated reply." is 7 tokens: 1 + 7 / 7 = 2 simulated seconds, 0.02 s of wall-clock.
STEADY = {"latency": LatencyLaw(1, 7, 0), "slots": 2, "time_scale": 0.01}


def ask_at_once(service: SimulatedService, times: int) -> list[int]:
    with ThreadPoolExecutor(times) as pool:
        return [
            status
            for status, _ in pool.map(
                lambda number: ask(service, chat(f"hello {number}")), range(times)
            )
        ]


def test_calls_beyond_the_slots_wait_for_their_turn() -> None:
    with SimulatedService(SimulatedConfig(**STEADY, log_calls=True)) as service:
        assert ask_at_once(service, 5) == [200] * 5
        stats, calls = service.stats(), service.calls()
    assert (stats.peak_in_flight, stats.slot_busy_seconds) == (2, pytest.approx(10))
    assert stats.peak_queued >= 1
    assert stats.queue_seconds > 0
    # Two slots and five calls of two seconds: three turns.
    assert stats.clock_seconds is not None
    assert stats.clock_seconds >= 6 - 1e-6
    by_arrival = sorted(calls, key=lambda call: call.arrived)
    assert [call.started for call in by_arrival] == sorted(call.started for call in calls)
    assert all(call.messages[0].text.startswith("hello") and call.text for call in calls)


def test_a_full_service_can_refuse_instead() -> None:
    config = SimulatedConfig(
        latency=LatencyLaw(30, 7, 0), slots=1, time_scale=0.01, reject_when_full=True
    )
    with SimulatedService(config) as service:
        codes = ask_at_once(service, 4)
        assert sorted(codes)[:1] == [200]
        assert service.stats().by_status["rate_limited"].calls == codes.count(429) >= 1


def test_a_slot_more_starts_what_waits() -> None:
    with SimulatedService(
        SimulatedConfig(latency=LatencyLaw(3, 7, 0), slots=1, time_scale=0.01)
    ) as service:
        service.resize(4)
        ask_at_once(service, 4)
        assert service.stats().peak_in_flight > 1
        with pytest.raises(ArgumentError, match="slots"):
            service.resize(0)


def test_an_answer_nobody_waits_for_is_counted_apart() -> None:
    config = SimulatedConfig(**STEADY, failures=FailureRates(slow=1.0, slow_seconds=20))
    with SimulatedService(config) as service:
        body = json.dumps(chat("hello")).encode()
        with socket.create_connection(("127.0.0.1", port_of(service))) as connection:
            head = (
                "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length:"
                f" {len(body)}\r\n\r\n"
            )
            connection.sendall(head.encode() + body)
        assert ask(service, chat("patience"))[0] == 200
        tallies = service.stats().by_status
    assert (tallies["slow"].calls, tallies["abandoned"].calls) == (1, 1)
    assert tallies["abandoned"].completion_tokens == 7


def test_a_client_that_is_killed_while_it_asks_leaves_no_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n"
    with SimulatedService(SimulatedConfig(time_scale=0.0), TASK) as service:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", port_of(service)), timeout=10) as client:
                client.sendall(head + b'{"messages": ')
                time.sleep(0.05)  # until it is being read
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert ask(service, chat("x"))[0] == 200
    assert not caplog.records
    assert service.stats().total.calls == 1


def test_an_error_says_when_to_retry_and_takes_the_time_to_the_first_token() -> None:
    config = SimulatedConfig(**STEADY, failures=FailureRates(server_error=1.0, retry_after=3))
    with SimulatedService(config) as service:
        connection = http.client.HTTPConnection("127.0.0.1", port_of(service), timeout=10)
        connection.request("POST", "/v1/chat/completions", json.dumps(chat("hello")))
        response = connection.getresponse()
        connection.close()
        assert (response.status, response.headers["retry-after"]) == (500, "0.030")
        assert service.stats().slot_busy_seconds == pytest.approx(1)


def test_stopping_ends_the_thread_whatever_waits_and_starting_again_works() -> None:
    before = set(threading.enumerate())
    service = SimulatedService(SimulatedConfig(latency=LatencyLaw(1e6, 7, 0), slots=1))
    for _ in range(2):
        service.start()
        for _ in range(2):
            connection = http.client.HTTPConnection("127.0.0.1", port_of(service), timeout=10)
            connection.request("POST", "/v1/chat/completions", json.dumps(chat("hello")))
        service.stop()
        connection.close()
    assert set(threading.enumerate()) <= before
    with pytest.raises(ServiceError):
        service.lm()


def test_a_taken_port_is_named(service: SimulatedService) -> None:
    with pytest.raises(ServiceError, match=str(port_of(service))):
        SimulatedService(SimulatedConfig(port=port_of(service))).start()


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
    good = {
        "text": "What is 2 - 1?",
        "target": "1",
        "wrong": "2",
        "key": "F1",
        "lesson": "subtract",
    }
    with pytest.raises(ArgumentError) as caught:
        SimulatedQuestion(**{**good, **change})
    assert caught.value.argument.rpartition(".")[2] == argument


def test_a_task_without_questions_is_refused() -> None:
    with pytest.raises(ArgumentError, match="questions"):
        SimulatedTask(())
    with pytest.raises(ArgumentError, match="base_rate"):
        SimulatedTask(TASK.questions, base_rate=-0.1)
    with pytest.raises(ArgumentError, match="taught_rate"):
        SimulatedTask(TASK.questions, base_rate=0.5, taught_rate=0.4)
    with pytest.raises(TypeError, match="answer_fields"):
        SimulatedTask(TASK.questions, answer_fields="answer")  # type: ignore[arg-type]
