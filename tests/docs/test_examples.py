"""Every script and configuration that readers are shown runs as it stands."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from combee_dspy.cli import main
from tests.slow import slow_but

ROOT = Path(__file__).parents[2]
FOLDERS = ("tutorials", "examples")
SCRIPTS = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.py"))
CONFIGS = sorted((ROOT / "examples").glob("*.yaml"))
SILENCE = 300  # seconds
QUICK = (ROOT / "examples" / "run_formula_mini.yaml",)
MODELS = sorted((ROOT / "examples" / "models").glob("*.yaml"))
FORMULA = sorted(
    (ROOT / "examples" / "benchmarks").glob("run_f*.yaml")
)  # those of the hub: tests/benchmarks


@pytest.fixture(autouse=True)
def modules_of_no_other_test(monkeypatch):
    # A configuration lets modules beside it be imported.
    monkeypatch.setattr(sys, "path", list(sys.path))


def named(path):
    return str(path.relative_to(ROOT))


def combee(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    assert ended.value.code == 0, err
    return out


def run_script(script, folder, output):
    """Run a script; return its exit status. Where it prints nothing for five minutes it is stopped,
    however long it takes in all: a machine may be busy.
    """
    with output.open("wb") as file:
        command = [sys.executable, "-u", script]
        process = subprocess.Popen(command, cwd=folder, stdout=file, stderr=file)  # noqa: S603 - this repository's own files
        size = -1
        try:
            while process.poll() is None and size < output.stat().st_size:
                size = output.stat().st_size
                with suppress(subprocess.TimeoutExpired):
                    process.wait(SILENCE)
        finally:
            process.kill()
        return process.wait()


# Each needs an interpreter of its own, and several seconds to load what it uses.
@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=named)
def test_a_script_runs_and_says_that_it_is_simulated(script, tmp_path, tmp_path_factory):
    if "fastapi" in script.name:
        pytest.importorskip("fastapi")
    output = tmp_path_factory.mktemp("output") / "lines.txt"
    status = run_script(script, tmp_path, output)
    lines = output.read_text(encoding="utf-8")
    assert status == 0, lines[-6_000:]
    assert "simulated" in lines
    if script.name == "live_fastapi.py":
        assert len(re.findall(r"version \d+ promoted", lines)) == 3
    if script.name == "01_first_compile.py":
        assert "loaded the same program: True" in lines
        state = json.loads((tmp_path / "combee_runs" / "learned.json").read_text(encoding="utf-8"))
        assert "Lessons learned" in state["answer.predict"]["signature"]["instructions"]


@pytest.mark.parametrize("config", slow_but(QUICK, CONFIGS), ids=named)
def test_a_configuration_runs_and_says_that_it_is_simulated(config, tmp_path, capsys):
    # It may write beside its folder, as it does in a checkout: into combee_runs.
    folder = tmp_path / "examples"
    folder.mkdir()
    out = combee(capsys, "run", shutil.copy(config, folder))
    assert {path.name for path in tmp_path.iterdir()} == {"examples", "combee_runs"}
    assert [path.name for path in folder.iterdir()] == [config.name]
    assert "these figures measure no language model" in out
    assert "validation" in out
    assert "held-out" in out


@pytest.mark.parametrize("config", MODELS, ids=named)
def test_a_configuration_of_a_model_is_complete_but_for_the_key(
    config, tmp_path, capsys, monkeypatch
):
    text = config.read_text(encoding="utf-8")
    for variable in re.findall(r"api_key_env: (\w+)", text):
        monkeypatch.setenv(variable, "any-word-will-do")
    out = combee(capsys, "run", config, "--dry-run")
    assert yaml.safe_load(text)["lms"]["task"]["model"] in out
    assert "Nothing was bought" in out
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("config", FORMULA, ids=named)
def test_a_configuration_of_a_benchmark_names_the_benchmarks_parameters(config):
    from combee_dspy.cli._plan import plan_run
    from combee_dspy.exceptions import DataSourceError

    # All that it lacks are the rows, which are not part of the package.
    with pytest.raises(DataSourceError, match="data"):
        plan_run(yaml.safe_load(config.read_text(encoding="utf-8")), config.parent)


def test_there_is_something_of_each_kind():
    assert {path.parent.name for path in SCRIPTS} == set(FOLDERS)
    assert all((CONFIGS, MODELS, FORMULA))
