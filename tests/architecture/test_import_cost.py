"""What an import loads: nothing that its user has not asked for."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SLOW = {
    "aiohttp",
    "datasets",
    "litellm",
    "matplotlib",
    "mlflow",
    "pandas",
    "pyarrow",
    "ray",
    "xllamacpp",
}
ALONE = ("combee_dspy",)
READERS = ("combee_dspy.cli", "combee_dspy.journal", "combee_dspy.tracking._queries")
COMPILING = ("combee_dspy.combee", "combee_dspy.many", "combee_dspy.loading", "combee_dspy.reducer")
REST = ("combee_dspy.benchmarks", "combee_dspy.cli", "combee_dspy.lms", "combee_dspy.tracking")
SEARCH = ("combee_dspy.search",)
# Each import in a fork of its own; those behind the empty one begin with DSPy, which takes seconds.
PROBE = """
import importlib, json, os, sys
for names in json.loads(sys.argv[1]):
    if not names:
        import dspy
    elif not os.fork():
        before = set(sys.modules)
        for name in names:
            importlib.import_module(name)
        print(json.dumps(sorted(set(sys.modules) - before)), flush=True)
        os._exit(0)
    else:
        assert os.wait()[1] == 0, names
"""


@pytest.fixture(scope="module")
def loaded() -> dict[tuple[str, ...], set[str]]:
    """Return the modules that each of the imports loads."""
    imports = (ALONE, READERS, (), COMPILING, REST, SEARCH)
    command = [sys.executable, "-c", PROBE, json.dumps(imports)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)  # noqa: S603 - the code above
    lines = [set(json.loads(line)) for line in done.stdout.splitlines()]
    return dict(zip(filter(None, imports), lines, strict=True))


def packages(modules: set[str]) -> set[str]:
    return {name.split(".")[0] for name in modules}


def test_the_package_alone_loads_neither_dspy_nor_anything_of_its_own(loaded) -> None:
    assert not packages(loaded[ALONE]) & {"dspy", "gepa", "numpy", "pydantic", "scipy", *SLOW}


@pytest.mark.parametrize("names", [COMPILING, REST], ids=["compiling", "the rest"])
def test_nothing_slow_is_loaded_beside_dspy(loaded, names: tuple[str, ...]) -> None:
    assert not packages(loaded[names]) & SLOW


def test_a_journal_is_read_without_dspy(loaded) -> None:
    assert not packages(loaded[READERS]) & {"dspy", "gepa", "numpy", "scipy", *SLOW}


def test_a_run_that_nobody_follows_loads_none_of_its_readers(loaded) -> None:
    # The caller's MLflow run is noted for whoever may follow: it reads nothing of a run.
    tracking = {name for name in loaded[SEARCH] if name.startswith("combee_dspy.tracking.")}
    assert tracking == {"combee_dspy.tracking._base", "combee_dspy.tracking._caller"}
