"""LMs that outlast a service that is full: told, waited out, and nothing bought twice."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import dspy
import pytest
from dspy.lm15 import RateLimitError, ServerError
from dspy.utils.dummies import DummyLM
from dspy.utils.exceptions import AdapterParseError, LMRateLimitError, LMServerError

from combee_dspy.costs import Tariff, metered
from combee_dspy.rollouts import (
    _attempts,
    _patient,
    lms_of,
    patient,
    patient_program,
    tell_rejected,
)


@pytest.fixture
def heard():
    found: list[float | None] = []
    token = _patient.SURROUNDINGS.set(_patient.Surroundings(found.append))
    yield found
    _patient.SURROUNDINGS.reset(token)


def full(times: int, retry_after: float | None = 0.0) -> Callable[[str, int], Any]:
    return lambda prompt, attempt: (
        RateLimitError("full", retry_after=retry_after) if attempt <= times else "42"
    )


def ask(lm: Any) -> Any:
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        return dspy.Predict("question -> answer")(question="q")


JSON = '{"answer": "42"}\0'


def test_rejected_call_is_told_each_time_and_repeated_beyond_num_retries(scripted, heard):
    lm = scripted(full(6), num_retries=1)
    with dspy.context(lm=patient(lm)), metered(Tariff()) as meter:
        assert dspy.Predict("question -> answer")(question="q").answer == "42"

    assert heard == [0.0] * 6
    assert lm.engine.attempts == 7
    assert [(row.calls, row.errors, row.prompt_tokens) for row in meter.usage()] == [(7, 6, 5)]
    assert len(lm.history) == 1


def test_acall_is_patient_too(scripted, heard):
    async def main() -> Any:
        with dspy.context(lm=patient(scripted(full(4)))):
            return await dspy.Predict("question -> answer").acall(question="q")

    assert asyncio.run(main()).answer == "42"
    assert len(heard) == 4


def test_other_transient_errors_are_tried_num_retries_times_and_told_to_nobody(
    scripted, heard, monkeypatch
):
    slept: list[float] = []
    monkeypatch.setattr(_patient.Halt, "wait", lambda self, seconds: slept.append(seconds))
    lm = scripted(lambda *_: ServerError("down"), num_retries=2)
    with pytest.raises(LMServerError):
        ask(patient(lm))

    assert slept == [1.0, 2.0]
    assert lm.engine.attempts == 3
    assert heard == []


def test_service_that_is_overloaded_is_told(scripted, heard):
    with pytest.raises(LMServerError):
        ask(
            patient(
                scripted(
                    lambda *_: ServerError("overloaded", status=503, retry_after=0.0), num_retries=2
                )
            )
        )

    assert heard == [0.0, 0.0]


@pytest.mark.parametrize(
    ("asked", "count", "seconds"),
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
def test_pauses_are_retry_after_or_those_of_dspy(asked, count, seconds):
    assert _patient.pause_after(asked, count) == pytest.approx(seconds)


def test_patience_ends_and_the_rejection_is_raised(scripted, heard, monkeypatch):
    monkeypatch.setattr(_patient, "PATIENCE", 0.0)
    lm = scripted(full(99, 5.0))
    with pytest.raises(LMRateLimitError):
        ask(patient(lm))

    assert lm.engine.attempts == 1
    assert heard == [5.0]


def test_call_for_several_completions_is_told_and_counted_like_any_other(scripted, heard):
    def reply(prompt: str, attempt: int) -> Any:
        return RateLimitError("full", retry_after=0.0) if attempt == 2 else JSON

    lm = scripted(reply, n=2, num_retries=3)
    with metered(Tariff()) as meter:
        ask(patient(lm))

    # Both completions, after a first attempt that got one of them: what it has cost is in the books
    # too.
    assert lm.engine.attempts == 4
    assert heard == [0.0]
    assert [(row.calls, row.errors, row.prompt_tokens) for row in meter.usage()] == [(2, 1, 3 * 5)]


def test_only_plain_lms_are_replaced_and_their_answers_keep_their_place(scripted):
    class Legacy(dspy.LM):
        def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
            return None

    legacy, dummy, plain = (
        Legacy("openai/double"),
        DummyLM([]),
        scripted(temperature=0.3, num_retries=3),
    )

    assert patient(None) is None
    assert patient(legacy) is legacy
    assert patient(dummy) is dummy
    made = patient(plain)
    assert patient(made) is made
    assert (made.model, made.kwargs, made.engine) == (plain.model, plain.kwargs, plain.engine)
    assert type(plain) is dspy.LM
    assert made.copy(num_retries=7).num_retries == 7
    assert made.num_retries == 3


def test_patient_lm_can_be_taken_to_another_process():
    made = pickle.loads(pickle.dumps(patient(dspy.LM("openai/double", num_retries=5))))  # noqa: S301 - these very bytes

    assert made.num_retries == 5
    assert patient(made) is made


def test_pressure_outside_an_effect_is_nobodys():
    tell_rejected(1.0)


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


DEEP = '{"answer": ' + "[" * 127 + "]" * 127 + "}"


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ('{"answer": "4' + "," * 50_000 + '2"}', None),
        (DEEP, None),
        ("{" * 40_000, 128),
        ('{"a" b ' * 40_000, 128 * 7),
        ('{"a": "' + '"x' * 400_000, None),
        ("[[ ## a ## ]]\n" * 100_000, None),
        ('{"a": 1}' + "{{7*7}}" * 3_000, 8 + 256 * 7),
        ('{"a": "' + "{{7*7}}" * 3_000 + '"}', 21_009),
        ("x" * 2_000_000, 1_000_000),
    ],
    ids=["long", "deep", "braces", "objects", "quotes", "fields", "doubles", "template", "endless"],
)
def test_an_answer_that_takes_minutes_to_repair_is_cut(answer: str, kept: int | None):
    (found,) = _attempts.bounded([answer])
    assert answer.startswith(found)
    assert len(found) == kept or (kept is None and (found == answer or len(found) < 100_000))
    assert (found == answer) == (
        answer == DEEP or answer.startswith(('{"answer": "4', '{"a": "{{'))
    )


def test_a_cut_answer_is_said_and_fails_to_parse(scripted, caplog):
    # Whole, its repair takes minutes.
    with pytest.raises((AdapterParseError, ValueError)):
        ask(patient(scripted(lambda *_: '{"a" b ' * 40_000)))
    assert "was cut to" in caplog.text
