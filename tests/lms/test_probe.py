from __future__ import annotations

import logging
import socket
from typing import Any

import dspy
import pytest
from dspy.clients.base_lm import GLOBAL_HISTORY
from dspy.lm15 import Message, Response, TextPart, Usage
from dspy.utils.dummies import DummyLM

from combee_dspy.exceptions import LMUnreachableError
from combee_dspy.lms import probe

KEY = "very-secret-9876543210"


def lm_of(service, model="openai/m", **kwargs):
    return dspy.LM(model, api_base=service.base, api_key=KEY, **kwargs)


def refusals(*statuses):
    return [
        (status, {}, {"error": {"message": f"status {status} for key {KEY}"}})
        for status in statuses
    ]


def test_one_small_uncached_call_for_each_distinct_lm(service) -> None:
    lm = lm_of(service, max_tokens=2_000, n=4, temperature=0.7)
    logged = len(GLOBAL_HISTORY)
    probe(
        {
            "task": lm,
            "proposer": lm,
            "reflector": lm.copy(),
            "evaluator": lm_of(service, "openai/other"),
        }
    )
    assert [body["model"] for body in service.bodies] == ["m", "other"]
    assert all(
        body.get("max_tokens", body.get("max_completion_tokens")) == 16 for body in service.bodies
    )
    assert {body.get("n", 1) for body in service.bodies} == {1}
    assert (lm.cache, lm.num_retries, lm.kwargs["max_tokens"], lm.history) == (True, 3, 2_000, [])
    assert len(GLOBAL_HISTORY) == logged


def test_reasoning_models_keep_their_token_limit(service) -> None:
    probe(
        {
            "task": lm_of(service, "openai/gpt-5-mini"),
            "proposer": lm_of(service, reasoning_effort="low"),
        }
    )
    assert not any({"max_tokens", "max_completion_tokens"} & set(body) for body in service.bodies)


def test_a_cut_answer_is_an_answer_and_no_warning(
    service, caplog: pytest.LogCaptureFixture
) -> None:
    service.answer["choices"][0]["finish_reason"] = "length"
    lm = lm_of(service)
    with caplog.at_level(logging.WARNING, "dspy.clients.lm"):
        probe({"task": lm})
        assert "truncated" not in caplog.text
        lm("hello", cache=False)
        assert "truncated" in caplog.text


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_refusal_is_found_with_one_call_and_shows_no_key(service, status: int) -> None:
    service.script = refusals(*[status] * 5)
    with pytest.raises(LMUnreachableError) as caught:
        probe({"proposer": lm_of(service)})
    assert (caught.value.role, caught.value.model) == ("proposer", "openai/m")
    assert str(status) in caught.value.reason
    assert KEY not in str(caught.value)
    assert "To fix" not in str(caught.value)
    assert "Nothing was spent" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert len(service.requests) == 1


def test_a_service_that_fails_once_passes_and_twice_does_not(service) -> None:
    service.script = refusals(503)
    probe({"task": lm_of(service)})
    service.script = refusals(500, 503)
    with pytest.raises(LMUnreachableError, match="503"):
        probe({"task": lm_of(service)})
    assert len(service.requests) == 4


def test_an_answer_that_cannot_be_read_is_not_laid_to_the_key(service) -> None:
    usage = {"prompt_tokens": -5, "completion_tokens": 1, "total_tokens": 1}
    choice = {"index": 0, "message": {"role": "assistant", "content": "OK"}}
    service.script = [(200, {}, {"choices": [choice], "usage": usage})] * 5
    with pytest.raises(LMUnreachableError, match="Look at the service's reply") as caught:
        probe({"task": lm_of(service)})
    assert "Check the key" not in str(caught.value)


def test_too_many_requests_means_that_the_key_works(service) -> None:
    service.script = refusals(*[429] * 5)
    probe({"task": lm_of(service)})
    assert len(service.requests) == 1


def test_nobody_listening() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # taken and not listening: a connection is refused
        lm = dspy.LM(
            "openai/m", api_base=f"http://127.0.0.1:{bound.getsockname()[1]}/v1", api_key=KEY
        )
        with pytest.raises(LMUnreachableError, match="task LM 'openai/m'"):
            probe({"task": lm})


def test_a_missing_key_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(LMUnreachableError, match=r"(?i)key"):
        probe({"task": dspy.LM("openai/gpt-4o-mini")})


def test_doubles_are_left_alone() -> None:
    class Legacy(dspy.BaseLM):
        def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
            raise AssertionError("probed")

    class OwnForward(dspy.LM):
        def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
            raise AssertionError("probed")

    class Engine:
        def complete(self, request: Any) -> Any:
            raise AssertionError("probed")

    dummy = DummyLM([{"answer": "first"}])
    probe({"task": dummy, "proposer": Legacy("m"), "reflector": OwnForward("openai/m")})
    probe({"task": dspy.LM("x/y", engine=Engine())})
    with dspy.context(lm=dummy):
        assert dspy.Predict("question -> answer")(question="q").answer == "first"


@pytest.mark.parametrize("works", [True, False])
def test_a_custom_engine_may_ask_to_be_probed(works: bool) -> None:
    class Engine:
        probeable = True
        calls = 0

        def complete(self, request: Any) -> Response:
            self.calls += 1
            if not works:
                raise ConnectionError("no route")
            usage = Usage(input_tokens=1, output_tokens=1, total_tokens=2)
            answer = Message.assistant([TextPart("OK")])
            return Response(
                id=None, model=request.model, message=answer, finish_reason="stop", usage=usage
            )

    engine = Engine()
    lm = dspy.LM("x/y", engine=engine)
    if works:
        probe({"task": lm})
    else:
        with pytest.raises(LMUnreachableError, match="no route"):
            probe({"task": lm})
    assert engine.calls == 1
