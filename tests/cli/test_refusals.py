"""What is not honest is refused from files and commands too: each time, by somebody who tries to get around it."""

from __future__ import annotations

import json

import pytest
import yaml

from combee_dspy.records import NO_BASELINE
from tests.planning.test_spec import SPEC

RUN = yaml.safe_load("""
data: {benchmark: {name: formula-mini, params: {task: compute, formulas: 6, train: 12, validation: 12, heldout: 12}}}
lms: {task: {model: simulated, time_scale: 0}}
budget: {rollouts: 40}
tracker: []
log_dir: log
""")
STATIC = {"name": "static", "params": {"size": 8, "reason": "reflection_minibatch_size was given"}}
PATIENCE = {"stopping": [{"name": "patience", "params": {"updates": 3}}]}
ROWS = {"train": "rows.jsonl", "inputs": ["question"]}
JUDGED = {
    "data": {**ROWS, "validation": "others.jsonl"}, "program": "their_qa:program", "metric": "their_qa:judge",
    "lms": {"task": {"model": "openai/small"}, "proposer": {"model": "openai/strong", "temperature": 1.0}},
}  # fmt: skip
TRAIN_ALONE = {**JUDGED, "data": ROWS, "metric": "their_qa:metric", "strategies": PATIENCE}


@pytest.fixture
def files(tmp_path):
    for name in ("rows", "others"):
        rows = [json.dumps({"question": f"{name} {n}", "answer": "a"}) for n in range(6)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    (tmp_path / "their_qa.py").write_text(
        "import dspy\nfrom combee_dspy.evaluation import Judge\nprogram = dspy.Predict('question -> answer')\n"
        "def metric(*given): return 1.0\njudge = Judge('Is it right?', lm=dspy.LM('openai/strong', temperature=0.3))\n"
        "plain = Judge('Is it right?')\n",
        encoding="utf-8",
    )

    def write(name, **change):
        (tmp_path / name).write_text(yaml.safe_dump({**RUN, **change}), encoding="utf-8")
        return name

    return write


def refused(shell, said, *arguments):
    code, _, err = shell(*arguments)
    assert code == 2, err
    assert said in err
    assert len(err.splitlines()) == 1
    assert ". " in err, "no way out is said"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_threads": 64, "diversity": False}, "64 workers with diversity off is refused"),
        ({"num_threads": 500, "diversity": {"threshold": 0.9999}}, "500 workers with diversity off is refused"),
        ({"strategies": {"controller": {"name": "static", "params": {"size": 8}}}}, "reason"),
        ({"strategies": {"controller": {"name": "static", "params": {"size": 8, "reason": " "}}}}, "reason"),
        ({"strategies": {"stopping": {"name": "patience", "params": {"updates": 3, "on": "train"}}}}, "training score"),
        ({"heldout": {"baseline": 17.0}}, "baseline"),
        ({"heldout": {"baseline": "their-paper"}}, "holds no journal"),
        (JUDGED, "examiner"),
    ],
)  # fmt: skip
def test_a_file_that_would_spoil_its_claim_is_not_run(shell, files, tmp_path, change, said):
    refused(shell, said, "run", files("run.yaml", **change))
    assert not list(tmp_path.glob("log/**/*.json"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_threads": 64, "diversity": False}, "diversity off"),
        ({"cache": False}, "a cache that is off without a reason is refused"),
        ({"reflection_minibatch_size": 8}, "a static batch without a reason is refused"),
        ({"strategies": {"controller": STATIC}}, "a static batch without a reason is refused"),
        (TRAIN_ALONE, "patience on the training score is refused"),
        (JUDGED, "examiner"),
        # A judge without a model of its own is judged by the task's, which here proposes as well.
        ({**JUDGED, "metric": "their_qa:plain", "lms": {"task": {"model": "openai/x"}}}, "examiner"),
    ],
)  # fmt: skip
def test_nor_is_it_planned(shell, files, tmp_path, change, said):
    files("wide.yaml", **change)
    # A reason that says nothing is none.
    overrides = {name: {"value": "yes", "reason": "we know best"} for name in ("cache", "controller")}
    for more in ({}, {"overrides": {"diagnosis": {"value": "later", "reason": "there was no time for it"}}}):
        (tmp_path / "spec.yaml").write_text(yaml.safe_dump({**SPEC, "run": "wide.yaml", **more}), encoding="utf-8")
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
    diagnosis = {"value": "later", "reason": "there was no time for it"}
    spec = {**SPEC, "overrides": {name: why, "diagnosis": diagnosis}}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    refused(shell, "a canary skipped", "plan", "spec.yaml")


def test_a_held_out_set_that_was_read_stays_as_it_is(shell, files):
    params = RUN["data"]["benchmark"]["params"]
    assert shell("run", files("run.yaml"))[0] == 0
    for change in ({"heldout": 11}, {"heldout": 13}, {"seed": 1}):
        moved = {"benchmark": {"name": "formula-mini", "params": {**params, **change}}}
        # Neither the same run nor another seed of it, in the study that has read the rows.
        for seed in (0, 1):
            code, _, err = shell("run", files("run.yaml", data=moved, seed=seed))
            assert code == 2
            assert "log_dir" in err or "another" in err


def test_no_figure_is_a_headline_without_a_baseline_that_was_measured_here(shell, files):
    out = shell("run", files("run.yaml"))[1]
    assert NO_BASELINE in out
    typed = {"score": 0.01, "rollouts": 1200, "seconds": 9e9}
    out = shell("run", files("run.yaml", heldout={"baseline": typed}, log_dir="typed"))[1]
    assert "times as fast" not in out
    assert "the baseline was given and not measured here on the same rows, so no speed is stated" in out
    for command in ("show", "report"):
        shell(command, "typed")
    assert "times as fast" not in shell("show", "typed")[1]
