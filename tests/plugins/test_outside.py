"""Three strategies written outside the repository: made, installed, checked and used by name."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from combee_dspy.cli.plugins import write_plugin
from combee_dspy.journal import Reader, journal_file

ROOT = Path(__file__).parents[2]
SOURCES = Path(__file__).parent / "outside"
KINDS = {"most-seen-first": "operator", "word-pairs": "embedder", "enough-candidates": "stopping"}

CONFIG = """
data:
  benchmark:
    name: formula-mini
    params: {task: compute, formulas: 4, train: 12, validation: 8, heldout: 8}
lms: {task: {model: simulated, time_scale: 0}}
strategies:
  operators: [{name: most-seen-first, params: {most: 6}}]
  stopping: [{name: enough-candidates, params: {candidates: 2}}]
diversity: {embedder: word-pairs, threshold: 0.97}
budget: {rollouts: 400}
log_dir: log
output: learned.json
"""


def find_uv():
    uv = shutil.which("uv") or shutil.which("uv", path=ROOT / ".tools" / "bin")
    if uv is None:
        pytest.fail("There is no uv on PATH or in .tools: `make setup` puts one there.")
    return uv


def run(*command, cwd):
    done = subprocess.run(  # noqa: S603 - interpreters of our own and fixed arguments
        [str(word) for word in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def outside(tmp_path_factory):
    """A folder that is no part of the repository, with an environment that has the three
    distributions.
    """
    folder = tmp_path_factory.mktemp("outside")
    for name, kind in KINDS.items():
        write_plugin(name, kind, folder)
        module = name.replace("-", "_")
        strategy = folder / f"combee-dspy-{name}" / f"combee_{module}" / "_strategy.py"
        strategy.write_text(
            (SOURCES / f"{module}.py").read_text(encoding="utf-8"), encoding="utf-8"
        )
    uv = find_uv()
    run(uv, "venv", "--quiet", "--python", sys.executable, "env", cwd=folder)
    # Stands for `pip install combee-dspy`, which would take a network.
    (site,) = (folder / "env" / "lib").glob("python3.*/site-packages")
    here = sysconfig.get_path("purelib")
    (site / "checkout.pth").write_text(
        f"import site; site.addsitedir({here!r})\n", encoding="utf-8"
    )
    # The builder was needed for the checkout itself, so it is in uv's cache.
    install = [
        uv,
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--python",
        folder / "env" / "bin" / "python",
    ]
    run(*install, "--offline", *(f"./combee-dspy-{name}" for name in KINDS), cwd=folder)
    return folder


def combee(outside, *arguments):
    code = "from combee_dspy.cli import main; main()"
    return run(outside / "env" / "bin" / "python", "-c", code, *arguments, cwd=outside)


def test_they_pass_the_tests_that_came_with_them(outside):
    folders = [f"combee-dspy-{name}" for name in KINDS]
    command = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        "-c",
        "/dev/null",
        *folders,
    ]
    out = run(outside / "env" / "bin" / "python", *command, cwd=outside)
    assert " passed" in out
    assert "skipped" not in out


def test_they_are_listed_under_their_own_distributions(outside):
    entries = {
        (entry["kind"], entry["name"]): entry
        for entry in json.loads(combee(outside, "plugins", "--json"))
    }
    for name, kind in KINDS.items():
        assert entries[kind, name]["distribution"] == f"combee-dspy-{name}"
        assert entries[kind, name]["problem"] is None


def test_a_configuration_uses_them_by_name(outside):
    (outside / "run.yaml").write_text(CONFIG, encoding="utf-8")
    out = combee(outside, "run", "run.yaml")
    assert "2 candidates were validated." in out, "the stopping rule ended the run"
    learned = (outside / "learned.json").read_text(encoding="utf-8")
    assert "Rules, the most often seen first:" in learned, "the operator wrote the instruction"
    with Reader(journal_file(outside / "log")) as journal:
        (described,) = journal.rows("SELECT description FROM run")
    assert "most-seen-first" in described["description"], "the operator is in the run's record"
