"""What needs no server: splits, parameters, scores, commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from combee_agents import EnvironmentFaultError
from combee_dspy.benchmarks import load_benchmark
from combee_dspy.cli import main
from combee_dspy.exceptions import ArgumentError, DataSourceError

from combee_appworld import AppWorld, GoalCompletion, goal_completion
from combee_appworld._environment import read_evaluation


def test_splits_are_appworlds_and_test_sets_are_held_out(world, installation):
    sizes = {}
    for heldout in ("test_normal", "test_challenge", "test"):
        benchmark = load_benchmark("appworld", root=str(world), heldout=heldout)
        sizes[heldout] = [len(split) for split in benchmark.splits]
    assert sizes == {"test_normal": [6, 6, 6], "test_challenge": [6, 6, 3], "test": [6, 6, 9]}
    row = benchmark.train.examples[0]
    assert set(row.inputs().keys()) == {"task_id", "instruction", "supervisor", "now"}
    assert "Add a note" in row.instruction


def test_a_pin_stands_for_the_tasks_their_worlds_and_their_checks(world, installation, tmp_path):
    pins = AppWorld(world).load().pins
    assert AppWorld(world, pin=pins).load().pins == pins
    changed = tmp_path / "root"
    shutil.copytree(world, changed)
    checks = next((changed / "data" / "tasks").glob("aaaaaa1_1/ground_truth/evaluation.py"))
    checks.write_text(checks.read_text().replace('"success"', '"fail"'))
    with pytest.raises(DataSourceError, match="is pinned"):
        AppWorld(changed, pin=pins).load()
    assert AppWorld(changed, pin={"heldout": pins["heldout"]}).load().pins["heldout"] == pins["heldout"]


def test_the_environment_variable_names_the_root(world, installation, monkeypatch):
    monkeypatch.setenv("APPWORLD_ROOT", str(world))
    assert len(AppWorld().load().train) == 6
    assert AppWorld().availability().here is True
    monkeypatch.delenv("APPWORLD_ROOT")
    assert AppWorld().availability().here is False
    with pytest.raises(DataSourceError, match="APPWORLD_ROOT"):
        AppWorld().load()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: (data / "datasets" / "dev.txt").unlink(), "dev.txt"),
        (lambda data: (data / "datasets" / "dev.txt").write_text("../../etc_1\n"), "no task id"),
        (
            lambda data: (data / "datasets" / "dev.txt").write_text("aaaaaa1_1\n"),
            "is in train and in validation",
        ),
        (lambda data: (data / "tasks" / "aaaaaa1_1" / "specs.json").write_text("[]"), "aaaaaa1_1"),
        (lambda data: shutil.rmtree(data / "tasks"), "data/tasks"),
    ],
)
def test_data_that_cannot_be_used_is_named(world, installation, tmp_path, change, said):
    root = tmp_path / "root"
    shutil.copytree(world, root)
    change(root / "data")
    with pytest.raises(DataSourceError, match=said):
        AppWorld(root).load()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("heldout", "dev"),
        ("agent", "act"),
        ("workers", 0),
        ("max_iters", 1.5),
        ("seconds_a_step", True),
    ],
)
def test_bad_parameters_are_named(world, name, value):
    with pytest.raises(ArgumentError) as caught:
        AppWorld(world, **{name: value}).load()
    assert caught.value.argument == f"AppWorld.{name}"


def test_without_the_environment_loading_says_how_to_build_it(world, monkeypatch, tmp_path):
    monkeypatch.setenv("COMBEE_APPWORLD_HOME", str(tmp_path))
    with pytest.raises(DataSourceError, match="combee appworld setup"):
        AppWorld(world).load()


def test_a_scenario_counts_where_all_its_tasks_do():
    scores = {"a1_1": 1.0, "a1_2": 1.0, "a1_3": 0.0, "b2_1": 1.0}
    assert goal_completion(scores) == GoalCompletion(task=0.75, scenario=0.5, tasks=4, scenarios=2)
    assert goal_completion({}) == GoalCompletion(0.0, 0.0, 0, 0)


@pytest.mark.parametrize("told", [None, [], {}, {"success": 1, "passes": [], "failures": [], "num_tests": 1}, "yes"])
def test_an_evaluation_that_cannot_be_read_is_a_fault(told):
    with pytest.raises(EnvironmentFaultError) as caught:
        read_evaluation(told)
    assert caught.value.kind == "protocol"


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["appworld", *arguments])
    return ended.value.code or 0


def test_the_command_says_what_is_here(world, installation, capsys, monkeypatch):
    monkeypatch.setenv("APPWORLD_ROOT", str(world))
    assert call("setup") == 0
    assert str(installation.folder) in capsys.readouterr().out
    assert call("status") == 0
    said = capsys.readouterr().out
    assert "6 train, 6 dev, 6 test_normal, 3 test_challenge" in said
    assert "download data" in said
    assert call("miniature", str(world)) == 2
    assert "holds data already" in capsys.readouterr().err


def test_setup_refuses_an_interpreter_that_appworld_does_not_run_on(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COMBEE_APPWORLD_HOME", str(tmp_path))
    assert call("setup", "--python", "/bin/false") == 2
    assert "3.11 or 3.12" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_requirements_are_pinned_by_hash_and_named_by_digest(installation):
    lines = (Path(__file__).parents[1] / "combee_appworld" / "requirements.txt").read_text().splitlines()
    pinned = [line for line in lines if "==" in line and not line.startswith(("#", " "))]
    assert any(line.startswith("appworld==0.1.3 ") for line in pinned)
    assert all(line.endswith("\\") for line in pinned)
    assert json.dumps(installation.digest)[1:17] in installation.folder.name
