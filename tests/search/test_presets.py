"""Presets: a known way to run, in one argument."""

from __future__ import annotations

import dspy
import pytest

from combee_dspy import Budget, Costs, Price
from combee_dspy.aggregators import ParallelScan
from combee_dspy.controllers import PowerLaw
from combee_dspy.evaluation import Judge
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.presets import paper, within_ceiling
from combee_dspy.testing import ScriptedLM
from tests.worlds import World, examples, in_kind, metric


def test_the_papers_preset_learns_by_the_papers_parts() -> None:
    world = World.made()
    combee = world.combee(**paper(), budget=Budget(rollouts=120))
    assert (combee.settings.keep, combee.settings.staleness) == ("pareto", 0)
    assert combee.settings.aggregator == ParallelScan(placement="plain")
    assert combee.settings.controller == PowerLaw(profile=3)
    report = world.compile(**paper(), budget=Budget(rollouts=120)).combee_report
    assert report.best_score > report.seed_score
    assert report.updates >= 2


PRICES = Costs(prices={"dear": Price(10, 40), "small": Price(1, 4)})


def judge(model: str) -> Judge:
    """Return a judge that is right about code words; its LM counts what it is asked."""

    def verdict(request):
        (row,) = (row for row in examples(24) if row.question in request.text)
        said = dspy.Prediction(answer=row.answer if f'"{row.answer}"' in request.text else "")
        answer = metric(row, said)
        return in_kind(request, {"feedback": answer.feedback, "score": answer.score})

    return Judge("The code word.", lm=ScriptedLM(verdict, model=model, temperature=0.0))


def test_above_the_ceiling_a_smaller_judge_takes_over_with_a_calibration_sample() -> None:
    dear, small, rows = judge("scripted/dear"), judge("scripted/small"), examples(24)
    # About 730 tokens in and 150 out: 1.3 cents, and 0.13 cents.
    assert within_ceiling(dear, small, rows, dollars=0.015, costs=PRICES) == {"metric": dear}
    chosen = within_ceiling(dear, small, rows, dollars=0.002, share=0.5, costs=PRICES)
    assert chosen["metric"] is small
    assert chosen["validation"].calibration.reference is dear
    chosen["validation_options"] = chosen.pop("validation")
    report = World.made().compile(**chosen, validation=0, budget=Budget(rollouts=60)).combee_report
    assert report.calibration is not None
    assert len(dear.lm.requests) == report.calibration.n > 10
    assert len(small.lm.requests) > len(dear.lm.requests)


def test_a_ceiling_that_cannot_be_kept_or_reckoned_is_refused() -> None:
    dear, small, rows = judge("scripted/dear"), judge("scripted/small"), examples(2)
    with pytest.raises(ArgumentValueError, match=r"below the \$0.00\d+ that the smaller judge"):
        within_ceiling(dear, small, rows, dollars=0.0001, costs=PRICES)
    with pytest.raises(ArgumentValueError, match="has no known price"):
        within_ceiling(dear, small, rows, dollars=1)
    with pytest.raises(ArgumentValueError, match="rows"):
        within_ceiling(dear, small, [], dollars=1, costs=PRICES)
