"""A metric may give scores on any scale, as with ``dspy.GEPA``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy.evaluation import Heldout, SerialBaseline, perfect_score_of
from tests.worlds import World, events, examples, metric, rows


def scaled(right: float, wrong: float = 0.0) -> Any:
    def score(
        gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
    ) -> Any:
        found = metric(gold, pred)
        return dspy.Prediction(score=right if found.score else wrong, feedback=found.feedback)

    return score


def test_a_metric_from_0_to_100_learns_what_one_from_0_to_1_learns(world: World) -> None:
    unit = world.compile(heldout=24).combee_report
    percent = World.made().compile(metric=scaled(100), heldout=24).combee_report

    assert percent.texts == unit.texts
    assert percent.rollouts == unit.rollouts
    assert percent.best_score == pytest.approx(100 * unit.best_score)
    assert percent.heldout.difference == pytest.approx(100 * unit.heldout.difference)


@pytest.mark.parametrize(("right", "wrong"), [(10, 1), (100, 40), (640, -3)])
def test_wrong_answers_may_score_above_1_too(world: World, right: float, wrong: float) -> None:
    report = world.compile(metric=scaled(right, wrong)).combee_report

    assert report.best_score == right > report.seed_score


def test_it_is_said_once_and_where_perfect_score_is_given_it_is_not(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "combee_dspy"):
        world.compile(metric=scaled(100), log_dir=tmp_path / "default")
        World.made().compile(metric=scaled(100), perfect_score=100, log_dir=tmp_path / "given")

    def warnings(name: str) -> list[str]:
        texts = [event["text"] for event in events(tmp_path / name, "warning")]
        return [text for text in texts if "perfect_score" in text]

    assert [text[:26] for text in warnings("default")] == ["The metric gave more than "]
    assert warnings("given") == []
    assert caplog.text.count("Give Combee(perfect_score=") >= 1


@pytest.mark.parametrize("given", [{}, {"perfect_score": 100}])
def test_a_minibatch_of_hundreds_alone_is_skipped(world: World, tmp_path: Path, given: Any) -> None:
    always = scaled(100, 100)
    report = world.compile(metric=always, log_dir=tmp_path, **given).combee_report

    assert report.reason.endswith("every training row was right when it ran last")
    assert not world.proposer_lm.requests
    assert {
        row["score"] for row in rows(tmp_path, "SELECT score FROM effect WHERE kind = 'rollout'")
    } == {100}


@pytest.mark.parametrize(("score", "baseline"), [(metric, 0.1), (scaled(100), 10)])
def test_a_point_is_a_hundredth_of_the_scale(world: World, score: Any, baseline: float) -> None:
    held = Heldout(tuple(examples(24, 200)), baseline=SerialBaseline(baseline))
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        report = (
            world.combee(metric=score)
            .compile(
                dspy.Predict("question -> answer"),
                trainset=examples(24),
                valset=examples(12, 100),
                heldout=held,
            )
            .combee_report
        )

    scale = baseline / 0.1
    assert report.per_point.points == pytest.approx(100 * (report.heldout.after / scale - 0.1))


@pytest.mark.parametrize(
    ("given", "scores", "perfect"),
    [
        (1.0, [0, 0.5], 1),
        (1.0, [], 1),
        (1.0, [1], 1),
        (1.0, [7, 0], 10),
        (1.0, [100], 100),
        (1.0, [101], 1000),
        (50.0, [70], 50),
        (1.0, [-5], 1),
    ],
)
def test_the_score_of_a_success(given: float, scores: list[float], perfect: float) -> None:
    assert perfect_score_of(given, scores) == perfect
