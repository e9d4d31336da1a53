"""Who scored stands on every row, also where that is code."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import pytest

from combee_dspy.evaluation import Judge
from combee_dspy.testing import ScriptedLM
from combee_dspy.tracking import rollouts, runs, show
from combee_dspy.tracking.report import write_report
from tests.worlds import World, in_kind, metric

SMALL: dict[str, Any] = {"train": 8, "validation": 4, "max_metric_calls": 30}


def scored(
    factor: float,
    gold: Any,
    pred: Any,
    trace: Any = None,
    pred_name: Any = None,
    pred_trace: Any = None,
) -> Any:
    return factor * metric(gold, pred).score


class Strict:
    def __call__(
        self, gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
    ) -> float:
        return metric(gold, pred).score


JUDGE = Judge(
    "Is it right?",
    lm=ScriptedLM(
        lambda one: in_kind(one, {"reasoning": "", "score": 0.5, "feedback": "f"}),
        model="scripted/judge",
    ),
)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (metric, r"tests\.worlds\.metric"),
        (functools.partial(scored, 1.0), r".*test_evaluator\.scored"),
        (Strict(), r".*test_evaluator\.Strict"),
        (
            lambda gold, pred, trace=None, pred_name=None, pred_trace=None: 1.0,
            r".*test_evaluator\.<lambda>",
        ),
        (JUDGE, r"combee_dspy\.evaluation\._judge\.Judge \(scripted/judge\)"),
    ],
)
def test_the_evaluator_is_on_every_row(world: World, tmp_path: Path, given: Any, name: str) -> None:
    world.compile(metric=given, log_dir=tmp_path, heldout=4, **SMALL)
    found = {row["evaluator"] for row in rollouts(tmp_path, limit=None)} | {
        row["evaluator"] for row in runs(tmp_path)
    }
    (one,) = found
    assert re.fullmatch(name + " #[0-9a-f]{12}", one)
    assert show(tmp_path, "effect/3")["evaluator"] == one
    assert len(rollouts(tmp_path, where=f"evaluator = '{one}'")) == len(rollouts(tmp_path))


def test_another_code_under_the_same_name_is_another_evaluator(
    world: World, tmp_path: Path
) -> None:
    for factor in (1.0, 0.5):
        given = functools.partial(scored, factor)
        world.compile(metric=given, log_dir=tmp_path / str(factor), **SMALL)
    first, second = (runs(tmp_path / one)[0]["evaluator"] for one in ("1.0", "0.5"))
    assert first.partition("#")[0] == second.partition("#")[0]
    assert first != second


def test_the_page_says_who_scored(world: World, tmp_path: Path) -> None:
    world.compile(log_dir=tmp_path, **SMALL)
    assert "scored by tests.worlds.metric #" in write_report(
        tmp_path, tmp_path / "r.html"
    ).read_text(encoding="utf-8")
