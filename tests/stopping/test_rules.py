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

LIMITS = [each.name for each in fields(Limits)]


class After(StoppingRule):
    name: ClassVar[str] = "after"

    def __init__(self, update: int) -> None:
        self.update = update

    def check(self, view: RunView) -> str | None:
        return f"after {self.update}" if view.updates >= self.update else None


class Says(StoppingRule):
    name: ClassVar[str] = "says"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def check(self, view: RunView) -> str | None:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize("limit", LIMITS)
def test_each_limit_stops_when_it_is_reached_and_not_before(limit: str) -> None:
    budget = Budget(**{limit: 10})
    nothing = RunView(gpu_seconds=0.0)
    assert budget.check(replace(nothing, **{limit: 9})) is None
    reason = budget.check(replace(nothing, **{limit: 10}))
    assert reason == f"budget.{limit} is spent: 10 of 10"
    assert (
        budget.check(replace(nothing, **{name: 1_000 for name in LIMITS if name != limit})) is None
    )


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("value", [-1, 0, float("nan"), float("inf"), "many", [5]])
def test_wrong_limits_are_refused_by_name(limit: str, value: object) -> None:
    with pytest.raises(ArgumentError, match=rf"Budget\.{limit}"):
        Budget(**{limit: value})  # type: ignore[arg-type]  # wrong on purpose


def test_a_budget_without_a_limit_is_refused() -> None:
    with pytest.raises(ArgumentValueError, match=r"no limit.*rollouts.*epochs"):
        Budget()


def test_all_limits_that_are_reached_are_named() -> None:
    reason = Budget(calls=2, seconds=1.5).check(RunView(calls=3, seconds=1.75))
    assert reason == "budget.calls is spent: 3 of 2; budget.seconds is spent: 1.75 of 1.5"


def test_a_part_of_an_epoch_is_a_limit_too() -> None:
    assert Budget(epochs=0.5).check(RunView(epochs=119 / 240)) is None
    assert (
        Budget(epochs=0.5).check(RunView(epochs=120 / 240)) == "budget.epochs is spent: 0.5 of 0.5"
    )


@pytest.mark.parametrize(
    ("spent", "limit", "told"), [(2.00001, 2, "2 of 2"), (0.00005, 0.00004, "5e-05 of 4e-05")]
)
def test_amounts_are_told_as_one_writes_them(spent: float, limit: float, told: str) -> None:
    assert Budget(dollars=limit).check(RunView(dollars=spent)) == f"budget.dollars is spent: {told}"


def test_a_limit_that_cannot_be_kept_stops_the_run() -> None:
    assert "price of a call" in str(Budget(dollars=1).check(RunView(dollars=None)))
    assert "nobody counts" in str(Budget(gpu_seconds=1).check(RunView()))
    assert Budget(tokens=100).check(RunView(dollars=None, tokens=5)) is None


def test_a_dollars_budget_needs_every_price() -> None:
    rule = After(3) | Budget(dollars=1)
    with pytest.raises(ArgumentValueError, match=r"budget\.dollars.*openai/mine.*proposer"):
        require_countable(rule, unpriced={"proposer": "openai/mine"}, gpus=False)
    require_countable(rule, unpriced={}, gpus=False)
    require_countable(Budget(tokens=1), unpriced={"proposer": "openai/mine"}, gpus=False)
    require_countable(None, unpriced={"proposer": "openai/mine"}, gpus=False)


def test_a_budget_in_gpu_seconds_needs_gpus() -> None:
    rule = Target(1) & Budget(gpu_seconds=1)
    with pytest.raises(ArgumentValueError, match="nobody counts"):
        require_countable(rule, unpriced={}, gpus=False)
    require_countable(rule, unpriced={}, gpus=True)
    require_countable(Budget(seconds=1), unpriced={}, gpus=False)


def test_limits_of_one_rule_or_another_are_the_smallest() -> None:
    rule = Budget(rollouts=10, epochs=2) | Budget(rollouts=4, seconds=9) | Patience(3)
    assert rule.limits() == Limits(rollouts=4, epochs=2, seconds=9)


def test_limits_of_both_rules_are_the_largest_where_both_have_one() -> None:
    assert (Budget(rollouts=10, epochs=2) & Budget(rollouts=4, seconds=9)).limits() == Limits(
        rollouts=10
    )
    assert (Budget(rollouts=10) & Patience(3)).limits() == Limits()


def test_limits_of_nested_rules() -> None:
    assert ((Budget(rollouts=10) & Target(1)) | Budget(epochs=1)).limits() == Limits(epochs=1)
    assert ((Budget(rollouts=10) | Target(1)) & Budget(rollouts=20)).limits() == Limits(rollouts=20)


def test_algebra() -> None:
    early, late = After(1), After(2)
    assert (early | late).check(RunView()) is None
    assert (early | late).check(RunView(updates=1)) == "after 1"
    assert (early & late).check(RunView(updates=1)) is None
    assert (early & late).check(RunView(updates=2)) == "after 1; after 2"
    assert (early | late | After(3)) == AnyOf((early, late, After(3)))
    assert (early & (late | After(3))) == AllOf((early, AnyOf((late, After(3)))))


def test_a_broken_rule_is_an_error_wherever_it_stands() -> None:
    broken = Says(RuntimeError("broken rule"))
    for rule in (broken, After(0) | broken, After(9) & broken):
        with pytest.raises(RuntimeError, match="broken rule"):
            rule.check(RunView())


def test_only_rules_compose() -> None:
    with pytest.raises(TypeError):
        After(1) | "later"  # type: ignore[operator]  # wrong on purpose
    with pytest.raises(ArgumentTypeError):
        AnyOf(["later"])  # type: ignore[list-item]  # wrong on purpose
    with pytest.raises(ArgumentValueError):
        AllOf(())


@pytest.mark.parametrize(
    "rule",
    [
        Budget(tokens=5, seconds=2.5),
        Budget(tokens=5) | Patience(2),
        Target(0.5) & (Patience(2) | Target(1)),
    ],
)
def test_rules_are_rebuilt_from_their_specs(rule: StoppingRule) -> None:
    assert Spec.of(rule).build() == rule


@pytest.mark.parametrize("answer", [True, False, 0, 1.0, "", "  ", ["why"], b"why"])
def test_an_answer_that_is_no_reason_is_an_error_wherever_it_stands(answer: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"'says'.*no reason"):
        ask(Says(answer), RunView())
    reached = RunView(validation_history=((-1, 0.0),))
    for composed in (
        Says(answer) | Target(1),
        Target(-1) & Says(answer),
        Says("why") | Says(answer),
    ):
        with pytest.raises(ArgumentTypeError, match="'says'"):
            composed.check(reached)


def test_an_answer_that_is_one_is_passed_on() -> None:
    assert ask(Says("why"), RunView()) == "why"
    assert ask(Says(None), RunView()) is None
