"""What `import combee_dspy` loads beyond `import dspy`: nothing slow."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("aiohttp", "datasets", "litellm", "matplotlib", "mlflow", "pandas", "pyarrow", "ray", "scipy", "xllamacpp")

PROBE = """
import importlib, json, sys
import dspy
before = set(sys.modules)
for name in {names!r}:
    importlib.import_module(name)
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def loaded_by(*names: str) -> set[str]:
    done = subprocess.run(  # noqa: S603 - this interpreter and the code above
        [sys.executable, "-c", PROBE.format(names=names)], capture_output=True, text=True, check=True, timeout=300
    )
    return {name.split(".")[0] for name in json.loads(done.stdout.splitlines()[-1])}


@pytest.mark.parametrize(
    "names",
    [
        ("combee_dspy",),
        (
            "combee_dspy.combee",
            "combee_dspy.registry",
            "combee_dspy.aggregators",
            "combee_dspy.operators",
            "combee_dspy.controllers",
            "combee_dspy.rollouts",
            "combee_dspy.benchmarks",
            "combee_dspy.tracking",
            "combee_dspy.lms",
        ),
    ],
    ids=["the package", "every room"],
)
def test_no_slow_module_is_loaded(names):
    added = loaded_by(*names)
    assert "combee_dspy" in added
    assert not added & set(HEAVY)


def test_the_probe_sees_a_slow_module():
    assert "scipy" in loaded_by("combee_dspy", "scipy.linalg")
