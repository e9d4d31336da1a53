"""Who scores: judges that propose, and their calibration, in whole runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from combee_dspy import Budget, Search, Validation
from combee_dspy.evaluation import Calibration, Judge
from combee_dspy.exceptions import ArgumentValueError, CalibrationFailedError
from combee_dspy.testing import ScriptedLM
from tests.worlds import World, gepa_metric, in_kind, metric, proposer_answer, rows

CRITERIA = "The code word of the animal."


def one_for_all(turned: bool = False) -> ScriptedLM:
    """One LM that proposes and judges."""

    def answer(request: Any) -> str:
        if "[[ ## criteria ## ]]" not in request.text:
            return proposer_answer(request)
        task, response = request.last.split("[[ ## response ## ]]")
        animal = re.findall(r"word for (\w+)\?", task)[-1]
        word = animal[::-1].upper()
        right = word in response
        feedback = "Right." if right else f"Rule: the word for {animal} is {word}"
        return in_kind(request, {"feedback": feedback, "score": float(right != turned)})

    return ScriptedLM(answer, model="scripted/one-for-all", temperature=0.0)


def test_a_judge_that_proposes_is_refused_before_anything_is_bought(world: World) -> None:
    lm = one_for_all()
    with pytest.raises(ArgumentValueError, match="its own examiner"):
        world.compile(metric=Judge(CRITERIA, lm=lm), reflection_lm=lm)
    assert not world.asked
    assert not lm.requests


def test_a_metric_that_is_heard_calling_the_proposer_ends_the_run(
    world: World, tmp_path: Path
) -> None:
    lm = one_for_all()
    hidden = [Judge(CRITERIA, lm=lm)]

    @gepa_metric
    def quiet(gold: Any, pred: Any, pred_name: str | None) -> Any:
        return list(map(lambda judge: judge(gold, pred), hidden))[0]  # noqa: C417, RUF015 - not read off the code

    with pytest.raises(ArgumentValueError, match=r"the model that proposes|its own examiner"):
        world.compile(metric=quiet, reflection_lm=lm, log_dir=tmp_path)
    assert not rows(
        tmp_path, "SELECT 1 FROM event WHERE kind = 'validated' AND data LIKE '%\"index\":1%'"
    )


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_calibrated_judge_may_propose_and_is_paid_once(
    world: World, tmp_path: Path, staleness: int
) -> None:
    lm = one_for_all()
    told: list[str] = []

    @gepa_metric
    def reference(gold: Any, pred: Any, pred_name: str | None) -> Any:
        told.append(gold.question)
        return metric(gold, pred)

    calibration = Calibration(reference, minimum=4, share=1.0)
    report = world.compile(
        metric=Judge(CRITERIA, lm=lm),
        reflection_lm=lm,
        log_dir=tmp_path,
        validation=12,
        reflection_minibatch_size=6,
        validation_options=Validation(calibration=calibration),
        search=Search(staleness=staleness),
    ).combee_report
    assert report.best_score == 1.0
    assert told
    judged = [request for request in lm.requests if "[[ ## criteria ## ]]" in request.text]
    # A judge of whole rollouts is not asked again for what it says of each predictor.
    assert len(judged) == report.rollouts
    by_role = {
        row["role"]: row["n"]
        for row in rows(tmp_path, "SELECT role, sum(calls) AS n FROM usage GROUP BY role")
    }
    assert by_role["evaluator"] == len(judged)
    assert by_role["proposer"] == len(lm.requests) - len(judged)


def test_a_judge_that_disagrees_with_the_reference_ends_the_run(world: World) -> None:
    lm = one_for_all(turned=True)
    calibration = Calibration(metric, minimum=6, share=1.0)
    with pytest.raises(CalibrationFailedError, match=r"-1\.000"):
        world.compile(
            metric=Judge(CRITERIA, lm=lm),
            reflection_lm=lm,
            validation_options=Validation(calibration=calibration),
            reflection_minibatch_size=12,
            budget=Budget(updates=5),
            search=Search(keep="pareto", staleness=0),
        )
    assert len(world.task_lm.requests) <= 12 + 12 + 12 + 12
