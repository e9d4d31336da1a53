from __future__ import annotations

import asyncio
import copy
import json
import logging
import os
import pickle
import signal
import socket
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import dspy
import pytest
from dspy.utils.exceptions import (
    LMAuthError,
    LMInvalidRequestError,
    LMNotConfiguredError,
    LMProviderError,
    LMRateLimitError,
    LMServerError,
    LMTransportError,
    is_retryable_lm_error,
)

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.lms import PooledEngine, PooledOptions, pooled, probe
from combee_dspy.lms.redact import secrets_of

KEY = "sk-of-nobody-0123456789"
PICTURE = "data:image/png;base64,iVBORw0KGgo="


def lm_of(service, **settings):
    return pooled(
        "openai/m",
        **{"api_base": service.base, "api_key": KEY, "cache": False, "num_retries": 0} | settings,
    )


def in_threads(lm, *args, **kwargs):
    return lm(*args, **kwargs)


def on_a_loop(lm, *args, **kwargs):
    return asyncio.run(lm.acall(*args, **kwargs))


both = pytest.mark.parametrize("ask", [in_threads, on_a_loop])


@both
def test_a_call_is_written_as_openai_writes_it_and_read_as_dspy_reads_it(service, ask):
    lm = lm_of(service, temperature=0.5, headers={"X-Team": "a"})
    blocks = [
        {"type": "text", "text": "what?"},
        {"type": "image_url", "image_url": {"url": PICTURE}},
    ]
    answers = ask(
        lm, messages=[{"role": "system", "content": "be kind"}, {"role": "user", "content": blocks}]
    )
    assert answers == [service.answer["choices"][0]["message"]["content"]]
    path, headers, body = service.requests[0]
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == f"Bearer {KEY}"
    assert headers["X-Team"] == "a"
    assert body["model"] == "m"
    assert body["temperature"] == 0.5
    assert body["messages"] == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": blocks},
    ]
    assert lm.history[-1]["usage"]["total_tokens"] == 10
    assert lm.history[-1]["model"] == "openai/m"


def test_it_serves_a_program_with_pictures_in_both_ways(service):
    class Look(dspy.Signature):
        """Look."""

        picture: dspy.Image = dspy.InputField()
        answer: int = dspy.OutputField()

    look = dspy.Predict(Look)
    with dspy.context(lm=lm_of(service)), dspy.track_usage() as usage:
        assert look(picture=dspy.Image(url=PICTURE)).answer == 42
        assert asyncio.run(look.acall(picture=dspy.Image(url=PICTURE))).answer == 42
    assert all(PICTURE in json.dumps(body) for body in service.bodies)
    assert usage.get_total_tokens()["openai/m"]["prompt_tokens"] == 14


FAILURES = [
    (401, {}, LMAuthError, False),
    (400, {}, LMInvalidRequestError, False),
    (429, {"retry-after": "7"}, LMRateLimitError, True),
    (503, {}, LMServerError, True),
]


@both
@pytest.mark.parametrize(("status", "headers", "kind", "passing"), FAILURES)
def test_statuses_become_dspys_own_errors(service, ask, status, headers, kind, passing):
    service.script = [(status, headers, {"error": {"message": "no", "type": "t"}})]
    with pytest.raises(kind) as caught:
        ask(lm_of(service), "hello")
    assert caught.value.status == status
    assert is_retryable_lm_error(caught.value) is passing
    assert caught.value.retry_after == (7.0 if headers else None)


@both
def test_a_service_that_is_silent_or_gone_may_be_asked_again(service, ask):
    service.barrier = threading.Barrier(2)
    with pytest.raises(LMTransportError, match="timed out") as caught:
        ask(lm_of(service, timeout=0.2), "hello")
    service.barrier.abort()
    assert is_retryable_lm_error(caught.value)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with pytest.raises(LMTransportError):
        ask(
            pooled("m", api_base=f"http://127.0.0.1:{port}/v1", cache=False, num_retries=0), "hello"
        )


@both
def test_a_gateways_page_is_no_answer(service, ask):
    service.script = [(200, {}, b"<html>login</html>")]
    with pytest.raises(LMProviderError):
        ask(lm_of(service), "hello")


@both
@pytest.mark.parametrize(("status", "kind"), [(429, LMRateLimitError), (503, LMServerError)])
def test_a_service_cannot_make_a_run_wait_for_days(service, ask, status, kind):
    service.script = [(status, {"retry-after": "864000"}, {})]
    with pytest.raises(kind) as caught:
        ask(lm_of(service), "hello")
    assert caught.value.retry_after == 120.0


@both
def test_the_key_is_in_no_repr_dump_pickle_history_log_or_error(service, ask, caplog):
    caplog.set_level(logging.DEBUG)
    lm = lm_of(service, headers={"X-Pass": "open-sesame-77"})
    ask(lm, "hello")
    service.script = [(400, {}, {"error": {"message": f"bad key {KEY} and open-sesame-77"}})]
    with pytest.raises(LMInvalidRequestError) as caught:
        ask(lm, "hello")
    program = dspy.Predict("a -> b")
    program.lm = lm
    texts = [
        repr(lm),
        repr(lm.engine),
        str(lm.kwargs),
        json.dumps(lm.dump_state()),
        repr(lm.history),
        caplog.text,
    ]
    texts += [
        str(caught.value),
        repr(caught.value),
        str(program.dump_state()),
        repr(pickle.dumps(lm)),
    ]
    texts += ["".join(traceback.format_exception(caught.value)), str(vars(caught.value))]
    for text in texts:
        assert KEY not in text
        assert "open-sesame-77" not in text
    assert {KEY, "open-sesame-77"} <= set(secrets_of(lm))


def test_what_is_loaded_again_takes_its_key_from_the_environment(service, monkeypatch):
    lm = lm_of(service, temperature=0.25, max_connections=7)
    loaded = dspy.BaseLM.load_state(lm.dump_state(), allow_custom_lm_class=True)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-environment")
    for other in (loaded, pickle.loads(pickle.dumps(lm))):  # noqa: S301 - our own bytes
        assert other("hello") == lm("hello")
        assert other.engine.options == lm.engine.options
        assert other.kwargs["temperature"] == 0.25
    keys = [headers["Authorization"] for _, headers, _ in service.requests]
    assert keys == ["Bearer sk-of-the-environment", f"Bearer {KEY}"] * 2


def test_a_service_of_ones_own_needs_no_key_and_openai_does(service, monkeypatch):
    assert lm_of(service, api_key=None)("hello")
    with pytest.raises(LMNotConfiguredError, match="OPENAI_API_KEY"):
        pooled("m", cache=False)("hello")
    monkeypatch.setenv("OPENAI_BASE_URL", service.base + "/")
    assert pooled("m", cache=False)("hello")


@both
def test_copies_share_connections_and_nothing_else(service, ask):
    lm = lm_of(service, temperature=0.0)
    copies = [lm.copy(rollout_id=3, temperature=1.0), copy.deepcopy(lm), copy.copy(lm)]
    assert all(copied.engine is lm.engine for copied in copies)
    ask(copies[0], "hello")
    assert (lm.history, len(copies[0].history)) == ([], 1)
    assert service.bodies[0]["temperature"] == 1.0
    assert "rollout_id" not in service.bodies[0]
    assert lm.kwargs["temperature"] == 0.0


def test_a_connection_is_kept_and_replaced_when_the_service_has_closed_it(service):
    lm = lm_of(service)
    for _ in range(3):
        lm("hello")
    assert service.connections == 1
    service.hang_up = True
    lm = lm_of(service, num_retries=1)
    for _ in range(3):
        assert lm("hello")
    lm.engine.close()
    assert lm("hello")


@both
def test_an_answer_that_is_cut_short_is_the_services_fault_and_harms_no_later_call(service, ask):
    lm = lm_of(service)
    assert ask(lm, "hello")
    service.hang_up = True
    service.script = [(200, {"content-length": "5000"}, {})]
    with pytest.raises(LMTransportError) as caught:
        ask(lm, "hello")
    assert is_retryable_lm_error(caught.value)
    service.hang_up = False
    assert ask(lm, "hello")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_shares_neither_connections_nor_waits(service):
    lm = lm_of(service, max_connections=1)
    lm("kept")
    service.barrier = threading.Barrier(2)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(lm, "in flight")
        while service.now == 0:
            time.sleep(0.001)
        child = os.fork()
        if child == 0:
            # Ends it, where the one place of the other process is waited for.
            signal.alarm(20)
            os._exit(0 if lm("of the child") else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert waits.result(20)
    service.barrier = None
    assert lm("kept still")
    assert service.connections == 2


def test_a_loops_connections_are_kept_and_end_with_it(service):
    lm = lm_of(service)

    async def three():
        return [await lm.acall("hello") for _ in range(3)]

    asyncio.run(three())
    assert service.connections == 1
    asyncio.run(three())
    assert service.connections == 2

    async def closed_by_hand():
        await lm.acall("hello")
        await lm._async_engine_spec.aclose()
        return await lm.acall("hello")

    assert asyncio.run(closed_by_hand())
    assert service.connections == 4


def test_no_more_connections_than_allowed_are_in_use(service):
    lm = lm_of(service, max_connections=2)
    service.barrier = threading.Barrier(2)
    with ThreadPoolExecutor(6) as pool:
        assert len(list(pool.map(lambda _: lm("hello"), range(6)))) == 6

    async def six():
        return await asyncio.gather(*(lm.acall("hello") for _ in range(6)))

    assert len(asyncio.run(six())) == 6
    assert service.most == 2


def test_the_probe_asks_it(service):
    probe({"task": lm_of(service)})
    assert len(service.requests) == 1


def test_it_has_the_abilities_that_dspy_knows_of_the_model(service):
    listed, unknown = (
        pooled(name, api_base=service.base) for name in ("openai/gpt-4o", "openai/nobodys")
    )
    plain = dspy.LM("openai/gpt-4o", api_key="x")
    for name in (
        "supports_function_calling",
        "supports_reasoning",
        "supports_response_schema",
        "supported_params",
    ):
        assert getattr(listed, name) == getattr(plain, name), name
    assert not unknown.supports_response_schema
    assert not PooledEngine().supports_function_calling


def test_a_stream_comes_event_by_event(service):
    service.script = [
        (200, {"content-type": "text/event-stream"}, b'data: {"error":{"message":"busy"}}\n\n')
    ]
    engine = lm_of(service).engine
    request = dspy.lm15.Request(model="m", messages=(dspy.lm15.Message.user("hello"),))
    assert [event.type for event in engine.stream(request)][-1] == "error"
    assert service.bodies[0]["stream"] is True


@both
def test_a_proxy_of_the_environment_is_asked_for_the_whole_address(service, monkeypatch, ask):
    monkeypatch.setenv("http_proxy", service.base.removesuffix("/v1"))
    monkeypatch.setenv("no_proxy", "")
    ask(pooled("m", api_base="http://nowhere.invalid/v1", cache=False, num_retries=0), "hello")
    path, headers, _ = service.requests[-1]
    assert path == "http://nowhere.invalid/v1/chat/completions"
    assert headers["Host"] == "nowhere.invalid"


@pytest.mark.parametrize(
    ("settings", "kind", "argument"),
    [
        ({"api_base": "localhost:8000"}, ArgumentValueError, "api_base"),
        ({"api_base": "http://me:open-sesame@localhost/v1"}, ArgumentValueError, "api_base"),
        ({"api_base": 8000}, ArgumentTypeError, "PooledOptions.api_base"),
        ({"max_connections": 0}, ArgumentValueError, "PooledOptions.max_connections"),
        ({"max_connections": True}, ArgumentTypeError, "PooledOptions.max_connections"),
        ({"timeout": 0.0}, ArgumentValueError, "PooledOptions.timeout"),
        ({"timeout": float("inf")}, ArgumentValueError, "PooledOptions.timeout"),
        ({"timeout": "1"}, ArgumentTypeError, "PooledOptions.timeout"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, kind, argument):
    with pytest.raises(kind) as caught:
        pooled("m", **settings)
    assert caught.value.argument == argument
    assert "sesame" not in str(caught.value)
    assert PooledOptions().max_connections == 512
