from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import dspy
import pytest
from dspy.lm15 import AuthError, Message, RateLimitError, Response, ServerError, TextPart, Usage
from dspy.utils.dummies import DummyLM
from dspy.utils.exceptions import LMRateLimitError

from combee_dspy.costs import Ledger, LedgerRecorder
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.lms import LMPort
from combee_dspy.records import FailedCall
from combee_dspy.rollouts import ExecutorSession, Threads


class Ask(dspy.Signature):
    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


class Engine:
    """Answers each attempt with what ``reply(question, attempt)`` returns, or raises it."""

    supported_params = frozenset({"response_format", "temperature"})
    supports_response_schema = False

    def __init__(self, reply: Callable[[str, int], str | Exception]) -> None:
        self.reply = reply
        self.requests: list[Any] = []
        self.attempts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def complete(self, request: Any) -> Response:
        text = request.messages[-1].text
        question = next(word for word in text.split() if word.startswith("q-"))
        with self._lock:
            self.requests.append(request)
            self.attempts[question] += 1
            attempt = self.attempts[question]
        reply = self.reply(question, attempt)
        if isinstance(reply, Exception):
            raise reply
        usage = Usage(input_tokens=5, output_tokens=2, total_tokens=7)
        answer = Message.assistant([TextPart(reply)])
        return Response(id=None, model=request.model, message=answer, finish_reason="stop", usage=usage)


def _echo(question: str, attempt: int) -> str:
    return f'{{"answer": "{question}"}}'


def _lm(reply: Callable[[str, int], str | Exception] = _echo, **kwargs: Any) -> dspy.LM:
    settings = {"cache": False, "num_retries": 0, "temperature": 0.0, **kwargs}
    return dspy.LM("openai/double", engine=Engine(reply), **settings)


@pytest.fixture
def session() -> Iterator[ExecutorSession]:
    running = Threads().start(4)
    yield running
    running.close()


def _ask(count: int) -> list[dict[str, Any]]:
    return [{"question": f"q-{index}"} for index in range(count)]


def test_answers_come_in_the_order_of_the_inputs(session: ExecutorSession) -> None:
    lm = _lm()
    answers = LMPort(session, {"proposer": lm}).predict(Ask, _ask(20))
    assert [answer.answer for answer in answers] == [f"q-{index}" for index in range(20)]
    assert LMPort(session, {"proposer": lm}).predict(Ask, []) == ()


def test_all_inputs_are_in_flight_at_once(session: ExecutorSession) -> None:
    together = threading.Barrier(4, timeout=30)

    def reply(question: str, attempt: int) -> str:
        together.wait()
        return _echo(question, attempt)

    answers = LMPort(session, {"proposer": _lm(reply)}).predict(Ask, _ask(4))
    assert not any(isinstance(answer, FailedCall) for answer in answers)


def test_the_role_chooses_the_lm_and_is_in_the_ledger(session: ExecutorSession) -> None:
    proposer, reflector, default = _lm(), _lm(), _lm()
    port = LMPort(session, {"proposer": proposer, "reflector": reflector, "evaluator": None})
    ledger = Ledger()
    with LedgerRecorder(ledger).installed(), dspy.context(lm=default):
        port.predict(Ask, _ask(3))
        port.predict(Ask, _ask(2), role="reflector")
        port.predict(Ask, _ask(1), role="evaluator")
    assert [len(lm.engine.requests) for lm in (proposer, reflector, default)] == [3, 2, 1]
    calls = {role: counts.calls for role, counts in ledger.snapshot().by_role.items()}
    assert calls == {"proposer": 3, "reflector": 2, "evaluator": 1}


def test_a_role_without_an_lm_is_refused(session: ExecutorSession) -> None:
    with dspy.context(lm=None), pytest.raises(ArgumentValueError, match="proposer"):
        LMPort(session, {"proposer": None}).predict(Ask, _ask(1))


@pytest.mark.parametrize(
    ("given", "configured", "marker"),
    [
        (None, None, "JSON object"),
        (None, dspy.ChatAdapter(), "[[ ## completed ## ]]"),
        (dspy.XMLAdapter(), dspy.ChatAdapter(), "<question>"),
    ],
)
def test_which_adapter_writes_the_prompt(session: ExecutorSession, given: Any, configured: Any, marker: str) -> None:
    lm = _lm()
    with dspy.context(adapter=configured):
        LMPort(session, {"proposer": lm}, given).predict(Ask, _ask(1))
    assert marker in lm.engine.requests[0].messages[-1].text


def test_one_failure_leaves_the_others(session: ExecutorSession) -> None:
    def reply(question: str, attempt: int) -> str | Exception:
        return AuthError("refused for sk-abcdefgh12345678") if question == "q-1" else _echo(question, attempt)

    lm = _lm(reply)
    answers = LMPort(session, {"proposer": lm}).predict(Ask, _ask(3))
    assert [getattr(answer, "answer", None) for answer in answers] == ["q-0", None, "q-2"]
    failed = answers[1]
    assert isinstance(failed, FailedCall)
    assert failed.error.startswith("LMAuthError: ")
    assert "sk-abc" not in failed.error
    assert lm.engine.attempts["q-1"] == 1  # a refused key is final


def test_transient_errors_are_tried_again_up_to_the_limit(session: ExecutorSession) -> None:
    def reply(question: str, attempt: int) -> str | Exception:
        return ServerError("busy") if attempt < 3 else _echo(question, attempt)

    three, two = _lm(reply), _lm(reply)
    assert LMPort(session, {"proposer": three}, max_attempts=3).predict(Ask, _ask(1))[0].answer == "q-0"
    failed = LMPort(session, {"proposer": two}, max_attempts=2).predict(Ask, _ask(1))[0]
    assert isinstance(failed, FailedCall)
    assert failed.error.startswith("LMServerError: ")
    assert two.engine.attempts["q-0"] == 2


@pytest.mark.parametrize(("temperature", "retried_at"), [(0.0, 1.0), (0.7, 0.7), (None, None)])
def test_an_answer_that_does_not_parse_is_drawn_anew(
    session: ExecutorSession, monkeypatch: pytest.MonkeyPatch, temperature: float | None, retried_at: float | None
) -> None:
    from dspy.clients.cache import Cache

    monkeypatch.setattr(dspy, "cache", Cache(enable_disk_cache=False, enable_memory_cache=True, disk_cache_dir=None))

    def reply(question: str, attempt: int) -> str:
        return "nothing of use" if attempt == 1 else _echo(question, attempt)

    lm = _lm(reply, cache=True, temperature=temperature)
    answer = LMPort(session, {"proposer": lm}).predict(Ask, _ask(1))[0]
    assert answer.answer == "q-0"
    assert [request.config.temperature for request in lm.engine.requests] == [temperature, retried_at]
    # A second run repeats both draws from DSPy's cache.
    assert LMPort(session, {"proposer": lm}).predict(Ask, _ask(1))[0].answer == "q-0"
    assert len(lm.engine.requests) == 2


def test_an_answer_that_never_parses_is_a_failed_call(session: ExecutorSession) -> None:
    failed = LMPort(session, {"proposer": _lm(lambda question, attempt: "nothing")}).predict(Ask, _ask(1))[0]
    assert isinstance(failed, FailedCall)
    assert failed.error.startswith("AdapterParseError: ")


def test_calls_from_every_worker_of_the_pool_do_not_wait_for_each_other() -> None:
    session = Threads().start(2)
    lm = _lm()
    port = LMPort(session, {"proposer": lm})
    inside = threading.Barrier(2, timeout=30)

    def nested(index: int) -> list[str]:
        inside.wait()  # all workers are taken before the first call is made
        return [answer.answer for answer in port.predict(Ask, _ask(5))]

    futures = [session.submit(nested, index) for index in range(2)]
    try:
        expected = [f"q-{index}" for index in range(5)]
        assert [future.result(timeout=60) for future in futures] == [expected, expected]
    finally:
        session.close()
    assert len(lm.engine.requests) == 10


def test_calls_leave_no_trace_in_the_program_around_them(session: ExecutorSession) -> None:
    with dspy.context(trace=[], lm=DummyLM([{"answer": "x"}] * 3)):
        LMPort(session, {}, dspy.ChatAdapter()).predict(Ask, _ask(3))
        assert dspy.settings.trace == []


def test_wrong_arguments_are_refused(session: ExecutorSession) -> None:
    with pytest.raises(ArgumentTypeError, match="adapter"):
        LMPort(session, {}, adapter="json")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(ArgumentValueError, match="max_attempts"):
        LMPort(session, {}, max_attempts=0)


def test_a_service_that_is_full_is_waited_for_and_uses_up_no_attempts(session: ExecutorSession) -> None:
    lm = _lm(lambda question, attempt: RateLimitError("busy", retry_after=0.0) if attempt <= 6 else _echo(question, 0))
    ledger = Ledger()
    with LedgerRecorder(ledger).installed():
        answers = LMPort(session, {"proposer": lm}, max_attempts=1).predict(Ask, _ask(3))

    assert [answer.answer for answer in answers] == ["q-0", "q-1", "q-2"]
    assert set(lm.engine.attempts.values()) == {7}
    assert ledger.snapshot().total.calls == 3


@pytest.mark.filterwarnings("ignore:Implementing custom LMs:DeprecationWarning")
def test_a_legacy_lm_that_is_full_is_waited_for_too(session: ExecutorSession) -> None:
    class Legacy(DummyLM):
        rejections = 4

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            if self.rejections:
                self.rejections -= 1
                raise LMRateLimitError("busy", retry_after=0.0)
            return super().forward(*args, **kwargs)

    port = LMPort(session, {"proposer": Legacy([{"answer": "42"}])}, dspy.ChatAdapter(), max_attempts=1)
    (answer,) = port.predict(Ask, _ask(1))

    assert answer.answer == "42"
