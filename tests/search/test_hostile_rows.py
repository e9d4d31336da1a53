"""Rows that no journal can hold are refused by name, and so is a metric that changes a row."""

from __future__ import annotations

from typing import Any

import dspy
import pytest

from combee_dspy.exceptions import ArgumentValueError
from tests.worlds import World, examples, metric

CYCLE: list[Any] = []
CYCLE.append(CYCLE)


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value", [CYCLE, {"a": CYCLE}, nested(3_000), 10**5_000], ids=["cycle", "in", "deep", "digits"]
)
@pytest.mark.parametrize("field", ["question", "note"])
def test_a_row_that_no_journal_can_hold_is_refused_by_name(value: Any, field: str) -> None:
    world = World.made()
    row = dspy.Example(**{"question": "a", "answer": "b", field: value})
    rows = [*examples(2), row.with_inputs("question")]

    with dspy.context(lm=world.task_lm), pytest.raises(ArgumentValueError, match=r"trainset\[2\]"):
        world.combee().compile(dspy.Predict("question -> answer"), trainset=rows)
    assert world.asked == 0


@pytest.mark.parametrize("how", ["field", "inside"])
def test_a_metric_that_changes_its_example_is_refused_by_name(how: str) -> None:
    def changing(gold: Any, pred: Any, *more: Any) -> Any:
        score = metric(gold, pred)
        if how == "field":
            gold.answer = pred.answer
        else:
            gold.notes.append(pred.answer)
        return score

    world = World.made()
    rows = [row.copy(notes=[]) for row in examples(12)]
    with (
        dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()),
        pytest.raises(ArgumentValueError, match="is an example that was changed"),
    ):
        world.combee(metric=changing).compile(dspy.Predict("question -> answer"), trainset=rows)
