"""Presets, and judges: held to a reference, and never the model that proposes unless they are."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Costs, Price, Search, Validation
from combee_dspy.aggregators import ParallelScan
from combee_dspy.controllers import PowerLaw
from combee_dspy.evaluation import Calibration, Judge, compare_sizes
from combee_dspy.exceptions import ArgumentValueError, CalibrationFailedError, RefusedError
from combee_dspy.operators import FewShotSwap, InstructionChannel, Reorder, Rephrase
from combee_dspy.presets import brief, paper, within_ceiling
from combee_dspy.rollouts import Batching
from combee_dspy.testing import ScriptedLM, ScriptedRequest
from tests.worlds import (
    ANIMALS,
    World,
    animal_of,
    code_word,
    events,
    examples,
    gepa_metric,
    in_kind,
    metric,
    proposer_answer,
)

CRITERIA = "The code word of the animal."


def judging(model: str, *, turned: bool = False, proposes: bool = False) -> ScriptedLM:
    """Return an LM that judges right answers to be better the later their animal's place in the
    alphabet, or the other way around; it may propose, too.
    """

    def answer(request: ScriptedRequest) -> str:
        if proposes and "[[ ## criteria ## ]]" not in request.text:
            return proposer_answer(request)
        task, response = request.last.split("[[ ## response ## ]]")
        animal = animal_of(task)
        right = code_word(animal) in response
        score = (right + ANIMALS.index(animal) / len(ANIMALS)) / 2
        feedback = f"Rule: the word for {animal} is {code_word(animal)}"
        return in_kind(request, {"feedback": feedback, "score": 1 - score if turned else score})

    return ScriptedLM(answer, model=model, temperature=0.0)


def test_the_papers_preset_learns_by_the_papers_parts(world: World) -> None:
    settings = world.combee(**paper(), budget=Budget(rollouts=120)).settings
    assert (settings.keep, settings.staleness) == ("pareto", 0)
    assert settings.aggregator == ParallelScan(placement="plain")
    assert settings.controller == PowerLaw(profile=3)
    report = world.compile(**paper(), budget=Budget(rollouts=120)).combee_report
    assert report.best_score > report.seed_score
    assert report.updates >= 2


def test_the_brief_preset_follows_from_the_serial_run() -> None:
    judge, reference = Judge(CRITERIA), Judge(CRITERIA)
    settings = brief(
        judge,
        reference,
        proposer=judging("scripted/strong"),
        serial_rollouts=300,
        serial_score=0.8,
        serial_workers=4,
    )
    assert settings["search"].keep == "pareto"
    assert settings["num_threads"] == 32
    assert settings["executor"].batching == Batching("target", seconds=0.2, variance=0.01)
    edits = (Rephrase, Reorder, FewShotSwap, InstructionChannel)
    assert settings["operators"] == ("insert", *(operator.name for operator in edits))
    assert settings["validation"].calibration == Calibration(reference, share=0.05, threshold=0.7)
    embedder, threshold = settings["diversity"].build_embedder()
    assert threshold == embedder.threshold()
    limits = repr(settings["budget"])
    assert all(part in limits for part in ("rollouts=1200", "updates=3", "score=0.81"))


@pytest.mark.parametrize(
    ("judge", "proposer", "smaller"),
    [
        ("openai/qwen2.5-1.5b-instruct", "openai/llama-3.3-70b", True),
        ("openai/llama-3.3-70b", "openai/qwen2.5-1.5b-instruct", False),
        ("hub/mixtral-8x7b", "hub/mixtral-8x7b", None),
        ("openai/gpt-4o-mini", "openai/gpt-4o", True),
        ("openai/gpt-4o", "openai/gpt-4o-mini", False),
        ("scripted/small", "scripted/strong", None),
    ],
)
def test_a_judge_that_is_known_to_be_no_smaller_than_the_proposer_is_refused(
    judge: str, proposer: str, smaller: bool | None
) -> None:
    assert compare_sizes(judge, proposer).smaller is smaller
    metric = Judge(CRITERIA, lm=judging(judge))
    serial = {"proposer": judging(proposer), "serial_rollouts": 300, "serial_score": 0.8}
    if smaller is False:
        with pytest.raises(RefusedError, match="no smaller than the proposer"):
            brief(metric, metric, **serial)
    else:
        brief(metric, metric, **serial)


def compile_briefly(world: World, *, turned: bool = False, **changes: Any) -> Any:
    """Compile by the preset: a small judge held to a strong one, which proposes, too."""
    strong = judging("scripted/strong", proposes=True)
    settings = brief(
        Judge(CRITERIA, lm=judging("scripted/small", turned=turned)),
        Judge(CRITERIA, lm=strong),
        proposer=strong,
        serial_rollouts=25,
        serial_score=0.9,
        serial_workers=2,
    )
    # A short run: all rollouts are judged by both, so that there are enough.
    calibration = replace(settings.pop("validation").calibration, share=1.0)
    settings["validation_options"] = Validation(calibration=calibration)
    return world.compile(**{**settings, **changes})


def test_the_brief_preset_holds_the_judge_to_the_model_that_proposes(world: World) -> None:
    report = compile_briefly(world, budget=Budget(updates=2)).combee_report
    calibration = report.calibration
    assert calibration.passed
    assert calibration.n >= 10
    assert (calibration.correlation, calibration.threshold) == (1.0, 0.7)
    assert report.best_score > report.seed_score


def test_a_judge_that_disagrees_ends_the_run_with_its_best_program(world: World) -> None:
    with pytest.raises(CalibrationFailedError, match=r"-1\.000") as caught:
        compile_briefly(world, turned=True, budget=Budget(updates=2))
    assert caught.value.program is not None  # type: ignore[attr-defined]


def test_a_run_that_ends_before_its_judge_is_calibrated_supports_no_claim(world: World) -> None:
    strong = judging("scripted/strong", proposes=True)
    validation = Validation(calibration=Calibration(Judge(CRITERIA, lm=strong), share=0.05))
    report = compile_briefly(
        world, validation_options=validation, budget=Budget(updates=1), heldout=6
    ).combee_report
    assert not report.calibration.passed
    assert report.heldout is not None
    assert not report.supports_claims
    (warning,) = (text for text in report.warnings if "not shown to agree" in text)
    assert "judged by both" in warning


def test_a_judge_that_proposes_is_refused_before_anything_is_bought(world: World) -> None:
    lm = judging("scripted/both", proposes=True)
    with pytest.raises(ArgumentValueError, match="its own examiner"):
        world.compile(metric=Judge(CRITERIA, lm=lm), reflection_lm=lm)
    assert not world.asked
    assert not lm.requests


def test_a_metric_that_turns_out_to_call_the_proposer_ends_the_run(
    world: World, tmp_path: Path
) -> None:
    lm = judging("scripted/both", proposes=True)
    hidden = [Judge(CRITERIA, lm=lm)]

    @gepa_metric
    def quiet(gold: Any, pred: Any, pred_name: str | None) -> Any:
        return list(map(lambda judge: judge(gold, pred), hidden))[0]  # noqa: C417, RUF015 - not read off the code

    with pytest.raises(ArgumentValueError, match=r"the model that proposes|its own examiner"):
        world.compile(metric=quiet, reflection_lm=lm, log_dir=tmp_path)
    assert not [event for event in events(tmp_path, "validated") if event["index"] == 1]


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_calibrated_judge_may_propose_and_is_paid_once(
    world: World, tmp_path: Path, staleness: int
) -> None:
    lm = judging("scripted/both", proposes=True)
    calibration = Calibration(metric, minimum=4, share=1.0)
    report = world.compile(
        metric=Judge(CRITERIA, lm=lm),
        reflection_lm=lm,
        log_dir=tmp_path,
        reflection_minibatch_size=6,
        validation_options=Validation(calibration=calibration),
        search=Search(staleness=staleness),
    ).combee_report
    assert report.best_score > report.seed_score
    judged = sum("[[ ## criteria ## ]]" in request.text for request in lm.requests)
    # A judge of whole rollouts is not asked again for feedback on a predictor.
    assert judged == report.rollouts
    calls = {role: sums.calls for role, sums in report.costs.by_role.items()}
    assert calls["evaluator"] == judged
    assert calls["proposer"] == len(lm.requests) - judged


@pytest.mark.parametrize(("cache", "warnings"), [(None, 0), (False, 1)])
def test_a_cache_that_is_off_is_warned_of(
    world: World, caplog: pytest.LogCaptureFixture, cache: bool | None, warnings: int
) -> None:
    with caplog.at_level(logging.WARNING, "combee_dspy"):
        world.compile(cache=cache, budget=Budget(updates=1))
    assert caplog.text.count("cache is off") == warnings


PRICES = Costs(prices={"dear": Price(10, 40), "small": Price(1, 4)})


def judge(model: str) -> Judge:
    """Return a judge that is right about code words; its LM counts its requests."""

    def verdict(request: ScriptedRequest) -> str:
        (row,) = (row for row in examples(24) if row.question in request.text)
        answer = row.answer if f'"{row.answer}"' in request.text else ""
        scored = metric(row, dspy.Prediction(answer=answer))
        return in_kind(request, {"feedback": scored.feedback, "score": scored.score})

    return Judge(CRITERIA, lm=ScriptedLM(verdict, model=model, temperature=0.0))


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


def test_a_ceiling_that_cannot_be_met_or_reckoned_is_refused() -> None:
    dear, small, rows = judge("scripted/dear"), judge("scripted/small"), examples(2)
    with pytest.raises(ArgumentValueError, match=r"below the \$0.00\d+ that the smaller judge"):
        within_ceiling(dear, small, rows, dollars=0.0001, costs=PRICES)
    with pytest.raises(ArgumentValueError, match="has no known price"):
        within_ceiling(dear, small, rows, dollars=1)
    with pytest.raises(ArgumentValueError, match="rows"):
        within_ceiling(dear, small, [], dollars=1, costs=PRICES)
