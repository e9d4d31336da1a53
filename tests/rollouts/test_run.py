"""One rollout, whatever happens."""

from __future__ import annotations

import asyncio
from typing import Any

import dspy
import pytest
from dspy.lm15 import AuthError, RateLimitError, ServerError
from dspy.utils.exceptions import LMError, LMUnexpectedError

from combee_dspy.costs import Costs, Price, Tariff, role_scope
from combee_dspy.lms import embedded
from combee_dspy.rollouts import (
    InfrastructureFaultError,
    RolloutJob,
    arun_rollout,
    read_score,
    run_rollout,
    takes_trace,
)

FAILED = -1.0


class Program(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.draft = dspy.Predict("question -> answer")
        self.steps = [dspy.ChainOfThought("question, draft -> answer")]

    def forward(self, question: str) -> dspy.Prediction:
        return self.draft(question=question)

    async def aforward(self, question: str) -> dspy.Prediction:
        return await self.draft.acall(question=question)


def correct(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> dspy.Prediction:
    assert trace is pred_name is pred_trace is None
    return dspy.Prediction(
        score=float(pred.answer == gold.answer), feedback="checked", objective_scores={"exact": 1}
    )


def here(program: Any, example: Any, metric: Any = correct, **given: Any) -> Any:
    return run_rollout(RolloutJob(program, example, "id", metric, FAILED, **given))


def awaited(program: Any, example: Any, metric: Any = correct, **given: Any) -> Any:
    return asyncio.run(arun_rollout(RolloutJob(program, example, "id", metric, FAILED, **given)))


WAYS = pytest.mark.parametrize("roll", [here, awaited])


@WAYS
def test_rollout_holds_score_feedback_fields_calls_and_usage(roll, scripted, example):
    with dspy.context(lm=scripted()):
        found = roll(Program(), example)

    assert (found.example_id, found.score, found.feedback, found.objective_scores) == (
        "id",
        1.0,
        "checked",
        {"exact": 1},
    )
    assert found.prediction == {"answer": "42"}
    (call,) = found.calls
    assert (call.predictor, call.inputs, call.outputs) == (
        "draft",
        {"question": "six times seven"},
        {"answer": "42"},
    )
    (usage,) = found.usage
    assert (usage.role, usage.calls, usage.prompt_tokens, usage.completion_tokens) == (
        "task",
        1,
        5,
        2,
    )
    assert found.error is None
    assert found.failed_in is None
    assert len(found.prompt_hash) == 16
    assert found.seconds > 0


@WAYS
def test_answer_that_does_not_parse_is_a_call_without_outputs(roll, scripted, example):
    with dspy.context(lm=scripted(lambda prompt, attempt: "no fields\0")):
        found = roll(Program(), example)

    assert (found.score, found.failed_in, found.prediction) == (FAILED, "answer", None)
    assert found.error is not None
    assert "answer" in found.error
    (call,) = found.calls
    assert (call.predictor, call.outputs, call.inputs) == (
        "draft",
        None,
        {"question": "six times seven"},
    )
    assert "no fields" in call.completion


@WAYS
def test_errors_of_program_and_metric_are_scored_and_said(roll, scripted, example):
    class Broken(Program):
        def forward(self, question: str) -> Any:
            super().forward(question)
            raise KeyError("nothing")

        async def aforward(self, question: str) -> Any:
            await super().aforward(question)
            raise KeyError("nothing")

    def refuses(*given: Any) -> Any:
        raise ValueError("no reference")

    with dspy.context(lm=scripted()):
        program, metric = roll(Broken(), example), roll(Program(), example, refuses)
        no_number = roll(Program(), example, lambda *given: "1.0")

    assert (program.score, program.error, program.failed_in) == (
        FAILED,
        "KeyError: 'nothing'",
        "program",
    )
    assert len(program.calls) == 1
    assert (metric.score, metric.error, metric.failed_in) == (
        FAILED,
        "ValueError: no reference",
        "metric",
    )
    assert metric.prediction == {"answer": "42"}
    assert no_number.failed_in == "metric"
    assert [row.calls for row in program.usage] == [1]


@WAYS
@pytest.mark.parametrize(
    ("error", "retryable", "rejected"),
    [
        (RateLimitError("full", retry_after=3.0), True, True),
        (ServerError("down"), True, False),
        (AuthError("who"), False, False),
    ],
)
def test_outage_is_no_score(roll, scripted, example, error, retryable, rejected):
    with (
        dspy.context(lm=scripted(lambda prompt, attempt: error)),
        pytest.raises(InfrastructureFaultError) as caught,
    ):
        roll(Program(), example)

    fault = caught.value
    assert (fault.retryable, fault.rejected, fault.rollout) == (retryable, rejected, None)
    assert fault.retry_after == (3.0 if rejected else None)
    assert [(row.calls, row.errors) for row in fault.usage] == [(1, 1)]


def test_outage_that_a_program_wraps_is_no_score_either(scripted, example):
    class Wraps(Program):
        def forward(self, question: str) -> Any:
            try:
                return super().forward(question)
            except LMError as error:
                raise RuntimeError("my tool failed") from error

    with (
        dspy.context(lm=scripted(lambda *_: ServerError("down"))),
        pytest.raises(InfrastructureFaultError),
    ):
        here(Wraps(), example)


def test_outage_in_a_group_of_tasks_is_no_score_either(scripted, example):
    class Grouped(Program):
        async def aforward(self, question: str) -> Any:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self.draft.acall(question=question)) for _ in range(2)]
            return tasks[0].result()

    with (
        dspy.context(lm=scripted(lambda *_: ServerError("down"))),
        pytest.raises(InfrastructureFaultError) as caught,
    ):
        awaited(Grouped(), example)

    assert (caught.value.outage, caught.value.rollout) == (True, None)


@pytest.mark.parametrize("way", ["parallel", "wrapped"])
def test_program_that_fails_after_its_service_and_names_no_cause_is_tried_again(
    scripted, example, way
):
    class Silent(Program):
        def forward(self, question: str) -> Any:
            if way == "parallel":
                work = [(self.draft, {"question": question})] * 2
                return dspy.Parallel(max_errors=1, disable_progress_bar=True)(work)[0]
            try:
                return super().forward(question)
            except LMError:
                raise RuntimeError("my tool failed")  # noqa: B904 - as many write it

    with (
        dspy.context(lm=scripted(lambda *_: ServerError("down"))),
        pytest.raises(InfrastructureFaultError) as caught,
    ):
        here(Silent(), example)

    fault = caught.value
    assert (fault.retryable, fault.outage, fault.rollout.failed_in) == (True, False, "service")


def test_failure_that_nobody_can_assign_carries_the_rollout_to_take_in_the_end(example):
    class Odd(Program):
        def forward(self, question: str) -> Any:
            raise LMUnexpectedError("what")

    with pytest.raises(InfrastructureFaultError) as caught:
        here(Odd(), example)

    assert caught.value.retryable
    assert (caught.value.rollout.score, caught.value.rollout.failed_in) == (FAILED, "service")


@WAYS
def test_model_that_cannot_be_loaded_is_no_score_and_not_tried_again(roll, example, tmp_path):
    lm = embedded(tmp_path / "absent.gguf")
    with dspy.context(lm=lm), pytest.raises(InfrastructureFaultError) as caught:
        roll(Program(), example)

    assert (caught.value.retryable, caught.value.rollout) == (False, None)


def test_program_may_say_that_its_environment_failed(example):
    class Lost(Program):
        def forward(self, question: str) -> Any:
            raise InfrastructureFaultError("the sandbox is gone", retryable=True)

    with pytest.raises(InfrastructureFaultError, match="sandbox"):
        here(Lost(), example)


def test_calls_of_a_judge_are_the_evaluators(scripted, example):
    judge = dspy.Predict("question -> answer")

    def judged(gold: Any, pred: Any, *rest: Any) -> float:
        judge(question="is it right?")
        with role_scope("serving"):
            judge(question="told apart")
        return 1.0

    with dspy.context(lm=scripted()):
        found = here(Program(), example, judged)

    assert [(row.role, row.calls) for row in found.usage] == [
        ("evaluator", 1),
        ("serving", 1),
        ("task", 1),
    ]
    assert next(call.predictor for call in found.calls) == "draft"


def test_dollars_come_from_the_tariff_and_are_unknown_without_a_price(scripted, example):
    own = Tariff(Costs(prices={"mine": Price(1.0, 10.0)}))
    with dspy.context(lm=scripted(model="openai/mine")):
        known, unknown = here(Program(), example, tariff=own), here(Program(), example)

    assert known.usage[0].dollars == pytest.approx((5 * 1.0 + 2 * 10.0) / 1e6)
    assert unknown.usage[0].dollars is None


def test_metric_that_declares_it_sees_the_programs_trace(scripted, example):
    seen = []

    def lean(
        gold: Any,
        pred: Any,
        trace: Any = None,
        name: Any = None,
        part: Any = None,
        program_trace: Any = None,
    ) -> float:
        seen.append(program_trace)
        return 1.0

    assert takes_trace(lean)
    assert not takes_trace(correct)
    with dspy.context(lm=scripted()):
        here(Program(), example, lean, sees_trace=takes_trace(lean))

    ((_predictor, inputs, prediction),) = seen[0]
    assert inputs == {"question": "six times seven"}
    assert prediction.answer == "42"


def test_metric_that_is_a_coroutine_is_awaited(scripted, example):
    async def slow(*given: Any) -> float:
        await asyncio.sleep(0)
        return 0.5

    with dspy.context(lm=scripted()):
        assert awaited(Program(), example, slow).score == 0.5


def test_predictors_with_equal_signatures_are_told_apart_and_foreign_ones_have_no_path(
    scripted, example
):
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
        found = here(Twins(), example)

    assert [call.predictor for call in found.calls] == ["parts[1]", "", "parts[0]"]


def test_program_may_return_what_is_no_prediction(example):
    class Plain(dspy.Module):
        def forward(self, question: str) -> Any:
            return "42"

    assert here(Plain(), example, lambda gold, pred, *rest: pred == "42").prediction == {
        "prediction": "42"
    }


def test_key_of_the_lm_is_in_no_error(scripted, example):
    class Leaks(Program):
        def forward(self, question: str) -> Any:
            super().forward(question)
            raise RuntimeError("cannot use very-secret-key-12345")

    lm = scripted()
    lm.kwargs["api_key"] = "very-secret-key-12345"
    with dspy.context(lm=lm):
        found = here(Leaks(), example)

    assert "very-secret" not in found.error


def test_trace_of_whoever_calls_is_left_alone(scripted, example):
    with dspy.context(lm=scripted(), trace=[]):
        here(Program(), example)

        assert dspy.settings.trace == []


@pytest.mark.parametrize(
    "output",
    [
        "1.0",
        None,
        float("nan"),
        dspy.Prediction(score="good"),
        dspy.Prediction(),
        dspy.Prediction(score=1, objective_scores={"exact": float("nan")}),
    ],
)
def test_what_is_no_score_is_refused(output):
    with pytest.raises((TypeError, ValueError)):
        read_score(output)


def test_booleans_and_predictions_are_scores():
    assert read_score(True) == (1.0, "", {})
    assert read_score(dspy.Prediction(score=0.5, feedback=None)) == (0.5, "", {})
