"""A reply that is no answer of the API is the service's failure; none takes longer than its
deadline, and no text takes minutes to read.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dspy
import pytest
from dspy._vendor.lm15.transports._async import _AsyncConnectionPool
from dspy._vendor.lm15.transports._sync import _ConnectionPool
from dspy.clients.cache import Cache
from dspy.utils.exceptions import AdapterParseError, LMProviderError, LMTimeoutError

from combee_dspy.costs import Tariff, metered
from combee_dspy.lms import _deadlines, pooled
from combee_dspy.rollouts import (
    InfrastructureFaultError,
    RolloutJob,
    _patient,
    _replies,
    patient,
    run_rollout,
)
from tests.lms.conftest import Service, answer

NO_ANSWERS: dict[str, Any] = {
    "empty object": {},
    "no choices": {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}},
    "null choices": {"choices": None},
    "text for a choice": {"choices": ["42"]},
    "no message": {"choices": [{"index": 0, "message": None, "finish_reason": "stop"}]},
    "a number for content": {"choices": [{"message": {"content": 42}}]},
    "an error of another kind": {"error": "overloaded"},
    "a list": [1],
    "null": b"null",
    "nested": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "infinite usage": b'{"choices": [{"message": {}}], "usage": {"prompt_tokens": 1e999}}',
    "bad encoding": b'{"choices": [{"message": {"content": "\xff"}}]}',
    "half": b'{"choices": [{"mess',
    "HTML": b"<html><body>502 Bad Gateway</body></html>",
}
Ask = Callable[[Any, str], Any]


def ask_on_loop(lm: Any, prompt: str) -> Any:
    return asyncio.run(lm.acall(prompt))


def pooled_lm(service: Service, **kwargs: Any) -> dspy.LM:
    settings = {"cache": False, "num_retries": 0, **kwargs}
    return pooled("m", api_base=service.base, api_key="k", **settings)


def plain_lm(service: Service, **kwargs: Any) -> dspy.LM:
    settings = {"cache": False, "num_retries": 0, **kwargs}
    return dspy.LM("openai/m", api_base=service.base, api_key="k", **settings)


in_threads_and_on_loops = pytest.mark.parametrize("ask", [lambda lm, text: lm(text), ask_on_loop])
with_both_clients = pytest.mark.parametrize("make", [pooled_lm, plain_lm])


@pytest.fixture(autouse=True)
def no_pauses_and_an_empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_patient, "pause_after", lambda retry_after, count: 0.0)
    monkeypatch.setattr(dspy, "cache", Cache(False, True, str(tmp_path)))


@in_threads_and_on_loops
@with_both_clients
@pytest.mark.parametrize("body", NO_ANSWERS)
def test_a_reply_that_is_no_answer_is_repeated_and_cached_nowhere(
    service: Service, make: Callable[..., dspy.LM], ask: Ask, body: str
) -> None:
    service.script.append((200, {}, NO_ANSWERS[body]))
    lm = patient(make(service, cache=True, num_retries=1))
    with metered(Tariff()) as meter:
        assert ask(lm, body) == [service.answer["choices"][0]["message"]["content"]]
    (row,) = meter.usage()
    assert (row.calls, row.errors) == (2, 1)
    assert row.prompt_tokens == 7 * (2 if body == "no choices" else 1), "its usage is booked"
    assert ask(lm, body) == [service.answer["choices"][0]["message"]["content"]]
    assert len(service.requests) == 2, "DSPy's cache has the answer, and nothing else"


def test_it_is_waited_for_as_for_an_outage_and_never_scored(service: Service) -> None:
    service.script.append((200, {}, {}))
    example = dspy.Example(question="q").with_inputs("question")
    job = RolloutJob(dspy.Predict("question -> answer"), example, "id", lambda *_: 1.0)
    lm = patient(pooled_lm(service))
    with dspy.context(lm=lm), pytest.raises(InfrastructureFaultError) as caught:
        run_rollout(job)
    assert (caught.value.retryable, caught.value.outage, caught.value.rollout) == (True, True, None)


@in_threads_and_on_loops
@with_both_clients
@pytest.mark.parametrize(
    "message",
    [{"content": ""}, {"content": None, "refusal": "no"}, {"content": [], "tool_calls": []}],
    ids=["empty", "refusal", "no parts"],
)
def test_an_empty_answer_and_a_refusal_are_answers_of_the_model(
    service: Service, make: Callable[..., dspy.LM], ask: Ask, message: dict[str, Any]
) -> None:
    service.answer["choices"][0]["message"] = {"role": "assistant", **message}
    assert ask(patient(make(service, num_retries=3)), "q") in ([""], [None])
    assert len(service.requests) == 1


def test_a_cached_reply_that_is_no_answer_is_asked_for_again(service: Service) -> None:
    lm = pooled_lm(service, cache=True)
    service.script.append((200, {}, {"choices": []}))
    assert lm("cached by DSPy") == [""]
    assert patient(lm)("cached by DSPy") == [service.answer["choices"][0]["message"]["content"]]


@in_threads_and_on_loops
def test_a_reply_without_choices_of_litellm_is_none_either(
    monkeypatch: pytest.MonkeyPatch, ask: Ask
) -> None:
    reply = {"choices": [], "usage": {}, "model": "m"}

    async def later(**_: Any) -> Any:
        return reply

    monkeypatch.setattr("dspy.clients.lm.litellm_completion", lambda **_: reply)
    monkeypatch.setattr("dspy.clients.lm.alitellm_completion", later)
    with pytest.raises(LMProviderError, match="no choices"):
        ask(patient(dspy.LM("openai/m", engine="litellm", cache=False, num_retries=0)), "q")


@in_threads_and_on_loops
def test_the_end_of_an_endless_answer_is_cut_from_the_history_too(
    service: Service, ask: Ask
) -> None:
    service.answer["choices"][0]["message"]["content"] = "word " * 300_000
    lm = patient(pooled_lm(service, cache=True))
    for _ in range(2):
        assert len(ask(lm, "endless")[0]) == 1_000_000
        assert len(str(lm.history[-1])) < 1_100_000
    assert len(service.requests) == 1


def unpickled_lm(service: Service, **kwargs: Any) -> dspy.LM:
    """A patient LM that comes from another process."""
    lm: dspy.LM = pickle.loads(pickle.dumps(patient(plain_lm(service, **kwargs))))  # noqa: S301 - these very bytes
    return lm


def used_lm(service: Service, **kwargs: Any) -> dspy.LM:
    """An LM whose client the user has asked before."""
    lm = plain_lm(service, **kwargs)
    drip, service.drip = service.drip, 0.0
    lm("before")
    service.drip = drip
    return lm


@in_threads_and_on_loops
@pytest.mark.parametrize("drips_head", [False, True], ids=["body", "headers"])
@pytest.mark.parametrize("make", [pooled_lm, plain_lm, unpickled_lm, used_lm])
def test_a_reply_that_comes_byte_by_byte_is_given_up_and_its_connection_closed(
    service: Service, make: Callable[..., dspy.LM], ask: Ask, drips_head: bool
) -> None:
    # The answer is whole after three seconds. No byte is half a second late.
    service.answer, service.drip = answer("42" * 50), 0.01
    lm = patient(make(service, timeout=0.5))
    service.drips_head = drips_head
    with pytest.raises(LMTimeoutError, match="within 1 seconds"):
        ask(lm, "q")
    assert service.was_given_up.wait(30)


def test_an_lm_and_its_copies_share_their_connections(service: Service) -> None:
    lm = plain_lm(service)
    copies = [lm.copy(temperature=0.5) for _ in range(3)]
    for copied in copies:
        patient(copied)("q")
    assert lm("q") == copies[0]("q")
    assert service.connections == 1
    copies[0].close()
    lm("q")
    assert service.connections == 2, "to close one closes what all share"


def test_the_wait_for_a_connection_does_not_count_in_threads(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]

    def wait(pool: Any, timeout: float | None = None) -> None:
        clock[0] += 100

    monkeypatch.setattr(_deadlines, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(_ConnectionPool, "acquire_slot", wait)
    assert patient(pooled_lm(service, timeout=30.0))("q")


@with_both_clients
def test_the_wait_for_a_connection_does_not_count_on_loops(
    service: Service, make: Callable[..., dspy.LM], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, acquire = [0.0], _AsyncConnectionPool.acquire_slot

    async def wait(pool: Any, timeout: float | None = None) -> None:
        clock[0] += 100  # as the loop sees it
        for _ in range(3):
            await asyncio.sleep(0)
        await acquire(pool, timeout)

    monkeypatch.setattr(_AsyncConnectionPool, "acquire_slot", wait)

    async def call() -> Any:
        loop = asyncio.get_running_loop()
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + clock[0], raising=False)
        return await patient(make(service, timeout=30.0)).acall("q")

    assert asyncio.run(call())
    assert clock == [100]


DEEP = '{"answer": ' + "[" * 127 + "]" * 127 + "}"
TEMPLATE = '{"a": "' + "{{7*7}}" * 3_000 + '"}'
COMMAS = '{"answer": "4' + "," * 50_000 + '2"}'


@pytest.mark.parametrize("answer", [DEEP, TEMPLATE, COMMAS], ids=["deep", "template", "commas"])
def test_an_answer_that_parses_stays_whole(answer: str):
    assert _replies.bounded([answer]) == [answer]


@pytest.mark.parametrize(
    ("answer", "length"),
    [
        ("{" * 40_000, 128),
        ('{"a" b ' * 40_000, 128 * 7),
        ('{"a": "' + '"x' * 400_000, 39_996),
        ("[[ ## a ## ]]\n" * 100_000, 69_999),
        ('{"a": 1}' + "{{7*7}}" * 3_000, 8 + 256 * 7),
        ("x" * 2_000_000, 1_000_000),
    ],
    ids=["braces", "objects", "quotes", "fields", "doubles", "endless"],
)
def test_an_answer_that_takes_minutes_to_repair_is_cut(answer: str, length: int):
    (cut,) = _replies.bounded([answer])
    assert answer.startswith(cut)
    assert len(cut) == pytest.approx(length, rel=0.01)


def test_a_cut_answer_is_warned_of_and_fails_to_parse(scripted, caplog):
    lm = patient(scripted(lambda *_: '{"a" b ' * 40_000))
    with (
        dspy.context(lm=lm, adapter=dspy.JSONAdapter()),
        pytest.raises((AdapterParseError, ValueError)),
    ):
        dspy.Predict("question -> answer")(question="q")
    assert "was cut to" in caplog.text
