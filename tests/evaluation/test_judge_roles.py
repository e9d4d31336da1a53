from __future__ import annotations

import functools

import dspy
import pytest

from combee_dspy.evaluation import Calibration, Judge, check_roles, check_roles_heard, same_model
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import CallUsage

STRONG = dspy.LM("openai/gpt-5", api_key="k")
SAME = dspy.LM("openrouter/openai/GPT-5", api_key="k", temperature=1.0)
OTHER = dspy.LM("openai/gpt-5-mini", api_key="k")
JUDGE = Judge("Right?", lm=SAME)


def code(gold, pred, trace=None, pred_name=None, pred_trace=None):
    return 1.0


def asking(gold, pred, trace=None, pred_name=None, pred_trace=None):
    return JUDGE(gold, pred)


class Graded:
    def score(self, gold, pred, trace=None, pred_name=None, pred_trace=None):
        return JUDGE(gold, pred)


def closing(lm):
    return lambda gold, pred, trace=None, pred_name=None, pred_trace=None: lm("Right?")


def test_one_model_by_any_provider_and_setting_is_one_model() -> None:
    assert same_model(STRONG, SAME)
    assert same_model(STRONG, STRONG.copy(temperature=0.3))
    assert same_model("gpt-5", STRONG)
    assert not same_model(STRONG, OTHER)
    assert not same_model(None, None)
    assert not same_model(None, STRONG)


@pytest.mark.parametrize(
    "metric", [JUDGE, asking, Graded().score, closing(SAME), functools.partial(asking, trace=[])]
)
def test_a_judge_that_proposes_is_refused_without_a_calibration(metric) -> None:
    with pytest.raises(ArgumentValueError, match="own examiner") as caught:
        check_roles(metric, STRONG)
    assert caught.value.argument == "metric"
    check_roles(metric, OTHER)
    check_roles(metric, STRONG, calibration=Calibration(code))


def test_a_metric_that_refers_to_what_is_assigned_later_names_no_judge() -> None:
    def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
        return later(gold, pred)

    check_roles(metric, STRONG)
    later = code


def test_a_judge_without_an_lm_uses_dspys() -> None:
    for proposer in (STRONG, None):
        with pytest.raises(ArgumentValueError):
            check_roles(Judge("Right?"), proposer, default=SAME)
    check_roles(Judge("Right?"), STRONG, default=OTHER)
    check_roles(Judge("Right?"), STRONG)


def test_a_program_that_judges_is_seen() -> None:
    program = dspy.ChainOfThought("question, answer -> score: float")
    with pytest.raises(ArgumentValueError):
        check_roles(program, STRONG, default=SAME)
    program.set_lm(OTHER)
    check_roles(program, STRONG, default=SAME)


def test_a_reference_that_proposes_calibrates_nothing() -> None:
    with pytest.raises(ArgumentValueError) as caught:
        check_roles(JUDGE, STRONG, calibration=Calibration(JUDGE))
    assert caught.value.argument == "calibration"


def test_a_smaller_judge_may_be_held_to_the_model_that_proposes() -> None:
    check_roles(Judge("Right?", lm=OTHER), STRONG, calibration=Calibration(JUDGE))


def test_code_is_no_judge_until_it_is_heard() -> None:
    check_roles(code, STRONG)
    check_roles_heard(
        [CallUsage("evaluator", "openai/gpt-5-mini"), CallUsage("proposer", "openai/gpt-5")], STRONG
    )
    with pytest.raises(ArgumentValueError, match="has called the model that proposes"):
        check_roles_heard([CallUsage("evaluator", "openai/gpt-5", calls=1)], STRONG)
