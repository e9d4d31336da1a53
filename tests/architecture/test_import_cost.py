"""What an import loads: nothing that its user has not asked for."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SLOW = (
    "aiohttp",
    "datasets",
    "litellm",
    "matplotlib",
    "mlflow",
    "pandas",
    "pyarrow",
    "ray",
    "xllamacpp",
)
PROBE = """
import importlib, json, sys
for name in {first!r}:
    importlib.import_module(name)
before = set(sys.modules)
for name in {names!r}:
    importlib.import_module(name)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def loaded(*names: str, first: tuple[str, ...] = ()) -> set[str]:
    """Return what importing some modules loads in a fresh process, after some others."""
    command = [sys.executable, "-c", PROBE.format(first=first, names=names)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)  # noqa: S603 - the code above
    return {name.split(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


def test_the_package_alone_loads_neither_dspy_nor_anything_of_its_own() -> None:
    assert not loaded("combee_dspy") & {"dspy", "gepa", "numpy", "pydantic", "scipy", *SLOW}


@pytest.mark.parametrize(
    "names",
    [
        ("combee_dspy.combee", "combee_dspy.many", "combee_dspy.loading", "combee_dspy.reducer"),
        ("combee_dspy.benchmarks", "combee_dspy.cli", "combee_dspy.lms", "combee_dspy.tracking"),
    ],
    ids=["compiling", "the rest"],
)
def test_nothing_slow_is_loaded_beside_dspy(names: tuple[str, ...]) -> None:
    assert not loaded(*names, first=("dspy",)) & set(SLOW)


def test_a_journal_is_read_without_dspy() -> None:
    readers = ("combee_dspy.cli", "combee_dspy.journal", "combee_dspy.tracking._queries")
    assert not loaded(*readers) & {"dspy", "gepa", "numpy", "scipy", *SLOW}
