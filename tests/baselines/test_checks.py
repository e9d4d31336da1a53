"""The conformance kit finds what is wrong with a baseline."""

from __future__ import annotations

from typing import Any

import dspy
import pytest

from combee_dspy.baselines import Baseline
from combee_dspy.testing import checks_for
from combee_dspy.testing.checks._expect import ConformanceError


class Honest(Baseline):
    name = "honest"

    def search(self, task: Any, desk: Any) -> Any:
        desk.evaluate(task.program, task.validation)


class BehindTheBooks(Honest):
    def search(self, task: Any, desk: Any) -> Any:
        desk.evaluate(task.program, task.validation)
        task.program(question=task.train[0].question)


class NoCurve(Honest):
    def search(self, task: Any, desk: Any) -> Any:
        desk.evaluate(task.program, task.train)


class EditsTheProgram(Honest):
    def search(self, task: Any, desk: Any) -> Any:
        desk.evaluate(task.program, task.validation)
        task.program.demos = [dspy.Example(question="q", answer="a")]


class NeverHeardOf(Honest):
    distributions = ("no-such-distribution-anywhere",)


class Spendthrift(Honest):
    reports_itself = True

    def search(self, task: Any, desk: Any) -> Any:
        desk.evaluate(task.program, task.validation)
        desk.books.rollouts = 1_000


class BesideTheLedger(Honest):
    def search(self, task: Any, desk: Any) -> Any:
        desk.evaluate(task.program, task.validation)
        with dspy.context(callbacks=[], usage_tracker=None):
            task.reflection_lm("Improve the prompt.")


def failing(strategy: Baseline) -> set[str]:
    found = set()
    for check in checks_for(strategy):
        if not check.__module__.endswith(".baselines"):
            continue
        try:
            check(strategy)
        except ConformanceError:
            found.add(check.__name__)
    return found


@pytest.mark.parametrize(
    ("strategy", "check"),
    [
        (BehindTheBooks(), "check_every_task_call_belongs_to_a_rollout"),
        (NoCurve(), "check_curve_grows"),
        (EditsTheProgram(), "check_leaves_the_program_alone"),
        (NeverHeardOf(), "check_names_its_version"),
        (Spendthrift(), "check_keeps_the_budget"),
        (BesideTheLedger(), "check_ledger_is_the_truth"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Baseline) else "",
)
def test_a_fault_is_found_by_its_check(strategy: Baseline, check: str):
    assert check in failing(strategy)


def test_an_honest_baseline_passes():
    assert not failing(Honest())
