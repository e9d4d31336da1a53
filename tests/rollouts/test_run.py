"""One rollout: its score, calls and usage, or the fault of its service."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import dspy
import pytest
from dspy.lm15 import AuthError, RateLimitError, ServerError
from dspy.utils.exceptions import LMError, LMUnexpectedError

from combee_dspy.costs import Costs, Price, Tariff, role_scope
from combee_dspy.lms import embedded
from combee_dspy.records import Rollout
from combee_dspy.rollouts import (
    InfrastructureFaultError,
    RolloutJob,
    arun_rollout,
    read_score,
    run_rollout,
    takes_trace,
)

FAILED = -1.0
INPUTS = {"question": "six times seven"}
Run = Callable[..., Rollout]


class Program(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.draft = dspy.Predict("question -> answer")
        self.steps = [dspy.ChainOfThought("question, draft -> answer")]

    def forward(self, question: str) -> Any:
        return self.draft(question=question)

    async def aforward(self, question: str) -> Any:
        return await self.draft.acall(question=question)


def correct(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> dspy.Prediction:
    assert trace is pred_name is pred_trace is None
    return dspy.Prediction(
        score=float(pred.answer == gold.answer), feedback="checked", objective_scores={"exact": 1}
    )


def in_thread(program: Any, example: Any, metric: Any = correct, **options: Any) -> Rollout:
    return run_rollout(RolloutJob(program, example, "id", metric, FAILED, **options))


def on_loop(program: Any, example: Any, metric: Any = correct, **options: Any) -> Rollout:
    return asyncio.run(arun_rollout(RolloutJob(program, example, "id", metric, FAILED, **options)))


def fault_of(run: Run, lm: Any, program: Any, example: Any) -> InfrastructureFaultError:
    with dspy.context(lm=lm), pytest.raises(InfrastructureFaultError) as caught:
        run(program, example)
    return caught.value


both_ways = pytest.mark.parametrize("run", [in_thread, on_loop])


@both_ways
def test_a_rollout_has_score_feedback_fields_calls_and_usage(run: Run, scripted, example):
    with dspy.context(lm=scripted()):
        rollout = run(Program(), example)
    assert (rollout.example_id, rollout.score, rollout.feedback) == ("id", 1.0, "checked")
    assert rollout.objective_scores == {"exact": 1}
    assert rollout.prediction == {"answer": "42"}
    (call,) = rollout.calls
    assert (call.predictor, call.inputs, call.outputs) == ("draft", INPUTS, {"answer": "42"})
    (usage,) = rollout.usage
    assert (usage.role, usage.calls) == ("task", 1)
    assert (usage.prompt_tokens, usage.completion_tokens) == (5, 2)
    assert (rollout.error, rollout.failed_in) == (None, None)
    assert len(rollout.prompt_hash) == 16
    assert rollout.seconds > 0


class Raw(str):
    """What the scripted model sends as it is: it takes it to hold a zero byte."""

    def __contains__(self, part: object) -> bool:
        return True


@both_ways
@pytest.mark.parametrize(
    ("answer", "says"),
    [("", "is empty"), ("I'm sorry,\nno." + 99 * " no", "begins with \"I'm sorry, no. no no")],
)
def test_an_error_says_what_came_instead_of_an_answer(run: Run, scripted, example, answer, says):
    with dspy.context(lm=scripted(lambda prompt, attempt: Raw(answer))):
        error = str(run(Program(), example).error)
    assert says in error
    assert len(error) < 200


@both_ways
def test_an_answer_that_does_not_parse_is_a_call_without_outputs(run: Run, scripted, example):
    with dspy.context(lm=scripted(lambda prompt, attempt: "no fields\0")):
        rollout = run(Program(), example)
    assert (rollout.score, rollout.failed_in, rollout.prediction) == (FAILED, "answer", None)
    assert "answer" in str(rollout.error)
    (call,) = rollout.calls
    assert (call.predictor, call.inputs, call.outputs) == ("draft", INPUTS, None)
    assert "no fields" in call.completion


class Broken(Program):
    def forward(self, question: str) -> Any:
        super().forward(question)
        raise KeyError("nothing")

    async def aforward(self, question: str) -> Any:
        await super().aforward(question)
        raise KeyError("nothing")


@both_ways
def test_an_error_of_the_program_is_scored_with_its_calls(run: Run, scripted, example):
    with dspy.context(lm=scripted()):
        rollout = run(Broken(), example)
    assert (rollout.score, rollout.failed_in) == (FAILED, "program")
    assert rollout.error == "KeyError: 'nothing'"
    assert len(rollout.calls) == 1
    assert [row.calls for row in rollout.usage] == [1]


def refuse(*_: Any) -> Any:
    raise ValueError("no reference")


@both_ways
@pytest.mark.parametrize("metric", [refuse, lambda *_: "1.0"], ids=["raises", "no number"])
def test_an_error_of_the_metric_is_scored_with_the_prediction(run: Run, scripted, example, metric):
    with dspy.context(lm=scripted()):
        rollout = run(Program(), example, metric)
    assert (rollout.score, rollout.failed_in) == (FAILED, "metric")
    assert rollout.prediction == {"answer": "42"}


@both_ways
@pytest.mark.parametrize(
    ("error", "retryable", "rejected", "retry_after"),
    [
        (RateLimitError("full", retry_after=3.0), True, True, 3.0),
        (ServerError("down"), True, False, None),
        (AuthError("who"), False, False, None),
    ],
)
def test_an_outage_is_no_score(
    run: Run, scripted, example, error, retryable, rejected, retry_after
):
    fault = fault_of(run, scripted(lambda *_: error), Program(), example)
    assert (fault.retryable, fault.rejected, fault.rollout) == (retryable, rejected, None)
    assert fault.retry_after == retry_after
    assert [(row.calls, row.errors) for row in fault.usage] == [(1, 1)]


class Wraps(Program):
    def forward(self, question: str) -> Any:
        try:
            return super().forward(question)
        except LMError as error:
            raise RuntimeError("my tool failed") from error


class Grouped(Program):
    async def aforward(self, question: str) -> Any:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self.draft.acall(question=question)) for _ in range(2)]
        return tasks[0].result()


@pytest.mark.parametrize(("run", "program"), [(in_thread, Wraps()), (on_loop, Grouped())])
def test_an_outage_within_another_error_is_no_score_either(run: Run, scripted, example, program):
    fault = fault_of(run, scripted(lambda *_: ServerError("down")), program, example)
    assert (fault.outage, fault.rollout) == (True, None)


class HidesTheCause(Program):
    def forward(self, question: str) -> Any:
        try:
            return super().forward(question)
        except LMError:
            raise RuntimeError("my tool failed")  # noqa: B904 - as many write it


class InParallel(Program):
    def forward(self, question: str) -> Any:
        work = [(self.draft, {"question": question})] * 2
        return dspy.Parallel(max_errors=1, disable_progress_bar=True)(work)[0]


class Odd(Program):
    def forward(self, question: str) -> Any:
        raise LMUnexpectedError("what")


@pytest.mark.parametrize("program", [HidesTheCause(), InParallel(), Odd()])
def test_an_uncertain_fault_has_the_rollout_to_take_in_the_end(scripted, example, program):
    fault = fault_of(in_thread, scripted(lambda *_: ServerError("down")), program, example)
    assert (fault.retryable, fault.outage) == (True, False)
    assert (fault.rollout.score, fault.rollout.failed_in) == (FAILED, "service")


@both_ways
def test_a_model_that_cannot_be_loaded_is_no_score_and_not_tried_again(run: Run, example, tmp_path):
    fault = fault_of(run, embedded(tmp_path / "absent.gguf"), Program(), example)
    assert (fault.retryable, fault.rollout) == (False, None)


def test_a_program_may_raise_that_its_environment_failed(example):
    class Lost(Program):
        def forward(self, question: str) -> Any:
            raise InfrastructureFaultError("the sandbox is gone", retryable=True)

    assert "sandbox" in str(fault_of(in_thread, None, Lost(), example))


def test_calls_of_a_judge_are_the_evaluators(scripted, example):
    judge = dspy.Predict("question -> answer")

    def judged(gold: Any, pred: Any, *rest: Any) -> float:
        judge(question="is it right?")
        with role_scope("serving"):
            judge(question="in a role of its own")
        return 1.0

    with dspy.context(lm=scripted()):
        rollout = in_thread(Program(), example, judged)
    roles = [(row.role, row.calls) for row in rollout.usage]
    assert roles == [("evaluator", 1), ("serving", 1), ("task", 1)]
    assert rollout.calls[0].predictor == "draft"


@pytest.mark.parametrize(
    ("tariff", "dollars"),
    [
        (Tariff(Costs(prices={"mine": Price(1.0, 10.0)})), (5 * 1.0 + 2 * 10.0) / 1e6),
        (Tariff(), None),
    ],
)
def test_dollars_come_from_the_tariff_and_are_unknown_without_a_price(
    scripted, example, tariff, dollars
):
    with dspy.context(lm=scripted(model="openai/mine")):
        assert in_thread(Program(), example, tariff=tariff).usage[0].dollars == dollars


def test_a_metric_that_declares_it_gets_the_programs_trace(scripted, example):
    traces = []

    def metric(*_: Any, program_trace: Any = None) -> float:
        traces.append(program_trace)
        return 1.0

    assert takes_trace(metric)
    assert not takes_trace(correct)
    with dspy.context(lm=scripted()):
        in_thread(Program(), example, metric, sees_trace=True)
    ((_predictor, inputs, prediction),) = traces[0]
    assert inputs == INPUTS
    assert prediction.answer == "42"


@both_ways
def test_a_metric_that_is_a_coroutine_is_awaited(run: Run, scripted, example):
    async def slow(*_: Any) -> float:
        await asyncio.sleep(0)
        return 0.5

    with dspy.context(lm=scripted()):
        assert run(Program(), example, slow).score == 0.5


def test_equal_predictors_are_told_apart_and_foreign_ones_have_no_path(scripted, example):
    foreign = dspy.Predict("question -> answer")

    class Twins(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = [dspy.Predict("question -> answer"), dspy.Predict("question -> answer")]

        def forward(self, question: str) -> Any:
            for part in (self.parts[1], foreign):
                part(question=question)
            return self.parts[0](question=question)

    with dspy.context(lm=scripted()):
        rollout = in_thread(Twins(), example)
    assert [call.predictor for call in rollout.calls] == ["parts[1]", "", "parts[0]"]


def test_a_program_may_return_any_value(example):
    class Plain(dspy.Module):
        def forward(self, question: str) -> Any:
            return "42"

    rollout = in_thread(Plain(), example, lambda gold, pred, *rest: pred == "42")
    assert (rollout.score, rollout.prediction) == (1.0, {"prediction": "42"})


def test_the_key_of_an_lm_is_in_no_error(scripted, example):
    class Leaks(Program):
        def forward(self, question: str) -> Any:
            super().forward(question)
            raise RuntimeError("cannot use very-secret-key-12345")

    lm = scripted()
    lm.kwargs["api_key"] = "very-secret-key-12345"
    with dspy.context(lm=lm):
        assert "very-secret" not in str(in_thread(Leaks(), example).error)


def test_the_trace_of_the_caller_stays_as_it_was(scripted, example):
    with dspy.context(lm=scripted(), trace=[]):
        in_thread(Program(), example)
        assert dspy.settings.trace == []


@pytest.mark.parametrize(
    "output",
    [
        "1.0",
        None,
        math.nan,
        dspy.Prediction(score="good"),
        dspy.Prediction(),
        dspy.Prediction(score=1, objective_scores={"exact": math.nan}),
    ],
)
def test_what_is_no_score_is_refused(output):
    with pytest.raises((TypeError, ValueError)):
        read_score(output)


@pytest.mark.parametrize("output", [{"score": 1.0}, dspy.Prediction(feedback="Right.")])
def test_an_error_of_a_score_says_what_to_return(output):
    with pytest.raises(TypeError, match=r"return a number, or dspy\.Prediction\(score=…") as caught:
        read_score(output)
    assert "None" not in str(caught.value)


@pytest.mark.parametrize(
    ("output", "score"), [(True, 1.0), (dspy.Prediction(score=0.5, feedback=None), 0.5)]
)
def test_booleans_and_predictions_are_scores(output, score):
    assert read_score(output) == (score, "", {})
