"""Playbooks that learn from a stream."""

from __future__ import annotations

from typing import Any

import pytest

from combee_dspy import Combee
from combee_dspy.artifacts import PlaybookArtifact
from combee_dspy.engine.playbook_online import OnlinePlaybook
from combee_dspy.evaluation import Calibration
from combee_dspy.events import RolloutFinished
from combee_dspy.exceptions import ArgumentError, CalibrationFailedError, InfrastructureError
from combee_dspy.testing._scripted_lm import ScriptedLM
from tests.engine.test_playbook import Recorder, combee, keeper


def test_a_stream_is_predicted_first_and_learned_from_after(world: Any) -> None:
    rows = world.examples(36)
    program: Any = combee(world, PlaybookArtifact(mode="online"), reflection_minibatch_size=12).compile(
        world.student(), trainset=rows
    )
    report = program.playbook_report
    # The first round of animals is new to it, the others are not; the order is the stream's.
    assert report.batch_scores == pytest.approx((2 / 12, 1.0, 1.0))
    assert report.online_score == pytest.approx((2 + 12 + 12) / 36)
    assert program.combee_report.reason == "the stream is over"


def test_serving_answers_with_what_was_learned_before(world: Any, tmp_path: Any) -> None:
    settings = combee(world, log_dir=str(tmp_path))
    with OnlinePlaybook(settings, world.student()) as serving:
        first = serving.predict(world.examples(12))
        assert len(serving.playbook) == 0
        serving.learn()
        assert len(serving.playbook) == 10
        assert serving.learn() == serving.playbook
        second = serving.predict(world.examples(12, start=12))
        assert len(serving.report.batch_scores) == 2
    assert [one.answer for one in first].count("unknown") == 10
    assert "unknown" not in [one.answer for one in second]
    # Another server goes on with it.
    with OnlinePlaybook(settings, world.student()) as serving:
        assert len(serving.playbook) == 10
        assert "lynx is XNYL" in serving.program().signature.instructions


def test_a_batch_that_nobody_learned_from_is_forgotten(world: Any) -> None:
    hook = Recorder()
    with OnlinePlaybook(combee(world, hooks=[hook]), world.student()) as serving:
        serving.predict(world.examples(3))
        serving.predict(world.examples(3, start=3))
        serving.learn()
        assert len(serving.playbook) == 3
    assert hook.events[-1].reason == "the stream is over"
    ids = [event.rollout_id for event in hook.of(RolloutFinished)]
    assert len(ids) == len(set(ids)) == 6


def test_it_is_used_in_a_with_statement_and_with_a_playbook(world: Any) -> None:
    with pytest.raises(ArgumentError, match="not been started"):
        OnlinePlaybook(combee(world), world.student()).predict(world.examples(1))
    lm = ScriptedLM(keeper)
    with pytest.raises(ArgumentError, match="is no playbook"):
        OnlinePlaybook(Combee(world.metric, reflection_lm=lm, max_metric_calls=9), world.student())


def test_a_judge_that_disagrees_with_its_reference_serves_no_further_batch(world: Any) -> None:
    def against(gold: Any, pred: Any, *rest: Any) -> float:
        return 1.0 - world.metric(gold, pred).score

    settings = combee(world, calibration=Calibration(against, share=1.0, minimum=8))
    with OnlinePlaybook(settings, world.student()) as serving:
        serving.predict(world.examples(12))
        serving.learn()
        with pytest.raises(CalibrationFailedError):
            serving.predict(world.examples(12, start=12))


def test_a_dead_proposer_is_noticed_over_batches_of_one(world: Any) -> None:
    def down(request: Any) -> str:
        raise RuntimeError("nobody today")

    with OnlinePlaybook(combee(world, answer=down, probe=False), world.student()) as serving:
        for number in (2, 3):
            serving.predict(world.examples(1, start=number))
            serving.learn()
        serving.predict(world.examples(1, start=4))
        with pytest.raises(InfrastructureError, match="nobody today"):
            serving.learn()


def test_a_server_goes_on_with_bullets_that_the_budget_hides(world: Any) -> None:
    settings = combee(world, PlaybookArtifact(max_tokens=64))
    with OnlinePlaybook(settings, world.student()) as serving:
        serving.predict(world.examples(12))
        serving.learn()
        learned, program = serving.playbook, serving.program()
        assert len(serving.report.shown) < len(learned)
    with OnlinePlaybook(settings, program) as serving:
        assert {bullet.id for bullet in serving.playbook.bullets} == {bullet.id for bullet in learned.bullets}
