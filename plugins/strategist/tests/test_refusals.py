"""Every refusal, and the ways that somebody might try around it."""

from __future__ import annotations

from dataclasses import replace

import dspy
import pytest
from dspy.utils import DummyLM

from combee_dspy import Budget, Combee, Diversity, Validation
from combee_dspy.costs import totals
from combee_dspy.diversity import Temperature
from combee_dspy.evaluation import (
    Calibration,
    CostPerPoint,
    Heldout,
    Judge,
    PairedDifference,
    SerialBaseline,
)
from combee_dspy.exceptions import ArgumentError, ArgumentValueError, RefusedError
from combee_dspy.report import CombeeReport
from combee_dspy.stopping import Patience, Target
from combee_strategist.planning import check_converged, check_headline, check_search, diagnose
from plugins.strategist.tests.searches import CONVERGED, search

ROWS = [dspy.Example(question=f"{n}", answer="a").with_inputs("question") for n in range(20)]
SPLITS = {"trainset": ROWS[:10], "valset": ROWS[10:]}
BETTER = PairedDifference(0.4, 0.6, 0.2, 0.1, 0.3, 200, 0.95)
DONE = diagnose(search(CONVERGED))


def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
    return 1.0


def combee(scorer=metric, lm=None, **given):
    given = {"budget": Budget(rollouts=100), **given}
    return Combee(scorer, reflection_lm=lm or DummyLM([]), tracker=(), **given)


def report(**given):
    measured = CostPerPoint.of(
        SerialBaseline(0.5), 0.6, SerialBaseline(0.6), point=0.01, versus=BETTER
    )
    whole = {"heldout": BETTER, "per_point": measured, **given}
    return CombeeReport("done", 0.4, 0.6, 100, 10, 1.0, totals([]), **whole)


def refused(match, call, *arguments, **given):
    with pytest.raises(RefusedError, match=match) as caught:
        call(*arguments, **given)
    assert caught.value.reason
    assert caught.value.remedy.endswith(".")


def test_defaults_are_refused_nothing():
    check_search(combee(), **SPLITS)
    check_search(combee(num_threads=512), workers=512, **SPLITS)
    check_search(
        combee(reflection_minibatch_size=3),
        reasons={"controller": "as the serial baseline had"},
        **SPLITS,
    )
    check_converged(DONE)
    check_headline(report())


@pytest.mark.parametrize(
    "diversity",
    [
        False,
        Diversity.off(),
        Diversity(
            embedder=None, temperature=Temperature()
        ),  # something is on, but not what refuses copies
        Diversity(threshold=0.9999),  # on, and refuses nothing
    ],
)
def test_many_workers_with_diversity_off(diversity):
    for workers in (9, 63, 64):
        refused(f"{workers} workers with", combee, num_threads=workers, diversity=diversity)
    narrow = combee(num_threads=8, diversity=diversity)
    check_search(narrow, **SPLITS)
    # The service's own number is as many.
    refused("diversity off", check_search, narrow, workers=63, **SPLITS)


@pytest.mark.parametrize(
    "reasons", [None, {}, {"cache": ""}, {"cache": "x y"}, {"caches": "the metric is random here"}]
)
def test_a_cache_that_is_off_without_a_reason(reasons):
    refused("cache that is off", check_search, combee(cache=False), reasons=reasons, **SPLITS)
    check_search(combee(cache=False), reasons={"cache": "the metric reads the clock"}, **SPLITS)


@pytest.mark.parametrize(
    "given",
    [
        {"reflection_minibatch_size": 8},
        {"controller": {"name": "static", "params": {"size": 8, "reason": "."}}},
        {
            "controller": {
                "name": "static",
                "params": {"size": 8, "reason": "reflection_minibatch_size was given"},
            }
        },
    ],
)
def test_a_static_batch_without_a_reason(given):
    refused("static batch", check_search, combee(**given), **SPLITS)
    check_search(combee(**given), reasons={"controller": "eight rows fill one page"}, **SPLITS)


def test_a_static_batch_needs_a_reason_to_be_made_at_all():
    with pytest.raises(ArgumentValueError, match="reason"):
        combee(controller={"name": "static", "params": {"size": 8, "reason": "  "}})


@pytest.mark.parametrize("rule", [Patience(updates=3), Target(score=0.9)])
@pytest.mark.parametrize(
    "nested", [lambda rule: rule, lambda rule: Budget(rollouts=9) | (Budget(dollars=1) & rule)]
)
@pytest.mark.parametrize("valset", [None, [], ROWS[:10], ROWS[9:]])
def test_patience_on_the_training_score(rule, nested, valset):
    refused(
        "training score",
        check_search,
        combee(budget=nested(rule)),
        trainset=ROWS[:10],
        valset=valset,
    )
    check_search(combee(budget=nested(rule)), **SPLITS)


def test_patience_cannot_be_told_to_read_the_training_score():
    with pytest.raises(ArgumentValueError, match="training score"):
        Patience(updates=3, on="train")


def test_a_proposer_as_judge_without_a_calibration():
    strong, other = dspy.LM("openai/strong"), dspy.LM("openai/small")
    judge = Judge(
        "Is it right?", lm=dspy.LM("openai/strong", temperature=0.3)
    )  # another object of the same model
    with pytest.raises(ArgumentValueError, match="examiner"):
        check_search(combee(judge, strong), **SPLITS)
    for reference, passes in ((judge, False), (metric, True)):
        calibrated = combee(
            judge, strong, validation=Validation(calibration=Calibration(reference))
        )
        if passes:
            check_search(calibrated, **SPLITS)
        else:
            with pytest.raises(ArgumentValueError, match="examiner"):
                check_search(calibrated, **SPLITS)
    check_search(combee(Judge("Is it right?", lm=other), strong), **SPLITS)


def test_parallelism_before_convergence():
    refused("without a diagnosis", check_converged, None)
    for levels in ([0.4] * 15, [0.4 + 0.02 * step for step in range(15)]):
        refused("before convergence", check_converged, diagnose(search(levels)))
    refused("before convergence", check_converged, diagnose(search(CONVERGED, rows=20)))


def test_a_headline_without_a_baseline():
    refused("without a baseline", check_headline, replace(report(), per_point=None))


def test_a_papers_numbers_as_a_headline():
    # Typed in, however completely; and what was measured here with another model than the paper's.
    typed = CostPerPoint.of(
        SerialBaseline(0.62, 1200, 2e6, 3.0, 7200, 900), 0.7, SerialBaseline(0.7), point=0.01
    )
    refused("paper", check_headline, replace(report(), per_point=typed))
    for number in (17.0, {"points": 0.62}):
        with pytest.raises(ArgumentError):
            Heldout(ROWS, baseline=number)


def test_a_headline_of_a_run_that_claims_nothing():
    refused("held-out", check_headline, report(heldout=None))
    refused(
        "supports no claim", check_headline, report(warnings=("The judge was not calibrated.",))
    )
