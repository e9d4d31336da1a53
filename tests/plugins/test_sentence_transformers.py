"""The plugin lives outside the package and outside its lock; its own tests run wherever it is installed."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from combee_dspy.diversity import CharNgrams

ROOT = Path(__file__).parents[2]
PLUGIN = ROOT / "plugins" / "sentence-transformers"
PROJECT = tomllib.loads((PLUGIN / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_it_publishes_an_embedder_under_its_own_name():
    points = PROJECT["entry-points"]["combee_dspy.embedders"]
    assert points == {"sentence-transformers": "combee_sentence_transformers:SentenceTransformers"}


def test_the_package_asks_for_no_torch_and_its_environment_holds_none():
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert "plugins/sentence-transformers" not in whole["tool"]["uv"]["workspace"]["members"]
    locked = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    assert not {"torch", "sentence-transformers"} & {package["name"] for package in locked["package"]}


def test_torch_is_imported_where_it_is_used():
    tree = ast.parse((PLUGIN / "combee_sentence_transformers" / "_strategy.py").read_text(encoding="utf-8"))
    modules = {
        name
        for node in tree.body
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert not {name for name in modules if name.split(".")[0] in ("torch", "sentence_transformers", "transformers")}


def test_its_conformance_test_has_five_lines():
    text = (PLUGIN / "tests" / "test_conformance.py").read_text(encoding="utf-8")
    assert len([line for line in text.splitlines() if line.strip()]) == 5


def test_its_page_shows_the_threshold_of_the_default_embedder():
    text = (PLUGIN / "README.md").read_text(encoding="utf-8")
    assert f"| `char-ngrams`, the default of combee-dspy | {CharNgrams.MEASURED_THRESHOLD:.3f} |" in text


@pytest.mark.skipif(
    importlib.util.find_spec("combee_sentence_transformers") is None,
    reason="pip install 'plugins/sentence-transformers[test]' brings torch, and runs this",
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
