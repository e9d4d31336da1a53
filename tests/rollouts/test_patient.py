"""What becomes of "too many requests": told, waited out, and nothing bought twice."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import dspy
import pytest
import tenacity
from dspy.lm15 import Message, RateLimitError, Response, ServerError, TextPart, Usage
from dspy.utils.callback import BaseCallback
from dspy.utils.dummies import DummyLM
from dspy.utils.exceptions import LMRateLimitError, LMServerError

from combee_dspy.costs import Ledger, LedgerRecorder
from combee_dspy.rollouts import (
    CURRENT_SESSION,
    InfrastructureFaultError,
    Patience,
    _patient,
    patient,
    patient_program,
    patient_rules,
    run_rollout,
    tell_pressure,
)

SECOND = "second"


class Engine:
    """Answers each attempt with what ``reply(question, attempt)`` returns, or raises it."""

    supported_params = frozenset({"temperature"})
    supports_response_schema = False

    def __init__(self, reply: Callable[[str, int], str | Exception]) -> None:
        self.reply = reply
        self.attempts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def complete(self, request: Any) -> Response:
        question = SECOND if SECOND in request.messages[-1].text else "first"
        with self._lock:
            self.attempts[question] += 1
            attempt = self.attempts[question]
        reply = self.reply(question, attempt)
        if isinstance(reply, Exception):
            raise reply
        usage = Usage(input_tokens=5, output_tokens=2, total_tokens=7)
        answer = Message.assistant([TextPart(f"[[ ## answer ## ]]\n{reply}\n\n[[ ## completed ## ]]")])
        return Response(id=None, model=request.model, message=answer, finish_reason="stop", usage=usage)


class AsyncEngine(Engine):
    async def complete(self, request: Any) -> Response:  # type: ignore[override]
        return super().complete(request)


class Session:
    """Hears of pressure, as the scheduler does."""

    def __init__(self) -> None:
        self.heard: list[float | None] = []

    def pressed(self, retry_after: float | None) -> None:
        self.heard.append(retry_after)


class Hears(BaseCallback):
    def __init__(self) -> None:
        self.begun = self.ended = 0

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self.begun += 1

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        self.ended += 1


class Two(dspy.Module):
    """A program of two calls."""

    def __init__(self) -> None:
        super().__init__()
        self.ask = dspy.Predict("question -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        self.ask(question="first")
        return self.ask(question=SECOND)


@pytest.fixture
def session():
    session = Session()
    token = CURRENT_SESSION.set(session)
    yield session
    CURRENT_SESSION.reset(token)


def busy(times: int, on: str = SECOND, retry_after: float | None = 0.0) -> Callable[[str, int], str | Exception]:
    def reply(question: str, attempt: int) -> str | Exception:
        if question == on and attempt <= times:
            return RateLimitError("too many requests", retry_after=retry_after)
        return "42"

    return reply


def lm_of(engine: Engine, **kwargs: Any) -> dspy.LM:
    return dspy.LM("openai/double", engine=engine, cache=False, **kwargs)


def test_rejected_call_is_told_each_time_and_repeated_alone_beyond_num_retries(session):
    engine = Engine(busy(9))
    with dspy.context(lm=patient(lm_of(engine, num_retries=2))):
        rollout = run_rollout(Two(), dspy.Example(question="q").with_inputs("question"), "1", lambda *a: 1.0, 0.0)

    assert rollout.score == 1.0
    assert session.heard == [0.0] * 9
    assert engine.attempts == {"first": 1, SECOND: 10}


def test_books_callbacks_and_history_see_one_call(session):
    hears, ledger = Hears(), Ledger()
    lm = lm_of(Engine(busy(3, on="first")), callbacks=[hears])
    with dspy.context(lm=patient(lm)), LedgerRecorder(ledger).installed():
        dspy.Predict("question -> answer")(question="first")

    total = ledger.snapshot().total
    assert (hears.begun, hears.ended) == (1, 1)
    assert (total.calls, total.errors, total.prompt_tokens) == (1, 0, 5)
    assert len(lm.history) == 1


def test_acall_is_patient_too(session):
    engine = AsyncEngine(busy(4))
    lm = patient(dspy.LM("openai/double", engine=Engine(busy(0)), async_engine=engine, cache=False, num_retries=0))

    async def ask() -> Any:
        with dspy.context(lm=lm):
            return await dspy.Predict("question -> answer").acall(question=SECOND)

    assert asyncio.run(ask()).answer == "42"
    assert len(session.heard) == 4


def test_other_transient_errors_are_tried_num_retries_times_and_told_to_nobody(session, monkeypatch):
    slept: list[float] = []
    monkeypatch.setattr(_patient.time, "sleep", slept.append)
    engine = Engine(lambda question, attempt: ServerError("down"))
    with dspy.context(lm=patient(lm_of(engine, num_retries=2))), pytest.raises(LMServerError):
        dspy.Predict("question -> answer")(question="first")

    # Those of the first adapter; ChatAdapter asks again in JSON.
    assert slept[:2] == [1.0, 2.0]
    assert engine.attempts["first"] % 3 == 0
    assert session.heard == []


def test_service_that_is_overloaded_is_told_and_tried_as_other_faults_are(session):
    engine = Engine(lambda question, attempt: ServerError("overloaded", status=503, retry_after=0.0))
    lm = patient(lm_of(engine, num_retries=2))
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()), pytest.raises(LMServerError):
        dspy.Predict("question -> answer")(question="first")

    assert engine.attempts["first"] == 3
    assert session.heard == [0.0, 0.0]


def test_pauses_are_retry_after_or_those_of_dspy(monkeypatch):
    patience = Patience(tells=False)

    assert patience.rejected(LMRateLimitError("busy", retry_after=7.0)) == 7.0
    assert [patience.rejected(LMRateLimitError("busy")) for _ in range(3)] == [2.0, 4.0, 8.0]
    with pytest.raises(LMRateLimitError):
        patience.rejected(LMRateLimitError("busy", retry_after=_patient.PATIENCE + 1))


@pytest.mark.parametrize("status", [500, 503, 529])
def test_a_service_that_is_down_cannot_make_a_run_wait_for_days(status):
    assert Patience(retries=3).after(LMServerError("down", status=status, retry_after=864000.0)) == 120.0
    assert Patience(retries=3).after(LMServerError("down", status=status, retry_after=7.0)) == 7.0


def test_patience_ends_and_the_rejection_is_raised(session, monkeypatch):
    monkeypatch.setattr(_patient, "PATIENCE", 0.0)
    engine = Engine(busy(99, on="first", retry_after=5.0))
    lm = patient(lm_of(engine))
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()), pytest.raises(LMRateLimitError):
        dspy.Predict("question -> answer")(question="first")

    assert engine.attempts["first"] == 1
    assert session.heard == [5.0]


def test_engine_that_tells_by_itself_is_not_told_for(session):
    engine = Engine(busy(2, on="first"))
    engine.tells_pressure = True  # type: ignore[attr-defined]
    with dspy.context(lm=patient(lm_of(engine))):
        dspy.Predict("question -> answer")(question="first")

    assert session.heard == []


@pytest.mark.filterwarnings("error::DeprecationWarning")
def test_call_for_several_completions_is_left_to_dspys_retries(session):
    engine = Engine(lambda question, attempt: RateLimitError("busy", retry_after=0.0) if attempt == 2 else "42")
    with dspy.context(lm=patient(lm_of(engine, n=2, num_retries=3))):
        dspy.Predict("question -> answer")(question="first")

    # One for each completion, and the one that was rejected: the first completion is not bought again.
    assert engine.attempts["first"] == 3


def test_only_plain_lms_are_replaced_and_their_answers_keep_their_place():
    class Legacy(dspy.LM):
        def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
            return None

    legacy, dummy, plain = Legacy("openai/double"), DummyLM([]), lm_of(Engine(busy(0)), temperature=0.3)

    assert patient(None) is None
    assert patient(legacy) is legacy
    assert patient(dummy) is dummy
    made = patient(plain)
    assert patient(made) is made
    assert (made.model, made.kwargs, made.engine) == (plain.model, plain.kwargs, plain.engine)
    assert type(plain) is dspy.LM
    assert plain.num_retries == 3
    copy = made.copy(temperature=0.9)
    assert copy.kwargs["temperature"] == 0.9
    assert made.copy(num_retries=7).num_retries == 7
    assert made.num_retries == 3
    assert type(copy) is type(made)


def test_patient_lm_can_be_taken_to_another_process(session):
    sent = pickle.dumps(patient(dspy.LM("openai/double", api_key="none", num_retries=5)))
    made = pickle.loads(sent)  # noqa: S301 - these very bytes

    assert type(made) is _patient.PatientLM
    assert made.num_retries == 5


def test_predictors_with_an_lm_of_their_own_are_made_patient():
    program = Two()
    assert patient_program(program).ask.lm is None
    program.ask.lm = lm_of(Engine(busy(0)))

    assert type(patient_program(program).ask.lm) is _patient.PatientLM


def test_pressure_outside_a_session_and_in_a_deaf_one_is_nobodys():
    tell_pressure(1.0)
    token = CURRENT_SESSION.set(object())
    try:
        tell_pressure(1.0)
    finally:
        CURRENT_SESSION.reset(token)


def _faults(*errors: Exception) -> Callable[[], str]:
    left = list(errors)

    def run() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return run


def _rejected() -> InfrastructureFaultError:
    fault = InfrastructureFaultError("busy", retryable=True)
    fault.__cause__ = LMRateLimitError("busy", retry_after=0.0)
    return fault


def _fault() -> InfrastructureFaultError:
    return InfrastructureFaultError("down", retryable=True)


def test_rejections_use_up_no_attempts(session, monkeypatch):
    monkeypatch.setattr(tenacity.nap.time, "sleep", lambda seconds: None)
    run = _faults(*(_rejected() for _ in range(8)), _fault(), _rejected(), _fault())

    assert tenacity.Retrying(**patient_rules(3, lambda error: True))(run) == "done"
    assert session.heard == [0.0] * 9


def test_faults_are_tried_as_often_as_said(session, monkeypatch):
    monkeypatch.setattr(tenacity.nap.time, "sleep", lambda seconds: None)
    run = _faults(_fault(), _rejected(), _fault(), _fault())

    with pytest.raises(InfrastructureFaultError, match="down"):
        tenacity.Retrying(**patient_rules(3, lambda error: True))(run)


def test_rejections_end_with_the_patience(session, monkeypatch):
    monkeypatch.setattr(_patient, "PATIENCE", -1.0)

    with pytest.raises(InfrastructureFaultError, match="busy"):
        tenacity.Retrying(**patient_rules(3, lambda error: True))(_faults(_rejected()))
    assert session.heard == [0.0]


def test_what_cannot_pass_is_not_tried_again(session):
    run = _faults(_fault())

    with pytest.raises(InfrastructureFaultError):
        tenacity.Retrying(**patient_rules(3, lambda error: False))(run)
