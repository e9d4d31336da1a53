"""The plugin lives outside the package and outside its lock; its own tests need AppWorld, and run by its test.sh."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "plugins" / "appworld"
PROJECT = tomllib.loads((PLUGIN / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_it_publishes_a_benchmark_and_a_command_under_one_name():
    assert PROJECT["entry-points"] == {
        "combee_dspy.benchmarks": {"appworld": "combee_appworld:AppWorld"},
        "combee_dspy.commands": {"appworld": "combee_appworld._cli:app"},
    }


def test_neither_the_package_nor_the_plugin_depends_on_appworld():
    assert not [one for one in PROJECT["dependencies"] if one.startswith("appworld")]
    locked = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    assert "appworld" not in {package["name"] for package in locked["package"]}


def test_only_the_script_that_runs_in_appworlds_environment_imports_it():
    for path in (PLUGIN / "combee_appworld").glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        modules = {
            name.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names])
        }
        in_its_environment = path.name == "_miniature.py"
        assert ("appworld" in modules) == in_its_environment, path.name
        assert not (in_its_environment and {"combee_dspy", "dspy"} & modules)


def test_what_it_installs_is_pinned_by_hash():
    lines = (PLUGIN / "combee_appworld" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if "==" in line and not line.startswith(("#", " "))]
    assert any(pin.startswith("appworld==0.1.3 ") for pin in pins)
    assert all(pin.endswith("\\") for pin in pins)
