"""``combee run`` with several tasks in one file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from combee_dspy.cli import ExitCode, main
from combee_dspy.cli._job_config import is_job, job_of
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError

Shell = Callable[..., tuple[int, str, str]]

SHARED = {
    "data": {"benchmark": {"name": "formula-mini", "params": {"train": 12, "validation": 6, "heldout": 6}}},
    "lms": {"task": {"model": "simulated", "time_scale": 0}},
    "strategies": {"controller": {"name": "static", "params": {"size": 6, "reason": "a test"}}},
    "budget": {"rollouts": 40},
    "threads": 4,
    "probe": False,
}


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    """Run ``combee`` in an empty folder; returns exit code, standard output and standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        out, err = capsys.readouterr()
        code = caught.value.code
        assert isinstance(code, int)
        return code, out, err

    yield run


def written(**changes: object) -> str:
    # JSON is YAML.
    Path("job.yaml").write_text(json.dumps({**SHARED, **changes}), encoding="utf-8")
    return "job.yaml"


def test_several_tasks_are_compiled_saved_and_told_of(shell: Shell) -> None:
    tasks = {"one": {}, "other": {"seed": 3}}
    code, out, err = shell("run", written(tasks=tasks, shape="hybrid", at_once=2, output="out/{name}.json"))
    assert code == ExitCode.DONE, err
    assert [line.split()[0] for line in out.splitlines()[:2]] == ["one", "other"]
    assert out.count("held-out") == 2
    assert "these figures measure no language model" in out
    assert {path.name for path in Path("out").iterdir()} == {"one.json", "other.json"}


def test_a_task_that_fails_leaves_the_others_their_programs(shell: Shell) -> None:
    Path("runs").mkdir()
    # Where its checkpoints should go there is a file.
    Path("runs/broken").write_text("not a folder", encoding="utf-8")
    config = written(tasks={"broken": {}, "good": {}}, log_dir="runs", output="out/{name}.json")
    code, out, _ = shell("run", config)
    assert code not in (ExitCode.DONE, ExitCode.INTERRUPTED)
    broken, good = out.splitlines()[:2]
    assert broken.startswith("broken")
    assert "Error" in broken
    assert "held-out" in good
    assert [path.name for path in Path("out").iterdir()] == ["good.json"]


def test_a_dry_run_shows_every_task_and_buys_nothing(shell: Shell) -> None:
    code, out, err = shell("run", written(tasks={"one": {}, "other": {"seed": 3}}), "--dry-run")
    assert code == ExitCode.DONE, err
    assert "train 12, validation 6, held-out 6; seed 3" in out
    assert "Nothing was bought" in out


def test_what_cannot_be_used_names_its_task(shell: Shell) -> None:
    for changes, words in (
        ({"tasks": {"one": {"seed": -1}}}, "tasks.one: seed"),
        ({"tasks": {"one": {"threads": 2}}}, "tasks.one.threads"),
        ({"tasks": ["one"]}, "tasks"),
        ({"tasks": {"one": {}}, "shape": "round"}, "shape"),
        ({"tasks": {"one": {}}, "at_once": "two"}, "at_once"),
    ):
        code, _, err = shell("run", written(**changes))
        assert code == ExitCode.BAD_INPUT
        assert words in err


def test_each_task_takes_what_it_does_not_say_from_the_file() -> None:
    own = {"seed": 5, "budget": {"rollouts": 9}}
    job = job_of({**SHARED, "tasks": {"a b": None, "c": own}, "log_dir": "runs", "shape": "auto", "at_once": 3})
    assert (job.shape, job.at_once, job.on_error) == ("auto", 3, "continue")
    assert [config.seed for config in job.tasks.values()] == [0, 5]
    assert [config.budget.rollouts for config in job.tasks.values()] == [40, 9]
    assert [config.log_dir for config in job.tasks.values()] == ["runs/a-20-b", "runs/c"]


def test_two_tasks_do_not_write_to_one_file() -> None:
    with pytest.raises(ArgumentValueError, match="two tasks"):
        job_of({**SHARED, "tasks": {"a": {}, "b": {}}, "output": "learned.json"})
    with pytest.raises(ArgumentTypeError, match="tasks"):
        job_of({**SHARED, "tasks": {}})
    assert not is_job(SHARED)
