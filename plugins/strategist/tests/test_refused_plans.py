"""A plan whose run would spoil the claim is refused, each time by somebody who tries to get around
it.
"""

from __future__ import annotations

import pytest
import yaml

from plugins.strategist.tests.searches import SPEC
from tests.cli.spoiled import JUDGED, STATIC, TRAIN_ALONE, refused


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_threads": 64, "diversity": False}, "diversity off"),
        ({"cache": False}, "a cache that is off without a reason is refused"),
        ({"reflection_minibatch_size": 8}, "a static batch without a reason is refused"),
        ({"strategies": {"controller": STATIC}}, "a static batch without a reason is refused"),
        (TRAIN_ALONE, "patience or a target on the training score is refused"),
        (JUDGED, "examiner"),
        # A judge without a model of its own is judged by the task's, which here proposes as well.
        (
            {**JUDGED, "metric": "their_qa:plain", "lms": {"task": {"model": "openai/x"}}},
            "examiner",
        ),
    ],
)
def test_nor_is_it_planned(shell, files, tmp_path, change, said):
    files("wide.yaml", **change)
    # A reason that says nothing is none.
    overrides = {
        name: {"value": "yes", "reason": "we know best"} for name in ("cache", "controller")
    }
    for more in (
        {},
        {"overrides": {"diagnosis": {"value": "later", "reason": "there was no time for it"}}},
    ):
        (tmp_path / "spec.yaml").write_text(
            yaml.safe_dump({**SPEC, "run": "wide.yaml", **more}), encoding="utf-8"
        )
        refused(shell, said, "plan", "spec.yaml")
    vague = {name: {**one, "reason": "ok"} for name, one in overrides.items()}
    (tmp_path / "spec.yaml").write_text(
        yaml.safe_dump({**SPEC, "run": "wide.yaml", "overrides": vague}), encoding="utf-8"
    )
    code, _, err = shell("plan", "spec.yaml")
    assert code == 2
    assert err.count("reason is vague") == 2
    assert not (tmp_path / "plan.md").exists()


@pytest.mark.parametrize("name", ["canary_share", "canary_hours"])
def test_a_plan_does_not_skip_the_canary(shell, tmp_path, name):
    why = {"value": 0, "reason": "the release is tomorrow and cannot wait"}
    spec = {**SPEC, "overrides": {name: why}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    refused(shell, "a canary skipped", "plan", "spec.yaml")


@pytest.mark.parametrize("reason", ["there was no time for it", "the run is known to be flat"])
def test_no_reason_plans_what_nobody_has_diagnosed(shell, tmp_path, reason):
    refused_spec = {**SPEC, "overrides": {"diagnosis": {"value": "later", "reason": reason}}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(refused_spec), encoding="utf-8")
    code, _, err = shell("plan", "spec.yaml")
    assert (code, "overrides.diagnosis cannot be used" in err) == (2, True)
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(SPEC), encoding="utf-8")
    refused(shell, "parallelism without a diagnosis", "plan", "spec.yaml")


def test_a_judge_as_large_as_the_proposer_needs_a_reason(shell, tmp_path):
    models = {**SPEC["models"], "evaluator": "openai/gpt-4o"}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump({**SPEC, "models": models}))
    refused(shell, "no smaller than the proposer", "plan", "spec.yaml")
