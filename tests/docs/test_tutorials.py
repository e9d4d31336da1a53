"""Every script and configuration that readers are shown runs as it stands."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("tutorials", "examples")
SCRIPTS = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.py"))
CONFIGS = sorted(
    path for folder in FOLDERS for ending in ("yaml", "yml") for path in (ROOT / folder).glob(f"*.{ending}")
)
COMBEE = "from combee_dspy.cli import main; main()"


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run(  # noqa: S603 - this repository's own files
        [sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
    return done.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_script_runs_and_says_that_it_is_simulated(script: Path, tmp_path: Path) -> None:
    out = run(tmp_path, str(script))
    assert "simulated" in out
    if script.name == "01_first_compile.py":
        assert "loaded the same program: True" in out
        state = json.loads((tmp_path / "combee_runs" / "learned.json").read_text(encoding="utf-8"))
        assert "Lessons learned" in state["answer.predict"]["signature"]["instructions"]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_configuration_runs_and_says_that_it_is_simulated(config: Path, tmp_path: Path) -> None:
    # It may write beside its folder, as it does in a checkout: into combee_runs.
    folder = tmp_path / config.parent.name
    folder.mkdir()
    copy = shutil.copy(config, folder)
    out = run(tmp_path, "-c", COMBEE, "run", str(copy))
    assert {path.name for path in tmp_path.iterdir()} <= {folder.name, "combee_runs"}
    assert [path.name for path in folder.iterdir()] == [config.name]
    assert "these figures measure no language model" in out
    assert "validation" in out


def test_both_folders_hold_something() -> None:
    assert {path.parent.name for path in SCRIPTS} == set(FOLDERS)
    assert CONFIGS
