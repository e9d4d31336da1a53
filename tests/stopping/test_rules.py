from __future__ import annotations

from typing import Any, ClassVar

import pytest

from combee_dspy.costs import Counts, Price, PriceTable, Totals
from combee_dspy.exceptions import ArgumentError, ArgumentTypeError, ArgumentValueError
from combee_dspy.stopping import AllOf, AnyOf, Budget, RunView, StoppingRule, require_prices


class After(StoppingRule):
    name: ClassVar[str] = "after"

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def check(self, view: RunView) -> str | None:
        return f"after {self.iteration}" if view.iteration >= self.iteration else None


class Broken(StoppingRule):
    name: ClassVar[str] = "broken"

    def check(self, view: RunView) -> str | None:
        raise RuntimeError("broken rule")


def _view(**spent: Any) -> RunView:
    counts = Counts(
        calls=spent.get("calls", 0),
        cached=spent.get("cached", 0),
        prompt_tokens=spent.get("tokens", 0),
        known_dollars=spent.get("dollars", 0.0),
        unpriced=spent.get("unpriced", 0),
    )
    return RunView(
        rollouts=spent.get("rollouts", 0),
        totals=Totals(total=counts),
        seconds=spent.get("seconds", 0.0),
        iteration=spent.get("iteration", 0),
        epochs=spent.get("epochs", 0.0),
    )


@pytest.mark.parametrize("limit", ["rollouts", "calls", "tokens", "dollars", "seconds", "epochs"])
def test_each_limit_stops_when_it_is_reached_and_not_before(limit: str) -> None:
    budget = Budget(**{limit: 10})
    assert budget.check(_view(**{limit: 9})) is None
    reason = budget.check(_view(**{limit: 10}))
    assert reason is not None
    assert reason.startswith(f"budget.{limit} is spent: 10 of 10")
    others = {name: 1_000 for name in ("rollouts", "calls", "tokens", "dollars", "seconds") if name != limit}
    assert budget.check(_view(**others)) is None


def test_cache_hits_do_not_count_as_calls() -> None:
    assert Budget(calls=10).check(_view(calls=15, cached=6)) is None
    assert Budget(calls=10).check(_view(calls=15, cached=5)) is not None


@pytest.mark.parametrize("limit", ["rollouts", "calls", "tokens", "dollars", "seconds", "epochs"])
@pytest.mark.parametrize(
    ("value", "error"),
    [
        (-1, ArgumentValueError),
        (0, ArgumentValueError),
        (float("nan"), ArgumentValueError),
        (float("inf"), ArgumentValueError),
        ("10", ArgumentTypeError),
        (True, ArgumentTypeError),
        ([5], ArgumentTypeError),
    ],
)
def test_wrong_limits_are_refused_by_name(limit: str, value: object, error: type[ArgumentError]) -> None:
    with pytest.raises(error, match=rf"budget\.{limit}"):
        Budget(**{limit: value})  # type: ignore[arg-type]  # wrong on purpose


def test_a_budget_without_a_limit_is_refused() -> None:
    with pytest.raises(ArgumentValueError, match="budget"):
        Budget()


def test_algebra() -> None:
    early, late = After(1), After(2)
    assert (early | late).check(_view(iteration=0)) is None
    assert (early | late).check(_view(iteration=1)) == "after 1"
    assert (early & late).check(_view(iteration=1)) is None
    assert (early & late).check(_view(iteration=2)) == "after 1; after 2"
    assert (early | late | After(3)) == AnyOf((early, late, After(3)))
    assert (early & (late | After(3))) == AllOf((early, AnyOf((late, After(3)))))


def test_a_broken_rule_is_an_error_wherever_it_stands() -> None:
    for rule in (Broken(), After(0) | Broken(), After(9) & Broken()):
        with pytest.raises(RuntimeError, match="broken rule"):
            rule.check(_view())


def test_only_rules_compose() -> None:
    with pytest.raises(TypeError):
        After(1) | "later"  # type: ignore[operator]  # wrong on purpose
    with pytest.raises(ArgumentTypeError):
        AnyOf(["later"])  # type: ignore[list-item]  # wrong on purpose
    with pytest.raises(ArgumentValueError):
        AllOf(())


def test_rules_are_rebuilt_from_their_parameters() -> None:
    rule = Budget(tokens=5) | After(1)
    assert AnyOf(**rule.params()) == rule
    assert Budget(**Budget(tokens=5, seconds=2.5).params()) == Budget(tokens=5, seconds=2.5)


def test_the_limit_in_epochs_of_composed_rules() -> None:
    one, two = Budget(epochs=1), Budget(epochs=2.5, tokens=10)
    assert Budget(tokens=10).epoch_limit() is None
    assert (one | two | After(1)).epoch_limit() == 1
    assert (one & two).epoch_limit() == 2.5
    assert (one & two & After(1)).epoch_limit() is None
    assert After(1).epoch_limit() is None


def test_whether_a_limit_on_cost_is_reached() -> None:
    view = _view(rollouts=10, seconds=5.0, epochs=1.0)
    costly, free = Budget(seconds=5), Budget(epochs=1)
    assert costly.cost_reached(view)
    assert Budget(rollouts=10).cost_reached(view)
    assert not Budget(seconds=5.1).cost_reached(view)
    assert free.check(view) is not None
    assert not free.cost_reached(view)
    assert (free | costly).cost_reached(view)
    assert not (free & costly).cost_reached(view)
    assert (costly & Budget(rollouts=4)).cost_reached(view)
    assert not After(1).cost_reached(view)


def test_what_cannot_be_counted_cannot_be_kept() -> None:
    assert Budget(gpu_seconds=9).cost_reached(_view())
    assert Budget(dollars=9).cost_reached(_view(unpriced=1))
    assert not Budget(dollars=9).cost_reached(_view(dollars=8.9))
    assert Budget(tokens=9).cost_reached(_view(tokens=9))


def test_a_part_of_an_epoch_is_a_limit_too() -> None:
    assert Budget(epochs=0.5).check(_view(epochs=119 / 240)) is None
    assert Budget(epochs=0.5).check(_view(epochs=120 / 240)) == "budget.epochs is spent: 0.5 of 0.5"


def test_a_dollars_budget_needs_every_price() -> None:
    models = {"task": "openai/gpt-4o-mini", "proposer": "openai/mine"}
    rule = After(3) | Budget(dollars=1)
    with pytest.raises(ArgumentValueError, match=r"budget\.dollars.*openai/mine.*proposer"):
        require_prices(rule, models, PriceTable())
    require_prices(rule, models, PriceTable({"openai/mine": Price(0, 0)}))
    require_prices(Budget(tokens=1), models, PriceTable())
    require_prices(None, models, PriceTable())


def test_a_dollars_budget_stops_once_spending_is_unknown() -> None:
    reason = Budget(dollars=1).check(_view(dollars=0.25, unpriced=2))
    assert reason is not None
    assert "2 calls have no known cost" in reason
    assert Budget(tokens=100).check(_view(tokens=5, unpriced=2)) is None
