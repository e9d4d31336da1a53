"""Budgets, and rules that are composed with ``|`` and ``&``."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, ClassVar

import pytest

from combee_dspy.exceptions import ArgumentError, ArgumentTypeError, ArgumentValueError
from combee_dspy.registry import Spec
from combee_dspy.stopping import (
    AllOf,
    AnyOf,
    Budget,
    Limits,
    Patience,
    RunView,
    StoppingRule,
    Target,
    ask,
    require_countable,
)

LIMITS = [limit.name for limit in fields(Limits)]
UNPRICED = {"proposer": "openai/mine"}


class After(StoppingRule):
    """Stops at an update."""

    name: ClassVar[str] = "after"

    def __init__(self, update: int) -> None:
        self.update = update

    def check(self, view: RunView) -> str | None:
        return f"after {self.update}" if view.updates >= self.update else None


class Answers(StoppingRule):
    """Returns anything, or raises it."""

    name: ClassVar[str] = "answers"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def check(self, view: RunView) -> str | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("limit", LIMITS)
def test_each_limit_stops_when_it_is_reached_and_not_before(limit: str) -> None:
    budget, view = Budget(**{limit: 10}), RunView(gpu_seconds=0.0)
    others = {name: 1_000 for name in LIMITS if name != limit}
    assert budget.check(replace(view, **{limit: 9}, **others)) is None
    assert budget.check(replace(view, **{limit: 10})) == f"budget.{limit} is spent: 10 of 10"


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("value", [0, float("nan"), "many"])
def test_wrong_limits_are_refused_by_name(limit: str, value: object) -> None:
    with pytest.raises(ArgumentError, match=rf"Budget\.{limit}"):
        Budget(**{limit: value})  # type: ignore[arg-type]  # wrong on purpose


def test_a_budget_without_a_limit_is_refused() -> None:
    with pytest.raises(ArgumentValueError, match=r"no limit.*rollouts.*epochs"):
        Budget()


@pytest.mark.parametrize(
    ("budget", "view", "reason"),
    [
        (
            Budget(calls=2, seconds=1.5),
            RunView(calls=3, seconds=1.75),
            "budget.calls is spent: 3 of 2; budget.seconds is spent: 1.75 of 1.5",
        ),
        (Budget(epochs=0.5), RunView(epochs=119 / 240), None),
        (Budget(epochs=0.5), RunView(epochs=120 / 240), "budget.epochs is spent: 0.5 of 0.5"),
        (Budget(dollars=2), RunView(dollars=2.00001), "budget.dollars is spent: 2 of 2"),
        (
            Budget(dollars=0.00004),
            RunView(dollars=0.00005),
            "budget.dollars is spent: 5e-05 of 4e-05",
        ),
        (
            Budget(dollars=1),
            RunView(dollars=None),
            "budget.dollars cannot be kept: the price of a call that was made is not known",
        ),
        (Budget(tokens=100), RunView(dollars=None, tokens=5), None),
    ],
)
def test_every_limit_that_is_reached_is_named_with_both_figures(
    budget: Budget, view: RunView, reason: str | None
) -> None:
    assert budget.check(view) == reason


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (After(3) | Budget(dollars=1), r"budget\.dollars.*openai/mine.*proposer"),
        (Target(1) & Budget(gpu_seconds=1), "nobody counts"),
    ],
)
def test_what_a_budget_counts_must_be_known_before_the_run(
    rule: StoppingRule, problem: str
) -> None:
    with pytest.raises(ArgumentValueError, match=problem):
        require_countable(rule, unpriced=UNPRICED, gpus=False)
    require_countable(rule, unpriced={}, gpus=True)


@pytest.mark.parametrize("rule", [None, Budget(tokens=1, seconds=1)])
def test_what_a_rule_does_not_decide_by_may_be_unknown(rule: StoppingRule | None) -> None:
    require_countable(rule, unpriced=UNPRICED, gpus=False)


@pytest.mark.parametrize(
    ("rule", "limits"),
    [
        (
            Budget(rollouts=10, epochs=2) | Budget(rollouts=4, seconds=9) | Patience(3),
            Limits(rollouts=4, epochs=2, seconds=9),
        ),
        (Budget(rollouts=10, epochs=2) & Budget(rollouts=4, seconds=9), Limits(rollouts=10)),
        (Budget(rollouts=10) & Patience(3), Limits()),
        ((Budget(rollouts=10) & Target(1)) | Budget(epochs=1), Limits(epochs=1)),
        ((Budget(rollouts=10) | Target(1)) & Budget(rollouts=20), Limits(rollouts=20)),
    ],
)
def test_limits_are_the_smallest_of_either_rule_and_the_largest_of_both(
    rule: StoppingRule, limits: Limits
) -> None:
    assert rule.limits() == limits


def test_either_rule_stops_or_both_must() -> None:
    early, late = After(1), After(2)
    assert (early | late).check(RunView()) is None
    assert (early | late).check(RunView(updates=1)) == "after 1"
    assert (early & late).check(RunView(updates=1)) is None
    assert (early & late).check(RunView(updates=2)) == "after 1; after 2"
    assert (early | late | After(3)) == AnyOf((early, late, After(3)))
    assert (early & (late | After(3))) == AllOf((early, AnyOf((late, After(3)))))


def test_only_rules_compose() -> None:
    with pytest.raises(TypeError):
        After(1) | "later"  # type: ignore[operator]  # wrong on purpose
    with pytest.raises(ArgumentTypeError):
        AnyOf(["later"])  # type: ignore[list-item]  # wrong on purpose
    with pytest.raises(ArgumentValueError):
        AllOf(())


@pytest.mark.parametrize(
    "rule", [Budget(tokens=5, seconds=2.5), Target(0.5) & (Patience(2) | Target(1))]
)
def test_rules_are_rebuilt_from_their_specs(rule: StoppingRule) -> None:
    assert Spec.of(rule).build() == rule


@pytest.mark.parametrize("answer", [True, 0, "  ", ["why"], RuntimeError("'answers' is broken")])
def test_a_rule_that_answers_with_no_reason_or_raises_is_an_error_within_others_too(
    answer: Any,
) -> None:
    rule = Answers(answer)
    view = RunView(validation_history=((-1, 0.0),))
    for check in (
        lambda: ask(rule, view),
        lambda: (After(0) | rule).check(view),
        lambda: (Target(-1) & rule).check(view),
        lambda: (After(9) & rule).check(view),
    ):
        with pytest.raises((ArgumentTypeError, RuntimeError), match="'answers'"):
            check()


def test_a_reason_is_passed_on() -> None:
    assert ask(Answers("why"), RunView()) == "why"
    assert ask(Answers(None), RunView()) is None
