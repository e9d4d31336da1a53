"""Who scores: judges, their calibration, and a ceiling on what scoring may cost, in whole runs."""

from __future__ import annotations

import re
from typing import Any

import dspy
import pytest

from combee_dspy import Combee
from combee_dspy.evaluation import Calibration, CostCeiling, Judge
from combee_dspy.events import CalibrationFinished, CandidateProposed, RolloutFinished, ScheduleDecided
from combee_dspy.exceptions import ArgumentValueError, CalibrationFailedError
from combee_dspy.rollouts import scorer_fingerprint
from combee_dspy.testing._scripted_lm import ScriptedLM, as_chat
from tests.engine.conftest import Recorder

CRITERIA = "The code word of the animal."


def _learn(request: Any) -> str:
    rules = list(dict.fromkeys(re.findall(r"Rule: the word for \w+ is \w+", request.text)))
    return as_chat({"lessons": rules})


def _verdict(request: Any, turned: bool = False) -> str:
    task, response = request.last.split("[[ ## response ## ]]")
    animal = re.findall(r"word for (\w+)\?", task)[-1]
    word = animal[::-1].upper()
    right = word in response
    feedback = "Right." if right else f"Rule: the word for {animal} is {word}"
    return as_chat({"feedback": feedback, "score": float(right != turned)})


def _both(turned: bool) -> ScriptedLM:
    """One LM that proposes and judges."""

    def answer(request: Any) -> str:
        return _verdict(request, turned) if "[[ ## criteria ## ]]" in request.text else _learn(request)

    return ScriptedLM(answer, model="scripted/one-for-all")


def _run(world: Any, metric: Any, proposer: Any, **kwargs: Any) -> tuple[dspy.Module, Recorder]:
    given = {
        "max_metric_calls": 120,
        "reflection_minibatch_size": 6,
        "operators": ["insert"],
        "num_threads": 4,
        "probe": False,
        **kwargs,
    }
    heldout = given.pop("heldout", None)
    hook = given.pop("hook", None) or Recorder()
    program = Combee(metric, reflection_lm=proposer, hooks=[hook], **given).compile(
        world.student(), trainset=world.examples(24), valset=world.examples(12, start=48), heldout=heldout
    )
    return program, hook


def test_a_judge_that_is_the_proposer_is_refused_before_anything_is_bought(world: Any) -> None:
    lm = _both(turned=False)
    copy = ScriptedLM(_learn, model="elsewhere/one-for-all", temperature=0.1)
    for proposer in (lm, copy):
        with pytest.raises(ArgumentValueError, match="its own examiner"):
            _run(world, Judge(CRITERIA, lm=lm), proposer)
    assert not lm.requests
    assert not world.task_lm.requests


def test_a_reference_that_is_the_proposer_too_is_refused(world: Any) -> None:
    lm = _both(turned=False)
    calibration = Calibration(Judge(CRITERIA, lm=lm))
    with pytest.raises(ArgumentValueError, match="reference"):
        _run(world, Judge(CRITERIA, lm=lm), lm, calibration=calibration)
    assert not world.task_lm.requests


def test_a_function_that_is_heard_calling_the_proposer_is_refused(world: Any) -> None:
    lm = _both(turned=False)
    judge = Judge(CRITERIA, lm=lm)

    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        return judge(gold, pred, trace, pred_name, pred_trace)

    with pytest.raises(ArgumentValueError, match="its own examiner"):
        _run(world, metric, lm)
    assert not lm.requests
    assert not world.task_lm.requests

    # One that reaches its judge in a way that cannot be read is heard as soon as it has judged.
    hidden = [metric]

    def quiet(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        return hidden[0](gold, pred, trace, pred_name, pred_trace)

    hook = Recorder()
    with pytest.raises(ArgumentValueError, match="called the model that proposes"):
        _run(world, quiet, lm, hook=hook)
    assert hook.of(RolloutFinished)
    assert not hook.of(CandidateProposed), "not one minibatch was learned from"


def test_a_judge_that_disagrees_with_the_reference_ends_the_run(world: Any) -> None:
    lm, hook = _both(turned=True), Recorder()
    with pytest.raises(CalibrationFailedError, match=r"-1\.000"):
        _run(world, Judge(CRITERIA, lm=lm), lm, calibration=Calibration(world.metric, minimum=10), hook=hook)
    (found,) = hook.of(CalibrationFinished)
    assert (found.subject, found.passed, found.correlation, found.threshold) == ("judge", False, -1.0, 0.7)
    assert found.low <= found.correlation <= found.high < 0.7
    assert found.size == len(found.pairs) >= 10
    assert set(found.pairs) == {(0.0, 1.0), (1.0, 0.0)}
    after = hook.events[hook.events.index(found) :]
    asked = [event for event in after if isinstance(event, RolloutFinished) and event.purpose != "speculative"]
    assert not asked, "nothing was bought any more"


def test_a_judge_that_agrees_goes_on_and_both_numbers_are_told(world: Any) -> None:
    lm = _both(turned=False)
    calibration = Calibration(world.metric, minimum=6)
    program, hook = _run(world, Judge(CRITERIA, lm=lm), lm, calibration=calibration)
    found = hook.of(CalibrationFinished)
    assert found
    assert all(event.passed and event.correlation == 1.0 for event in found)
    assert all(set(event.pairs) == {(0.0, 0.0), (1.0, 1.0)} for event in found)
    assert program.combee_report.best_score > program.combee_report.seed_score
    # A share is judged by both, not every rollout.
    bought = sum(not event.cached for event in hook.of(RolloutFinished))
    assert 6 <= found[-1].size < 0.5 * bought


def test_the_sample_does_not_depend_on_the_workers(world: Any) -> None:
    found = []
    for threads in (1, 8):
        lm = _both(turned=False)
        calibration = Calibration(world.metric, minimum=10)
        _, hook = _run(world, Judge(CRITERIA, lm=lm), lm, calibration=calibration, num_threads=threads)
        found.append([(event.iteration, event.correlation, event.pairs) for event in hook.of(CalibrationFinished)])
    assert found[0]
    assert found[0] == found[1]


def _judge_lm() -> ScriptedLM:
    return ScriptedLM(_verdict, model="scripted/dear-judge")


def test_where_judging_costs_too_much_the_proxy_takes_over(world: Any) -> None:
    lm = _judge_lm()
    judge = Judge(CRITERIA, lm=lm)
    heldout = world.examples(10, start=200)
    program, hook = _run(
        world,
        judge,
        world.proposer_lm,
        ceiling=CostCeiling(world.metric, tokens=10, sample=12),
        heldout=heldout,
        finalists=1,
    )
    decided = [event for event in hook.of(ScheduleDecided) if event.decision == "evaluator"]
    assert [event.values["score_by"] for event in decided] == ["full", "proxy"]
    assert decided[1].values["mean_cost"] > decided[1].values["ceiling"] == 10
    (calibrated,) = hook.of(CalibrationFinished)
    assert (calibrated.subject, calibrated.passed, calibrated.size) == ("proxy", True, decided[1].values["pairs"])
    switch = hook.events.index(decided[1])
    before = [event for event in hook.events[:switch] if isinstance(event, RolloutFinished) and not event.cached]
    after = [event for event in hook.events[switch:] if isinstance(event, RolloutFinished) and not event.cached]
    assert any(event.split != "heldout" for event in after)
    # The judge scores what came before, and then the held-out rows of both programs and nothing else.
    assert sum(event.split == "heldout" for event in after) == 20
    scored = len(before) + 20
    assert scored <= len(lm.requests) <= scored + len(before), "feedback on single predictors may ask again"
    for row in heldout:
        assert sum(row.question in request.text for request in lm.requests) == 2
    assert program.combee_report.receipt.scorer == scorer_fingerprint(judge)


def test_a_proxy_that_disagrees_ends_the_run(world: Any) -> None:
    def turned(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> float:
        return 1.0 - world.metric(gold, pred).score

    hook = Recorder()
    with pytest.raises(CalibrationFailedError, match="proxy"):
        _run(
            world,
            Judge(CRITERIA, lm=_judge_lm()),
            world.proposer_lm,
            ceiling=CostCeiling(turned, tokens=10, sample=12),
            hook=hook,
        )
    (found,) = hook.of(CalibrationFinished)
    assert (found.subject, found.passed) == ("proxy", False)


def test_below_the_ceiling_nothing_changes(world: Any) -> None:
    _, hook = _run(
        world, Judge(CRITERIA, lm=_judge_lm()), world.proposer_lm, ceiling=CostCeiling(world.metric, tokens=10**6)
    )
    assert not [event for event in hook.of(ScheduleDecided) if event.decision == "evaluator"]
    assert not hook.of(CalibrationFinished)
