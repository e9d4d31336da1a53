from __future__ import annotations

import json
import logging
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import dspy
import pytest
from dspy.clients.base_lm import GLOBAL_HISTORY
from dspy.lm15 import Message, Response, TextPart, Usage
from dspy.utils.dummies import DummyLM

from combee_dspy.costs import Ledger, LedgerRecorder
from combee_dspy.exceptions import LMUnreachableError
from combee_dspy.lms import probe

KEY = "very-secret-9876543210"


class Loopback:
    """A loopback endpoint that answers with the statuses it is given, then 200."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.bodies: list[dict[str, Any]] = []
        self.finish = "stop"
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                owner.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                status = owner.statuses.pop(0) if owner.statuses else 200
                body = json.dumps(owner.answer(status)).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    def answer(self, status: int) -> dict[str, Any]:
        if status != 200:
            return {"error": {"message": f"status {status} for key {KEY}", "type": "invalid"}}
        return {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [{"index": 0, "finish_reason": self.finish, "message": {"role": "assistant", "content": "OK"}}],
            "usage": {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10},
        }


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    endpoint = Loopback()
    thread = threading.Thread(target=endpoint.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield endpoint
    endpoint.server.shutdown()
    endpoint.server.server_close()
    thread.join()


def _lm(endpoint: Loopback, model: str = "openai/m", **kwargs: Any) -> dspy.LM:
    return dspy.LM(model, api_base=endpoint.base, api_key=KEY, **kwargs)


def test_one_small_uncached_call_for_each_distinct_lm(loopback: Loopback) -> None:
    lm = _lm(loopback, max_tokens=2_000, n=4, temperature=0.7)
    ledger = Ledger()
    logged = len(GLOBAL_HISTORY)
    with LedgerRecorder(ledger).installed():
        probe({"task": lm, "proposer": lm, "reflector": lm.copy(), "evaluator": _lm(loopback, "openai/other")})
        probe({"task": lm})
    assert [body["model"] for body in loopback.bodies] == ["m", "other", "m"]
    assert all(body.get("max_tokens", body.get("max_completion_tokens")) == 16 for body in loopback.bodies)
    assert {body.get("n", 1) for body in loopback.bodies} == {1}
    assert (lm.cache, lm.num_retries, lm.kwargs["max_tokens"], lm.history) == (True, 3, 2_000, [])
    assert len(GLOBAL_HISTORY) == logged
    assert {role: counts.calls for role, counts in ledger.snapshot().by_role.items()} == {"task": 2, "evaluator": 1}


def test_reasoning_models_keep_their_token_limit(loopback: Loopback) -> None:
    probe({"task": _lm(loopback, "openai/gpt-5-mini"), "proposer": _lm(loopback, reasoning_effort="low")})
    assert not any({"max_tokens", "max_completion_tokens"} & set(body) for body in loopback.bodies)


def test_a_cut_answer_is_an_answer_and_no_warning(loopback: Loopback, caplog: pytest.LogCaptureFixture) -> None:
    loopback.finish = "length"
    lm = _lm(loopback)
    with caplog.at_level(logging.WARNING, "dspy.clients.lm"):
        probe({"task": lm})
        assert "truncated" not in caplog.text
        lm("hello", cache=False)
        assert "truncated" in caplog.text


@pytest.mark.parametrize("status", [400, 401, 403, 404])
def test_a_refusal_is_found_with_one_call_and_shows_no_key(loopback: Loopback, status: int) -> None:
    loopback.statuses = [status] * 5
    with pytest.raises(LMUnreachableError) as caught:
        probe({"proposer": _lm(loopback)})
    assert (caught.value.role, caught.value.model) == ("proposer", "openai/m")
    assert str(status) in caught.value.reason
    assert KEY not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert len(loopback.bodies) == 1


def test_a_service_that_fails_once_passes_and_twice_does_not(loopback: Loopback) -> None:
    loopback.statuses = [503]
    probe({"task": _lm(loopback)})
    loopback.statuses = [500, 503]
    with pytest.raises(LMUnreachableError, match="503"):
        probe({"task": _lm(loopback)})
    assert len(loopback.bodies) == 4


def test_too_many_requests_means_that_the_key_works(loopback: Loopback) -> None:
    loopback.statuses = [429] * 5
    probe({"task": _lm(loopback)})
    assert len(loopback.bodies) == 1


def test_nobody_listening() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # taken and not listening: a connection is refused
        lm = dspy.LM("openai/m", api_base=f"http://127.0.0.1:{bound.getsockname()[1]}/v1", api_key=KEY)
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
            return Response(id=None, model=request.model, message=answer, finish_reason="stop", usage=usage)

    engine = Engine()
    lm = dspy.LM("x/y", engine=engine)
    if works:
        probe({"task": lm})
    else:
        with pytest.raises(LMUnreachableError, match="no route"):
            probe({"task": lm})
    assert engine.calls == 1
