"""A run goes on with a metric that has changed its state, and with no metric that has other
code.
"""

from __future__ import annotations

import functools
import types
from pathlib import Path
from typing import Any

import pytest

from combee_dspy.exceptions import JournalMismatchError
from tests.slow import slow_but
from tests.worlds import World, metric


class Counting:
    def __init__(self) -> None:
        self.calls = 0
        self.cache: dict[str, Any] = {}

    def __call__(
        self,
        gold: Any,
        pred: Any,
        trace: Any = None,
        pred_name: Any = None,
        pred_trace: Any = None,
    ) -> Any:
        self.calls += 1
        self.cache[gold.question] = pred.answer
        return metric(gold, pred)


def over_a_dict() -> Any:
    cache: dict[str, Any] = {}

    def score(
        gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
    ) -> Any:
        cache[gold.question] = pred.answer
        return metric(gold, pred)

    return score


def partly() -> Any:
    def score(
        cache: Any, gold: Any, pred: Any, trace: Any = None, name: Any = None, part: Any = None
    ) -> Any:
        cache[gold.question] = pred.answer
        return metric(gold, pred)

    return functools.partial(score, {})


CELL = """
from tests.worlds import metric as scored
calls = 0
seen = []
def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
    global calls
    calls += 1
    seen.append(pred.answer)
    return scored(gold, pred)
"""


def cell(source: str = CELL) -> Any:
    made = types.ModuleType("__main__")
    exec(compile(source, "<cell>", "exec"), vars(made))  # noqa: S102 - a notebook's cell
    return made.metric


@pytest.mark.parametrize("make", slow_but((Counting,), [Counting, over_a_dict, partly, cell]))
def test_a_run_goes_on_with_its_own_metric(make: Any, tmp_path: Path) -> None:
    scorer = make()
    given: dict[str, Any] = {"log_dir": tmp_path, "reflection_minibatch_size": 6}
    World.made().compile(metric=scorer, max_metric_calls=40, **given)
    report = World.made().compile(metric=scorer, max_metric_calls=80, **given).combee_report
    assert report.best_score > report.seed_score

    again = World.made()
    repeated = again.compile(metric=make(), max_metric_calls=80, **given).combee_report
    assert repeated.texts == report.texts
    assert not again.task_lm.requests


def test_other_feedback_is_another_metric_to_a_journal(tmp_path: Path) -> None:
    World.made().compile(metric=cell(), log_dir=tmp_path, max_metric_calls=40)
    changed = CELL.replace(
        "    return scored(gold, pred)", "    return dspy.Prediction(score=0, feedback='Try.')"
    )

    with pytest.raises(JournalMismatchError, match=r"metric was .* are not mixed") as caught:
        World.made().compile(metric=cell("import dspy\n" + changed), log_dir=tmp_path)
    assert [text.split()[0] for text in caught.value.differs] == ["metric"]
    report = (
        World.made().compile(metric=cell(), log_dir=tmp_path, max_metric_calls=80).combee_report
    )
    assert report.best_score > report.seed_score
