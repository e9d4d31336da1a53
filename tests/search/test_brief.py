"""The preset as it is written, in a whole run, and what a run is warned of."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from combee_dspy import Budget, Validation
from combee_dspy.evaluation import Calibration, Judge
from combee_dspy.presets import brief
from combee_dspy.testing import ScriptedLM
from tests.worlds import World, in_kind, proposer_answer, rows

CRITERIA = "The code word of the animal."


def judging(model: str) -> ScriptedLM:
    """An LM that judges, and proposes where it is asked to."""

    def answer(request: Any) -> str:
        if "[[ ## criteria ## ]]" not in request.text:
            return proposer_answer(request)
        task, response = request.last.split("[[ ## response ## ]]")
        animal = re.findall(r"word for (\w+)\?", task)[-1]
        word = animal[::-1].upper()
        return in_kind(
            request, {"feedback": f"Rule: the word for {animal} is {word}", "score": float(word in response)}
        )

    return ScriptedLM(answer, model=model, temperature=0.0)


def test_the_preset_runs_with_a_smaller_judge_held_to_the_model_that_proposes(world: World, tmp_path: Path) -> None:
    small, strong = judging("scripted/small"), judging("scripted/strong")
    settings = brief(Judge(CRITERIA, lm=small), Judge(CRITERIA, lm=strong), serial_rollouts=80, serial_score=1.0)
    # A run of this size buys too few rollouts for 5 % of them to tell anything: all are judged by both.
    del settings["validation"]
    settings["validation_options"] = Validation(calibration=Calibration(Judge(CRITERIA, lm=strong), share=1.0))
    report = world.compile(
        **settings, reflection_lm=strong, log_dir=tmp_path, train=48, reflection_minibatch_size=24
    ).combee_report
    assert report.rollouts <= 320
    assert report.best_score > report.seed_score
    assert any(reason in report.reason for reason in ("patience", "rollouts"))
    found = {
        (row["model"], row["role"]): row["n"]
        for row in rows(tmp_path, "SELECT model, role, sum(calls) AS n FROM usage WHERE role = 'evaluator' GROUP BY 1")
    }
    # The reference judges a share, the smaller judge everything.
    assert 4 <= found["scripted/strong", "evaluator"] < found["scripted/small", "evaluator"]


def test_the_preset_is_what_it_says() -> None:
    judge, reference = Judge(CRITERIA), Judge(CRITERIA)
    found = brief(judge, reference, serial_rollouts=300, serial_score=0.8, serial_workers=4)
    assert found["num_threads"] == 32
    assert str(found["executor"].batching.flush) == "queue_at_least('target') | waited(0.2) | variance_below(0.01)"
    assert len(found["operators"]) == 4
    assert found["validation"].calibration == Calibration(reference, share=0.05, threshold=0.7)
    _, threshold = found["diversity"].build_embedder()
    assert threshold == found["diversity"].build_embedder()[0].threshold()
    limits = repr(found["budget"])
    assert all(part in limits for part in ("rollouts=1200", "updates=3", "score=0.81"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_threads": 64, "diversity": False}, ["diversity"]),
        ({"num_threads": 2, "diversity": False}, []),
        ({"cache": False}, ["cache"]),
        ({"num_threads": 64}, []),
    ],
)
def test_many_workers_without_diversity_and_no_cache_are_warned_of_by_name(
    world: World, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], said: list[str]
) -> None:
    with caplog.at_level(logging.WARNING, "combee_dspy"):
        world.compile(**settings, budget=Budget(updates=1))
    warned = [one.getMessage().partition(" ")[0] for one in caplog.records if "is off" in one.getMessage()]
    assert warned == said
