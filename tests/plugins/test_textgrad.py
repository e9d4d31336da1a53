"""The plugin lives outside the package and outside its lock; its own tests run wherever it is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "plugins" / "textgrad"
PROJECT = tomllib.loads((PLUGIN / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_it_publishes_a_baseline_under_its_own_name():
    assert PROJECT["entry-points"]["combee_dspy.baselines"] == {"textgrad": "combee_textgrad:TextGrad"}


def test_the_package_asks_for_no_textgrad_and_its_environment_holds_none():
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "plugins/textgrad" not in whole["tool"]["uv"]["workspace"]["members"]
    locked = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    assert "textgrad" not in {package["name"] for package in locked["package"]}


def test_its_conformance_test_has_five_lines():
    text = (PLUGIN / "tests" / "test_conformance.py").read_text(encoding="utf-8")
    assert len([line for line in text.splitlines() if line.strip()]) == 5


@pytest.mark.skipif(
    importlib.util.find_spec("combee_textgrad") is None,
    reason="pip install 'plugins/textgrad[test]' brings textgrad, and runs this",
)
def test_its_own_tests_pass():
    done = subprocess.run(  # noqa: S603 - this interpreter and a fixed path
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(PLUGIN), str(PLUGIN)],
        cwd=PLUGIN,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
