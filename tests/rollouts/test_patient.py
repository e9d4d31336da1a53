"""LMs that wait for a full service: each rejection is reported, and nothing is paid for twice."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import dspy
import pytest
from dspy.lm15 import RateLimitError, ServerError
from dspy.utils.dummies import DummyLM
from dspy.utils.exceptions import LMRateLimitError, LMServerError

from combee_dspy import Budget, Combee
from combee_dspy.costs import Tariff, metered
from combee_dspy.rollouts import _attempt, _patient, lms_of, patient, patient_program

JSON = '{"answer": "42"}\0'


@pytest.fixture
def rejections() -> Iterator[list[float | None]]:
    """The seconds of each rejection that was reported."""
    reported: list[float | None] = []
    token = _attempt.ATTEMPT.set(_attempt.Attempt(reported.append))
    yield reported
    _attempt.ATTEMPT.reset(token)


def full(times: int, retry_after: float | None = 0.0) -> Callable[[str, int], Any]:
    return lambda prompt, attempt: (
        RateLimitError("full", retry_after=retry_after) if attempt <= times else "42"
    )


def ask(lm: Any) -> Any:
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        return dspy.Predict("question -> answer")(question="q")


def test_a_rejected_call_is_reported_and_repeated_beyond_num_retries(scripted, rejections):
    lm = scripted(full(6), num_retries=1)
    with dspy.context(lm=patient(lm)), metered(Tariff()) as meter:
        assert dspy.Predict("question -> answer")(question="q").answer == "42"
    assert rejections == [0.0] * 6
    assert lm.engine.attempts == 7
    assert [(row.calls, row.errors, row.prompt_tokens) for row in meter.usage()] == [(7, 6, 5)]
    assert len(lm.history) == 1


def test_acall_is_patient_too(scripted, rejections):
    async def main() -> Any:
        with dspy.context(lm=patient(scripted(full(4)))):
            return await dspy.Predict("question -> answer").acall(question="q")

    assert asyncio.run(main()).answer == "42"
    assert len(rejections) == 4


def test_other_transient_errors_are_repeated_num_retries_times_and_not_reported(
    scripted, rejections, monkeypatch
):
    pauses: list[float] = []
    monkeypatch.setattr(_attempt.Halt, "wait", lambda self, seconds: pauses.append(seconds))
    lm = scripted(lambda *_: ServerError("down"), num_retries=2)
    with pytest.raises(LMServerError):
        ask(patient(lm))
    assert pauses == [1.0, 2.0]
    assert lm.engine.attempts == 3
    assert rejections == []


def test_an_overloaded_service_is_reported(scripted, rejections):
    error = ServerError("overloaded", status=503, retry_after=0.0)
    with pytest.raises(LMServerError):
        ask(patient(scripted(lambda *_: error, num_retries=2)))
    assert rejections == [0.0, 0.0]


@pytest.mark.parametrize(
    ("retry_after", "count", "seconds"),
    [
        (7.0, 1, 7.0),
        (864000.0, 1, 120.0),
        (None, 1, 1.0),
        (None, 3, 4.0),
        (None, 50, 60.0),
        (0.0, 1, 0.002),
        (0.0, 20, 2.0),
    ],
)
def test_pauses_are_retry_after_or_those_of_dspy(retry_after, count, seconds):
    assert _patient.pause_after(retry_after, count) == pytest.approx(seconds)


def test_patience_ends_and_the_rejection_is_raised(scripted, rejections, monkeypatch):
    monkeypatch.setattr(_patient, "PATIENCE", 0.0)
    lm = scripted(full(99, 5.0))
    with pytest.raises(LMRateLimitError):
        ask(patient(lm))
    assert lm.engine.attempts == 1
    assert rejections == [5.0]


def test_a_call_for_several_completions_is_repeated_whole(scripted, rejections):
    def reply(prompt: str, attempt: int) -> Any:
        return RateLimitError("full", retry_after=0.0) if attempt == 2 else JSON

    lm = scripted(reply, n=2, num_retries=3)
    with metered(Tariff()) as meter:
        ask(patient(lm))
    assert lm.engine.attempts == 4
    assert rejections == [0.0]
    assert [(row.calls, row.errors, row.prompt_tokens) for row in meter.usage()] == [(2, 1, 3 * 5)]


class Legacy(dspy.LM):
    def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        return None


class Counting(dspy.LM):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class Listed(dspy.LM):
    kinds: ClassVar[list[str]] = []

    def __init_subclass__(cls, *, owner: str) -> None:
        cls.kinds.append(owner)


@pytest.mark.parametrize(
    "lm", [None, *(kind("openai/double") for kind in (Legacy, Counting, Listed)), DummyLM([])]
)
def test_lms_that_call_in_a_way_of_their_own_are_not_replaced(lm):
    assert patient(lm) is lm


class Tenant(dspy.LM):
    """An LM that says more of itself, and calls its service as DSPy does."""

    def __init__(self, *args: Any, tenant: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.tenant = tenant

    @property
    def label(self) -> str:
        return f"{self.tenant}: {self.model}"


class Named(dspy.LM):
    pass


def tenant(lm: dspy.LM) -> Tenant:
    return Tenant(
        "openai/gpt-4o",
        engine=lm.engine,
        async_engine=lm._async_engine_spec,
        num_retries=5,
        cache=False,
        tenant="ours",
    )


def test_each_attempt_of_a_subclass_counts(scripted, rejections):
    lm = tenant(scripted(full(2)))
    with dspy.context(lm=patient(lm)), metered(Tariff()) as meter:
        assert dspy.Predict("question -> answer")(question="q").answer == "42"
    assert rejections == [0.0] * 2
    assert [(row.calls, row.errors) for row in meter.usage()] == [(3, 2)]


def test_no_attempt_of_a_subclass_passes_a_limit_of_calls(scripted, tmp_path, monkeypatch):
    monkeypatch.setattr(_patient, "pause_after", lambda retry_after, count: 0.0)
    # A third of all requests fail.
    lm = tenant(scripted(lambda _, attempt: ServerError("down") if attempt % 3 == 0 else "42"))
    rows = [dspy.Example(question=f"q {n}", answer="7").with_inputs("question") for n in range(20)]
    combee = Combee(
        lambda gold, pred, *_: float(gold.answer == pred.answer),
        reflection_lm=lm,
        budget=Budget(calls=30),
        log_dir=tmp_path / "run",
        num_threads=4,
        tracker=(),
    )
    with dspy.context(lm=lm):
        combee.compile(dspy.Predict("question -> answer"), trainset=rows[:12], valset=rows[12:])
    assert 20 < lm.engine.attempts <= 30


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda lm: lm.copy()])
def test_a_patient_subclass_stays_one(again):
    plain = Tenant("openai/double", num_retries=5, tenant="ours")
    lm = again(patient(plain))
    assert type(plain) is Tenant
    assert isinstance(lm, Tenant)
    assert isinstance(lm, _patient.PatientLM)
    assert (lm.label, lm.num_retries) == ("ours: openai/double", 5)
    assert lm.dump_state() == plain.dump_state()
    assert patient(lm) is lm


def test_a_patient_lm_gives_the_answers_of_the_lm_that_it_was_made_from(scripted):
    plain = scripted(temperature=0.3, num_retries=3)
    lm = patient(plain)
    assert patient(lm) is lm
    assert (lm.model, lm.kwargs, lm.engine) == (plain.model, plain.kwargs, plain.engine)
    assert type(plain) is dspy.LM
    assert lm.copy(num_retries=7).num_retries == 7
    assert lm.num_retries == 3


@pytest.mark.parametrize("kind", [dspy.LM, Named])
def test_a_patient_lm_can_be_taken_to_another_process(kind):
    lm = pickle.loads(pickle.dumps(patient(kind("openai/double", num_retries=5))))  # noqa: S301 - these very bytes
    assert isinstance(lm, kind)
    assert lm.num_retries == 5
    assert patient(lm) is lm


class Two(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = [dspy.Predict("a -> b"), dspy.Predict("b -> c")]
        self.parts[1]._compiled = True


def test_predictors_with_an_lm_of_their_own_are_made_patient(scripted):
    program = Two()
    assert patient_program(program).parts[0].lm is None
    lm = program.parts[1].lm = scripted()
    with dspy.context(lm=None):
        assert lms_of(program) == [lm]
    assert type(patient_program(program).parts[1].lm) is _patient.PatientLM
