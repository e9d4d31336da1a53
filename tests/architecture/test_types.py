"""What a type checker tells a user."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
CALLS = """
from typing import Any

import dspy

from combee_dspy import Combee, Metric


def use(program: dspy.Module, metric: Metric, rows: list[Any], options: dict[str, Any]) -> None:
    Combee(metric, seed=1).compile(program, trainset=rows)
    Combee(metric, **options).compile(program, **options)
    Combee(metric, num_thread=1)
    Combee(metric).compile(program, trainst=rows)
"""


def test_a_type_checker_flags_a_misspelt_argument(tmp_path: Path) -> None:
    # Both take any name, to refuse a misspelt one with the nearest, and still may hide none.
    file = tmp_path / "calls.py"
    file.write_text(CALLS, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", str(file)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    first, second, end = result.stdout.splitlines()
    assert 'Argument "num_thread" to "Combee"' in first
    assert 'Argument "trainst" to "compile" of "Combee"' in second
    assert end.startswith("Found 2 errors")
