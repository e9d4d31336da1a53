"""What the preset sets, and what a run is warned of."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from typing import Any

import pytest

from combee_dspy import Budget, Validation
from combee_dspy.evaluation import Calibration, Judge, compare_sizes
from combee_dspy.exceptions import CalibrationFailedError, RefusedError
from combee_dspy.operators import FewShotSwap, InstructionChannel, Reorder, Rephrase
from combee_dspy.presets import brief
from combee_dspy.rollouts import Batching
from combee_dspy.testing import ScriptedLM, ScriptedRequest
from tests.worlds import ANIMALS, World, code_word, in_kind, proposer_answer

CRITERIA = "The code word of the animal."


def test_the_preset_is_what_it_says() -> None:
    judge, reference = Judge(CRITERIA), Judge(CRITERIA)
    found = brief(
        judge,
        reference,
        proposer=judging("scripted/strong"),
        serial_rollouts=300,
        serial_score=0.8,
        serial_workers=4,
    )
    assert found["num_threads"] == 32
    assert found["executor"].batching == Batching("target", seconds=0.2, variance=0.01)
    edits = (Rephrase, Reorder, FewShotSwap, InstructionChannel)
    assert found["operators"] == ("insert", *(operator.name for operator in edits))
    assert not any(operator.needs_lessons for operator in edits), "no lesson would enter by these"
    assert found["validation"].calibration == Calibration(reference, share=0.05, threshold=0.7)
    _, threshold = found["diversity"].build_embedder()
    assert threshold == found["diversity"].build_embedder()[0].threshold()
    limits = repr(found["budget"])
    assert all(part in limits for part in ("rollouts=1200", "updates=3", "score=0.81"))


@pytest.mark.parametrize(
    ("judge", "proposer", "smaller"),
    [
        ("openai/qwen2.5-1.5b-instruct", "openai/llama-3.3-70b", True),
        ("openai/llama-3.3-70b", "openai/qwen2.5-1.5b-instruct", False),
        ("hub/SmolLM2-135M", "hub/SmolLM2-1.7B", True),
        ("hub/mixtral-8x7b", "hub/mixtral-8x7b", None),
        ("openai/gpt-4o-mini", "openai/gpt-4o", True),
        ("openai/gpt-4o", "openai/gpt-4o-mini", False),
        ("scripted/small", "scripted/strong", None),
    ],
)
def test_the_judge_of_the_preset_is_not_known_to_be_as_large_as_the_proposer(
    judge: str, proposer: str, smaller: bool | None
) -> None:
    assert compare_sizes(judge, proposer).smaller is smaller
    metric = Judge(CRITERIA, lm=judging(judge))

    def start() -> None:
        strong = judging(proposer)
        brief(metric, metric, proposer=strong, serial_rollouts=300, serial_score=0.8)

    if smaller is False:
        with pytest.raises(RefusedError, match="no smaller than the proposer"):
            start()
    else:
        start()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_threads": 2, "diversity": False}, []),
        ({"cache": False}, ["cache"]),
        ({"num_threads": 64}, []),
    ],
)
def test_a_cache_that_is_off_is_warned_of(
    world: World, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], said: list[str]
) -> None:
    with caplog.at_level(logging.WARNING, "combee_dspy"):
        world.compile(**settings, budget=Budget(updates=1))
    warned = [
        one.getMessage().partition(" ")[0] for one in caplog.records if "is off" in one.getMessage()
    ]
    assert warned == said


def judging(model: str, *, turned: bool = False, proposes: bool = False) -> ScriptedLM:
    """Judges right answers to be better the later their animal's place in the alphabet; may propose
    too.
    """

    def answer(request: ScriptedRequest) -> str:
        if proposes and "[[ ## criteria ## ]]" not in request.text:
            return proposer_answer(request)
        task, response = request.last.split("[[ ## response ## ]]")
        animal = re.findall(r"word for (\w+)\?", task)[-1]
        right = code_word(animal) in response
        score = (right + ANIMALS.index(animal) / len(ANIMALS)) / 2
        feedback = f"Rule: the word for {animal} is {code_word(animal)}"
        return in_kind(request, {"feedback": feedback, "score": 1 - score if turned else score})

    return ScriptedLM(answer, model=model, temperature=0.0)


def started(world: World, *, turned: bool = False, **changes: Any) -> Any:
    """Compile by the preset: a small judge held to a strong one, which proposes too."""
    small, strong = (
        judging("scripted/small", turned=turned),
        judging("scripted/strong", proposes=True),
    )
    given = brief(
        Judge(CRITERIA, lm=small),
        Judge(CRITERIA, lm=strong),
        proposer=strong,
        serial_rollouts=25,
        serial_score=0.9,
        serial_workers=2,
    )
    # A short run: all rollouts are judged by both, so that there are enough.
    kept = Validation(calibration=replace(given.pop("validation").calibration, share=1.0))
    return world.compile(**{**given, "validation_options": kept, **changes})


def test_a_compile_by_the_preset_holds_the_judge_to_the_model_that_proposes(world: World) -> None:
    program = started(world, budget=Budget(updates=2))
    found = program.combee_report.calibration
    assert found.passed
    assert found.n >= 10
    assert (found.correlation, found.threshold) == (1.0, 0.7)
    assert program.combee_report.best_score > program.combee_report.seed_score


def test_a_judge_that_disagrees_ends_a_compile_by_the_preset_and_keeps_what_was_found(
    world: World,
) -> None:
    with pytest.raises(CalibrationFailedError, match=r"-1\.000") as caught:
        started(world, turned=True, budget=Budget(updates=2))
    assert caught.value.program is not None  # type: ignore[attr-defined]


def test_a_run_that_ends_before_the_judge_is_told_keeps_its_program_and_supports_no_claim(
    world: World,
) -> None:
    strong = judging("scripted/strong", proposes=True)
    validation = Validation(calibration=Calibration(Judge(CRITERIA, lm=strong), share=0.05))
    program = started(world, validation_options=validation, budget=Budget(updates=1), heldout=6)
    report = program.combee_report
    assert not report.calibration.passed
    assert report.heldout is not None
    assert not report.supports_claims
    assert any("not shown to agree" in one and "judged by both" in one for one in report.warnings)
