"""The demo, on the real embedded model, cut short."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

pytest.importorskip("xllamacpp", reason="the embedded model needs the extra 'local'")

from combee_dspy import demo
from combee_dspy.bench.demo import table
from combee_dspy.evaluation import PairedDifference
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms.embedded import find_model

pytestmark = pytest.mark.embedded


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if find_model() is None:
        pytest.skip("the embedded model's weights are not installed")
    sizes = {**demo.EMBEDDED.params, "train": 12, "validation": 6, "heldout": 6}
    monkeypatch.setattr(demo, "EMBEDDED", replace(demo.EMBEDDED, params=sizes, rollouts=24))
    return


def _run(options: demo.DemoOptions) -> tuple[Any, str]:
    console = Console(file=io.StringIO(), width=100)
    report = demo.run_demo(options, console)
    return report, console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO


def test_it_runs_and_says_what_it_did(short: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    report, shown = _run(demo.DemoOptions(mlflow=False, seed=3))
    assert report.heldout is not None
    assert report.heldout.size == 6
    assert set(report.costs["by_role"]) == {"task"}, "demonstrations cost no call of a proposer"
    for said in ("real but tiny", "135 million", "--lm openai/", "--benchmark formula --path", "before", "the learned"):
        assert said in shown
    assert f"{report.heldout.before:.2f}" in shown
    assert not list(tmp_path.iterdir()), "without MLflow nothing is written"


@pytest.mark.parametrize(
    ("low", "high", "after", "said"),
    [
        (0.1, 0.3, 0.6, "is better on questions"),
        (-0.1, 0.3, 0.5, "did not improve clearly"),
        (0.0, 0.0, 0.4, "did not improve."),
        (-0.3, -0.1, 0.2, "Do not use it"),
    ],
)
def test_the_verdict_is_what_the_interval_says(low: float, high: float, after: float, said: str) -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(demo._verdict(PairedDifference(0.4, after, low, high, 0.95, 60)))
    assert said in console.file.getvalue()  # type: ignore[attr-defined]  # a StringIO


def test_a_key_that_is_not_set_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    with pytest.raises(ArgumentValueError, match="NO_SUCH_KEY"):
        demo.run_demo(demo.DemoOptions(lm="openai/x", api_key_env="NO_SUCH_KEY", mlflow=False))


def test_the_table_has_a_row_a_run() -> None:
    row = {
        "method": "combee",
        "seed": 1,
        "before": 0.4,
        "after": 0.7,
        "low": 0.1,
        "high": 0.5,
        "seconds": 9,
        "tokens": 5,
    }
    assert "| combee | 1 | 0.40 → 0.70 | +0.30 | +0.10 to +0.50 | 9 | 5 |" in table([row])
