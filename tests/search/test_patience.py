"""Patience and targets read validation rows that the search does not learn from, or do not run."""

from __future__ import annotations

import dspy
import pytest

from combee_dspy import Budget
from combee_dspy.exceptions import RefusedError
from combee_dspy.stopping import Patience, StoppingRule, Target
from tests.worlds import World, examples


@pytest.mark.parametrize("rule", [Patience(updates=3), Target(score=0.9)])
@pytest.mark.parametrize(
    ("validation", "reason"),
    [
        (None, "12 of 12 validation rows are training rows"),
        (examples(12), "12 of 12 validation rows are training rows"),
        ([*examples(4, 100), *examples(1)], "1 of 5 validation rows are training rows"),
    ],
)
def test_a_rule_that_would_read_training_scores_ends_a_run_before_it_begins(
    world: World, rule: StoppingRule, validation: list[dspy.Example] | None, reason: str
) -> None:
    combee = world.combee(budget=Budget(rollouts=60) | (Budget(updates=9) & rule))
    with dspy.context(lm=world.task_lm), pytest.raises(RefusedError, match=reason):
        combee.compile(dspy.Predict("question -> answer"), trainset=examples(12), valset=validation)
    assert world.asked == 0


def test_a_budget_alone_runs_on_training_rows(world: World) -> None:
    report = world.compile(validation=0, budget=Budget(updates=1)).combee_report
    assert "No valset was given" in report.warnings[0]
