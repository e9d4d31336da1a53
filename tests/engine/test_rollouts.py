"""Rollouts: what counts as a score, whose fault a failure is, and who called."""

from __future__ import annotations

import time
from decimal import Decimal
from typing import Any

import dspy
import numpy as np
import pytest
from dspy.utils.exceptions import LMServerError, LMUnexpectedError

from combee_dspy import Combee
from combee_dspy.engine.runs import predictor_runs
from combee_dspy.engine.seed import seed_candidate
from combee_dspy.events import ErrorRaised, RolloutFinished
from combee_dspy.exceptions import ArgumentValueError, InfrastructureError
from combee_dspy.operators import FewShotSwap, decode_demonstrations
from combee_dspy.rollouts import _retrying as retrying_module
from combee_dspy.rollouts import read_score, run_rollout
from tests.engine.conftest import Recorder


def _compile(world: Any, student: Any = None, *, metric: Any = None, **kwargs: Any) -> dspy.Module:
    given = {"max_metric_calls": 60, "reflection_lm": world.proposer_lm, "num_threads": 4, **kwargs}
    made = Combee(metric or world.metric, **given)
    return made.compile(student or world.student(), trainset=world.examples(12), valset=world.examples(6, start=48))


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    real = retrying_module.tenacity.Retrying
    monkeypatch.setattr(
        retrying_module.tenacity, "Retrying", lambda **kwargs: real(**{**kwargs, "sleep": lambda _: None})
    )


@pytest.mark.parametrize(
    ("output", "score"),
    [(np.float32(0.5), 0.5), (np.int64(1), 1.0), (np.bool_(True), 1.0), (True, 1.0), (Decimal("0.25"), 0.25)],
)
def test_numbers_of_any_make_are_scores(output: Any, score: float) -> None:
    assert read_score(output)[0] == score
    assert read_score(dspy.Prediction(score=output, feedback="f"))[:2] == (score, "f")


@pytest.mark.parametrize("output", [None, "1", np.str_("1"), dspy.Prediction(feedback="f"), [1.0]])
def test_what_is_no_number_is_no_score(output: Any) -> None:
    with pytest.raises(TypeError, match="number is needed"):
        read_score(output)


def test_numpy_metric_runs(world: Any) -> None:
    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        return np.float32(gold.answer == pred.answer)

    assert _compile(world, metric=metric).combee_report.seed_score == pytest.approx(2 / 6)


class Failing(dspy.Module):
    """Fails on the examples about one animal, or on all."""

    def __init__(self, error: Exception, animal: str = "") -> None:
        super().__init__()
        self.answer = dspy.Predict("question -> answer")
        self._error, self._animal = error, animal
        self.tried = 0

    def __deepcopy__(self, memo: Any) -> Failing:
        return self

    def forward(self, question: str) -> dspy.Prediction:
        if self._animal in question:
            self.tried += 1
            raise self._error
        return self.answer(question=question)


def test_an_example_that_always_fails_does_not_end_the_run(world: Any, no_waiting: None) -> None:
    hook = Recorder()
    student = Failing(LMUnexpectedError("odd answer"), "cat")
    report = _compile(world, student, hooks=[hook]).combee_report
    assert report.rollouts > 6
    failed = [event.rollout for event in hook.of(RolloutFinished) if event.rollout.failed_in == "service"]
    assert failed
    assert all(rollout.score == 0.0 and "odd answer" in rollout.feedback for rollout in failed)
    told = [event for event in hook.of(ErrorRaised) if event.where == "rollout"]
    bought = [e for e in hook.of(RolloutFinished) if e.rollout.failed_in == "service" and not e.cached]
    assert len(told) == len(bought)
    assert student.tried == 3 * len(bought)


def test_unexplained_failures_everywhere_end_the_run(world: Any, no_waiting: None) -> None:
    with pytest.raises(InfrastructureError, match="6 rollouts failed 3 times"):
        _compile(world, Failing(LMUnexpectedError("odd answer")))


def test_a_service_that_is_down_is_never_a_wrong_answer(world: Any, no_waiting: None) -> None:
    hook = Recorder()
    with pytest.raises(InfrastructureError, match="LMServerError"):
        _compile(world, Failing(LMServerError("503"), "cat"), hooks=[hook])
    assert not [event for event in hook.of(RolloutFinished) if event.rollout.error]


def test_an_outage_is_heard_of_before_a_first_minibatch_has_failed_in_full(world: Any, no_waiting: None) -> None:
    class Slow(Failing):
        def forward(self, question: str) -> dspy.Prediction:
            time.sleep(0.1)
            return super().forward(question)

    student = Slow(LMServerError("503"))
    with pytest.raises(InfrastructureError, match="LMServerError"):
        _compile(world, student, num_threads=1, reflection_minibatch_size=12)
    # One rollout, and what the only seat took before the run had heard: not twelve, and then a validation.
    assert 3 <= student.tried <= 4 * 3


def test_a_program_that_never_works_is_named(world: Any) -> None:
    with pytest.raises(ArgumentValueError, match=r"student.*6 validation examples.*KeyError"):
        _compile(world, Failing(KeyError("x")))
    assert not world.task_lm.requests


def test_no_lm_is_named(world: Any) -> None:
    with dspy.context(lm=None), pytest.raises(ArgumentValueError, match="No LM is loaded"):
        _compile(world)


def test_a_metric_error_is_not_taught_as_the_programs(world: Any, caplog: pytest.LogCaptureFixture) -> None:
    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        if "cat" in gold.question:
            raise KeyError("metric bug")
        return world.metric(gold, pred)

    hook = Recorder()
    _compile(world, metric=metric, hooks=[hook], operators=["insert"])
    assert [event for event in hook.of(RolloutFinished) if event.rollout.failed_in == "metric"]
    assert world.proposer_lm.requests
    assert not [request for request in world.proposer_lm.requests if "metric bug" in request.text]
    assert len([line for line in caplog.messages if "could not score" in line]) == 1


class Twins(dspy.Module):
    """Two predictors of one signature."""

    def __init__(self) -> None:
        super().__init__()
        self.a = dspy.Predict("question -> answer")
        self.b = dspy.Predict("question -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        self.a(question=question)
        return self.b(question="B: " + question)


def test_twins_get_their_own_runs(world: Any) -> None:
    program = Twins()
    rollout = run_rollout(program, world.examples(1)[0], "id", world.metric, 0.0)
    assert rollout.callers == ("a", "b")
    copy = dict(Twins().named_predictors())
    for name, start in (("a", "Number"), ("b", "B: ")):
        runs = predictor_runs(copy[name], [rollout], name)
        assert [run.inputs["question"].startswith(start) for run in runs] == [True]


def test_an_unknown_caller_goes_by_its_signature(world: Any) -> None:
    class Fresh(dspy.Module):
        def forward(self, question: str) -> dspy.Prediction:
            return dspy.Predict("question -> answer")(question=question)

    rollout = run_rollout(Fresh(), world.examples(1)[0], "id", world.metric, 0.0)
    assert rollout.callers == ("",)
    assert len(predictor_runs(dspy.Predict("question -> answer"), [rollout], "a")) == 1
    assert not predictor_runs(dspy.Predict("question -> word"), [rollout], "a")


def test_bootstrapped_demonstrations_are_components() -> None:
    student = dspy.Predict("question -> answer")
    student.demos = [dspy.Example(augmented=True, question="q", answer="a", note="n")]
    operators = [FewShotSwap()]
    seed = seed_candidate(student, {}, operators)
    (demo,) = decode_demonstrations(seed["self::demonstrations"])
    assert (dict(demo.inputs), dict(demo.outputs)) == ({"question": "q"}, {"answer": "a"})
    student.demos.append(dspy.Example(question="incomplete"))
    assert set(seed_candidate(student, {}, operators)) == {"self"}
