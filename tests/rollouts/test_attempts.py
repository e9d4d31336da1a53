"""A reply that is none of the API's is the service's fault, and no call lasts longer than its
deadline.
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
from dspy._vendor.lm15.transports._async import _AsyncConnectionPool as AsyncPool
from dspy.clients.cache import Cache
from dspy.utils.exceptions import LMProviderError, LMTimeoutError

from combee_dspy.costs import Tariff, metered
from combee_dspy.lms import _whole, pooled
from combee_dspy.rollouts import InfrastructureFaultError, RolloutJob, _patient, patient
from combee_dspy.rollouts._run import run_rollout
from tests.lms.conftest import Service, answer


def with_usage(written: str) -> bytes:
    return (
        b'{"choices": [{"message": {"content": "42"}}], "usage": {"prompt_tokens": %s}}'
        % written.encode()
    )


NONE_OF_THE_APIS: dict[str, Any] = {
    "empty object": {},
    "no choices": {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}},
    "null choices": {"choices": None},
    "text for a choice": {"choices": ["42"]},
    "no message": {"choices": [{"index": 0, "message": None, "finish_reason": "stop"}]},
    "a number for content": {"choices": [{"message": {"content": 42}}]},
    "an error of another kind": {"error": "overloaded"},
    "a list": [1],
    "a string": b'"42"',
    "null": b"null",
    "nested": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "a list nested": b"[" * 100_000,
    "NaN": with_usage("NaN"),
    "infinite": with_usage("1e999"),
    "negative": with_usage("-1"),
    "text for usage": b'{"choices": [{"message": {"content": "42"}}], "usage": "many"}',
    "bad encoding": b'{"choices": [{"message": {"content": "\xff"}}]}',
    "half": b'{"choices": [{"mess',
    "HTML": b"<html><body>502 Bad Gateway</body></html>",
}


def in_threads(lm: Any, prompt: str) -> Any:
    return lm(prompt)


def on_a_loop(lm: Any, prompt: str) -> Any:
    return asyncio.run(lm.acall(prompt))


both = pytest.mark.parametrize("ask", [in_threads, on_a_loop])


def fast(service: Service, **kwargs: Any) -> dspy.LM:
    return pooled(
        "m", api_base=service.base, api_key="k", **{"cache": False, "num_retries": 0, **kwargs}
    )


def plain(service: Service, **kwargs: Any) -> dspy.LM:
    return dspy.LM(
        "openai/m",
        api_base=service.base,
        api_key="k",
        **{"cache": False, "num_retries": 0, **kwargs},
    )


@pytest.fixture(autouse=True)
def no_pauses_and_a_cache_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(_patient, "pause_after", lambda retry_after, count: 0.0)
    monkeypatch.setattr(dspy, "cache", Cache(False, True, str(tmp_path)))


@both
@pytest.mark.parametrize("made", [fast, plain])
@pytest.mark.parametrize("body", NONE_OF_THE_APIS)
def test_a_reply_that_is_no_answer_is_asked_for_again_and_kept_nowhere(
    service: Service, made: Callable[..., dspy.LM], ask: Any, body: str
) -> None:
    service.script.append((200, {}, NONE_OF_THE_APIS[body]))
    lm = patient(made(service, cache=True, num_retries=1))
    prompt = f"{body} {made.__name__} {ask.__name__}"
    with metered(Tariff()) as meter:
        assert ask(lm, prompt) == [service.answer["choices"][0]["message"]["content"]]
    assert [(row.calls, row.errors) for row in meter.usage()] == [(2, 1)]
    assert meter.usage()[0].prompt_tokens == 7 * (2 if body == "no choices" else 1), (
        "what it named is in the books"
    )
    assert ask(lm, prompt) == [service.answer["choices"][0]["message"]["content"]]
    assert len(service.asked) == 2, "DSPy's cache has the answer, and nothing else"


@pytest.mark.parametrize("body", NONE_OF_THE_APIS)
def test_it_is_waited_for_as_for_an_outage_and_never_scored(service: Service, body: str) -> None:
    service.script.append((200, {}, NONE_OF_THE_APIS[body]))
    example = dspy.Example(question="q").with_inputs("question")
    job = RolloutJob(dspy.Predict("question -> answer"), example, "id", lambda *_: 1.0)
    with dspy.context(lm=patient(fast(service))), pytest.raises(InfrastructureFaultError) as caught:
        run_rollout(job)
    assert (caught.value.retryable, caught.value.outage, caught.value.rollout) == (True, True, None)


@both
@pytest.mark.parametrize("made", [fast, plain])
@pytest.mark.parametrize(
    "message",
    [
        {"content": ""},
        {"content": None},
        {"content": None, "refusal": "I will not"},
        {"content": [], "tool_calls": []},
    ],
    ids=["empty", "null", "refusal", "no parts"],
)
def test_an_empty_answer_and_a_refusal_are_the_models(
    service: Service, made: Callable[..., dspy.LM], ask: Any, message: dict[str, Any]
) -> None:
    service.answer["choices"][0]["message"] = {"role": "assistant", **message}
    assert ask(patient(made(service, num_retries=3)), "q") in ([""], [None])
    assert len(service.asked) == 1


@both
def test_of_an_endless_answer_nothing_keeps_the_end(service: Service, ask: Any) -> None:
    service.answer["choices"][0]["message"]["content"] = "word " * 300_000
    lm = patient(fast(service, cache=True))
    for _ in range(2):
        (said,) = ask(lm, "endless")
        assert len(said) == 1_000_000
        assert len(str(lm.history[-1])) < 1_100_000
    assert len(service.asked) == 1
    assert lm.history[0]["usage"]["completion_tokens"] == 3


def test_what_was_kept_of_such_a_reply_before_is_no_answer_either(service: Service) -> None:
    lm = fast(service, cache=True)
    service.script.append((200, {}, {"choices": []}))
    assert lm("kept before") == [""]
    assert patient(lm)("kept before") == [service.answer["choices"][0]["message"]["content"]]


@both
def test_litellms_reply_without_choices_is_none_either(
    monkeypatch: pytest.MonkeyPatch, ask: Any
) -> None:
    async def later(**_: Any) -> Any:
        return {"choices": [], "usage": {}, "model": "m"}

    monkeypatch.setattr(
        "dspy.clients.lm.litellm_completion", lambda **_: {"choices": [], "usage": {}, "model": "m"}
    )
    monkeypatch.setattr("dspy.clients.lm.alitellm_completion", later)
    with pytest.raises(LMProviderError, match="no choices"):
        ask(patient(dspy.LM("openai/m", engine="litellm", cache=False, num_retries=0)), "q")


def from_elsewhere(service: Service, **kwargs: Any) -> dspy.LM:
    """A patient LM that was made in another process."""
    taken: dspy.LM = pickle.loads(pickle.dumps(patient(plain(service, **kwargs))))  # noqa: S301 - these very bytes
    return taken


def used_before(service: Service, **kwargs: Any) -> dspy.LM:
    """An LM whose client the user has asked already."""
    lm = plain(service, **kwargs)
    drip, service.drip = service.drip, 0.0
    lm("before")
    service.drip = drip
    return lm


@both
@pytest.mark.parametrize("head", [False, True], ids=["body", "head"])
@pytest.mark.parametrize("made", [fast, plain, from_elsewhere, used_before])
def test_a_service_that_drips_is_given_up(
    service: Service, made: Callable[..., dspy.LM], ask: Any, head: bool
) -> None:
    # The answer is whole after three seconds; no byte is half a second late.
    service.answer, service.drip = answer("42" * 50), 0.01
    lm = patient(made(service, timeout=0.5))
    service.drips_head = head
    with pytest.raises(LMTimeoutError, match="within 1 seconds"):
        ask(lm, "q")
    assert service.given_up.wait(30), "its connection is closed, not left to it"


def test_the_users_own_lm_and_its_copies_keep_their_clients(service: Service) -> None:
    lm = plain(service)
    copies = [lm.copy(temperature=0.5) for _ in range(3)]
    for copied in copies:
        patient(copied)("q")
    assert service.connections == 1
    assert lm("q") == copies[0]("q")
    assert service.connections == 1
    copies[0].close()
    lm("q")
    assert service.connections == 2, "closing one releases what all share"


class _Clock:
    ahead = 0.0


def test_the_wait_for_a_connection_is_not_the_services(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]

    def busy(pool: Any, timeout: float | None = None) -> None:
        clock[0] += 100

    monkeypatch.setattr(_whole, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr("dspy._vendor.lm15.transports._sync._ConnectionPool.acquire_slot", busy)
    assert patient(fast(service, timeout=30.0))("q")


@pytest.mark.parametrize("made", [fast, plain])
def test_nor_is_it_on_a_loop(
    service: Service, made: Callable[..., dspy.LM], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, clock = "dspy._vendor.lm15.transports._async._AsyncConnectionPool", _Clock()
    acquire = AsyncPool.acquire_slot

    async def busy(pool: Any, timeout: float | None = None) -> None:
        clock.ahead += 100  # as the loop sees it
        for _ in range(3):
            await asyncio.sleep(0)
        await acquire(pool, timeout)

    monkeypatch.setattr(f"{pool}.acquire_slot", busy)

    async def ask() -> Any:
        loop = asyncio.get_running_loop()
        time = loop.time
        monkeypatch.setattr(loop, "time", lambda: time() + clock.ahead, raising=False)
        return await patient(made(service, timeout=30.0)).acall("q")

    assert asyncio.run(ask())
    assert clock.ahead == 100
