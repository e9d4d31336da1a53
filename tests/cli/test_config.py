from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from combee_dspy.cli._config import RunConfig, read_config
from combee_dspy.cli._job_config import job_of
from combee_dspy.exceptions import ArgumentValueError

LEAST: dict[str, Any] = {"data": {"benchmark": "formula-mini"}, "lms": {"task": "embedded"}, "budget": {"seconds": 9}}
FILES: dict[str, Any] = {**LEAST, "data": {"train": "t.jsonl", "inputs": ["q"]}}


def read(tmp_path: Path, data: object) -> RunConfig:
    path = tmp_path / "run.yaml"
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data), encoding="utf-8")
    return read_config(path)


def refused(tmp_path: Path, data: object) -> ArgumentValueError:
    with pytest.raises(ArgumentValueError) as caught:
        read(tmp_path, data)
    return caught.value


def test_a_name_stands_for_the_mapping_that_holds_it_alone(tmp_path: Path) -> None:
    config = read(tmp_path, {**LEAST, "tracker": "mlflow", "strategies": {"operators": ["insert"]}})
    assert config.data.benchmark is not None
    assert (config.data.benchmark.name, config.data.benchmark.params) == ("formula-mini", {})
    assert config.lms.task.model == "embedded"
    assert config.lms.proposer is None
    assert [one.name for one in config.strategies.operators or []] == ["insert"]
    assert config.tracker is not None
    assert config.tracker.name == "mlflow"


def test_the_example_of_the_help_is_read(tmp_path: Path) -> None:
    from combee_dspy.cli.run import HELP

    blocks = [block.removeprefix("\b\n") for block in HELP.split("\n\n") if block.startswith("\b\n    ")]
    assert len(blocks) == 3
    first, second = (read(tmp_path, block) for block in blocks[:2])
    # The third says what several tasks have of their own, beside the keys of the second.
    job = job_of({**yaml.safe_load(blocks[1]), **yaml.safe_load(blocks[2])})
    assert (job.shape, [config.seed for config in job.tasks.values()]) == ("auto", [1, 0])
    assert [config.output for config in job.tasks.values()] == ["learned/shares.json", "learned/bonds.json"]
    assert first.output == "learned.json"
    assert second.lms.proposer is not None
    assert second.lms.proposer.api_key_env == "MY_KEY"
    assert second.strategies.controller is not None
    assert second.strategies.controller.params["size"] == 40


@pytest.mark.parametrize(
    ("change", "argument", "guess"),
    [
        ({"budgt": {}}, "budgt", "'budget'"),
        ({"data": {"benchmark": "formula-mini", "heldot": "x"}}, "data.heldot", "'heldout'"),
        ({"lms": {"task": {"modle": "m"}}}, "lms.task.modle", "'model'"),
        ({"lms": {"task": "embedded", "propser": "m"}}, "lms.propser", "'proposer'"),
        ({"budget": {"rollout": 3}}, "budget.rollout", "'rollouts'"),
        ({"strategies": {"operators": [{"nam": "insert"}]}}, "strategies.operators.0.nam", "'name'"),
        ({"prices": {"m": {"promt": 1, "completion": 1}}}, "prices.m.promt", "'prompt'"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_known_one(
    tmp_path: Path, change: dict[str, Any], argument: str, guess: str
) -> None:
    error = refused(tmp_path, {**LEAST, **change})
    assert error.argument == argument
    assert error.remedy.startswith(f"Did you mean {guess}? Known keys: ")


def test_a_key_like_nothing_gets_the_list_alone(tmp_path: Path) -> None:
    assert refused(tmp_path, {**LEAST, "zzzzzz": 1}).remedy.startswith("Known keys: adapter, budget, data")


def test_a_service_key_in_the_file_is_refused_and_not_repeated(tmp_path: Path) -> None:
    task = {"model": "openai/m", "api_key": "very-secret-value"}
    error = refused(tmp_path, {**LEAST, "lms": {"task": task}})
    assert error.argument == "lms.task.api_key"
    assert "api_key_env" in error.remedy
    assert "very-secret-value" not in str(error)
    error = refused(tmp_path, {**LEAST, "lms": {"task": {"model": "m", "options": {"api_key": "very-secret-value"}}}})
    assert "api_key_env" in error.problem
    assert "very-secret-value" not in str(error)


@pytest.mark.parametrize(
    ("change", "argument", "part"),
    [
        ({"budget": {}}, "budget", "no limit"),
        ({"budget": {"tokens": -1}}, "budget.tokens", "greater than 0"),
        ({"budget": {"dollars": float("inf")}}, "budget.dollars", "finite"),
        ({"data": {"benchmark": "formula-mini", "train": "t.csv"}}, "data", "brings its own splits"),
        ({"data": {"train": "t.csv"}}, "data", "inputs"),
        ({"lms": {"task": {"model": "embedded", "api_base": "http://x"}}}, "lms.task", "takes no api_base"),
        ({"lms": {"task": {"model": "openai/m", "slots": 3}}}, "lms.task", "slots"),
        ({"lms": {"task": {"model": "embedded", "time_scale": 1}}}, "lms.task", "time_scale"),
        ({"seed": "many"}, "seed", "integer"),
        ({"adapter": "toml"}, "adapter", "'chat'"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(tmp_path: Path, change: dict[str, Any], argument: str, part: str) -> None:
    error = refused(tmp_path, {**LEAST, **change})
    assert error.argument == argument
    assert part in error.problem


def test_files_need_a_program_and_a_metric(tmp_path: Path) -> None:
    assert "needs program" in refused(tmp_path, FILES).problem
    assert "needs metric" in refused(tmp_path, {**FILES, "program": "a:b"}).problem
    assert read(tmp_path, {**FILES, "program": "a:b", "metric": "a:c"}).metric == "a:c"


def test_of_several_problems_the_unknown_key_is_told_first_with_the_number_of_others(tmp_path: Path) -> None:
    error = refused(tmp_path, {"data": {"benchmark": "formula-mini"}, "lm": {}, "budget": {"seconds": 9}})
    assert error.argument == "lm"
    assert error.remedy.endswith("(1 more to correct.)")
    missing = refused(tmp_path, {"data": {"benchmark": "formula-mini"}, "budget": {"seconds": 9}})
    assert (missing.argument, missing.problem) == ("lms", "is missing")


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("a: [1,", "is not YAML"),
        ("- a\n- b", "no mapping"),
        ("", "no mapping"),
        ("data: !!python/object/apply:os.system ['echo no']", "is not YAML"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, text: str, part: str) -> None:
    error = refused(tmp_path, text)
    assert error.argument == "CONFIG"
    assert part in error.problem


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentValueError, match=r"nowhere\.yaml"):
        read_config(tmp_path / "nowhere.yaml")
