from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.exceptions import ArgumentError, ArgumentTypeError, ArgumentValueError
from combee_dspy.stopping import (
    Budget,
    Patience,
    RunView,
    StoppingRule,
    Target,
    ask,
    require_gpu_seconds,
)
from combee_dspy.testing import checks_for


def view(*history: tuple[int, float], iteration: int = 0, **more: Any) -> RunView:
    return RunView(
        iteration=iteration, validation_scores=tuple(score for _, score in history), validation_history=history, **more
    )


def test_a_target_is_reached_by_the_best_candidate() -> None:
    rule = Target(0.8)
    assert rule.check(view()) is None
    assert rule.check(view((0, 0.5), (1, 0.79))) is None
    assert rule.check(view((0, 0.5), (1, 0.8), (2, 0.1))) == "the target is reached: a validation score of 0.8 of 0.8"


def test_patience_counts_iterations_since_the_last_improvement() -> None:
    rule = Patience(3)
    history = ((0, 0.5), (2, 0.6), (4, 0.6), (5, 0.55))
    assert rule.check(view(*history, iteration=4)) is None
    reason = rule.check(view(*history, iteration=5))
    assert reason is not None
    assert "in 3 iterations" in reason
    assert "0.6" in reason
    assert rule.check(view(*history, (5, 0.61), iteration=5)) is None


def test_iterations_that_validate_nothing_count() -> None:
    assert Patience(3).check(view((0, 0.5), iteration=2)) is None
    assert Patience(3).check(view((0, 0.5), iteration=3)) is not None
    assert Patience(3).check(view(iteration=9)) is None


def test_small_steps_count_once_together_they_are_large_enough() -> None:
    climbing = [(n, 0.5 + n * 0.01) for n in range(10)]
    assert Patience(4, min_delta=0.025).check(view(*climbing, iteration=9)) is None
    assert Patience(2, min_delta=0.5).check(view(*climbing, iteration=9)) is not None
    assert Patience(2).check(view((0, 0.5), (1, 0.5), (2, 0.5), iteration=2)) is not None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.integers(1, 8), st.floats(0, 0.3))
def test_patience_ends_a_run_after_any_history(scores: list[float], iterations: int, delta: float) -> None:
    history = tuple(enumerate(scores))
    rule = Patience(iterations, min_delta=delta)
    assert rule.check(view(*history, iteration=len(scores) + iterations)) is not None
    best = max(scores) + delta + 0.01
    assert rule.check(view(*history, (len(scores), best), iteration=len(scores))) is None


def test_patience_on_the_training_score_is_refused_and_says_why() -> None:
    with pytest.raises(ArgumentValueError, match=r"patience\.on .*minibatch.*rises on the examples"):
        Patience(3, on="train")
    with pytest.raises(ArgumentValueError, match="nothing that patience can wait on"):
        Patience(3, on="heldout")


def test_patience_without_a_history_is_loud() -> None:
    with pytest.raises(ArgumentValueError, match="when each was validated"):
        Patience(3).check(RunView(validation_scores=(0.5,)))


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (lambda: Target("high"), "target.score"),
        (lambda: Target(float("nan")), "target.score"),
        (lambda: Target(True), "target.score"),
        (lambda: Patience(0), "patience.iterations"),
        (lambda: Patience(2.5), "patience.iterations"),
        (lambda: Patience(True), "patience.iterations"),
        (lambda: Patience(2, min_delta=-0.1), "patience.min_delta"),
        (lambda: Patience(2, min_delta=float("inf")), "patience.min_delta"),
    ],
)
def test_wrong_parameters_are_refused_by_name(build, name: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        build()
    assert caught.value.argument == name


def test_rules_compose() -> None:
    either = Target(0.9) | Patience(2)
    both = Target(0.9) & Patience(2)
    stale, reached = view((0, 0.5), iteration=5), view((0, 0.95), iteration=1)
    done = view((0, 0.95), iteration=5)
    assert (either.check(stale), either.check(reached)) == (Patience(2).check(stale), Target(0.9).check(reached))
    assert both.check(stale) is None
    assert both.check(reached) is None
    assert "target" in str(both.check(done))
    assert "patience" in str(both.check(done))


class Says(StoppingRule):
    name: ClassVar[str] = "says"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def check(self, view: RunView) -> str | None:
        return self.answer


@pytest.mark.parametrize("answer", [True, False, 0, 1.0, "", "  ", ["why"], b"why"])
def test_an_answer_that_is_no_reason_is_an_error_wherever_it_stands(answer: Any) -> None:
    with pytest.raises(ArgumentTypeError, match=r"'says'.*no reason"):
        ask(Says(answer), RunView())
    for composed in (Says(answer) | Target(1), Target(-1) & Says(answer), Says("why") | Says(answer)):
        with pytest.raises(ArgumentTypeError, match="'says'"):
            composed.check(RunView())


def test_an_answer_that_is_one_is_passed_on() -> None:
    assert ask(Says("why"), RunView()) == "why"
    assert ask(Says(None), RunView()) is None


def test_gpu_seconds() -> None:
    rule = Target(1) | Budget(gpu_seconds=100)
    assert rule.needs_gpu_seconds()
    assert not (Target(1) & Budget(seconds=1)).needs_gpu_seconds()
    assert rule.check(RunView(gpu_seconds=99.0, seconds=10**6)) is None
    assert rule.check(RunView(gpu_seconds=100.0)) == "budget.gpu_seconds is spent: 100 of 100"
    assert "nobody counts" in str(rule.check(RunView()))
    with pytest.raises(ArgumentValueError, match="nobody counts"):
        require_gpu_seconds(rule, False)
    require_gpu_seconds(rule, True)
    require_gpu_seconds(Budget(seconds=1), False)
    require_gpu_seconds(None, False)


# --- the conformance checks -------------------------------------------------------------------------------------


class Counting(StoppingRule):
    """Stops the fifth time it is asked."""

    name: ClassVar[str] = "counting"

    def check(self, view: RunView) -> str | None:
        self.asked = getattr(self, "asked", 0) + 1
        return "asked often" if self.asked > 5 else None


class LooseLimit(Says):
    def rollout_limit(self) -> int | None:
        return 60


class LooseEpochs(Says):
    def epoch_limit(self) -> float | None:
        return 1.5


class SpendsOn(Says):
    def cost_reached(self, view: RunView) -> bool:
        return view.seconds > 1


class Crashes(Says):
    def check(self, view: RunView) -> str | None:
        return f"best is {max(view.validation_scores)}"


def failing(rule: StoppingRule) -> set[str]:
    found = set()
    for check in checks_for(rule):
        if check.__module__.endswith("checks.stopping"):
            try:
                check(rule)
            except AssertionError:
                found.add(check.__name__)
    return found


@pytest.mark.parametrize(
    ("rule", "check"),
    [
        (Says(True), "check_answers_with_a_reason_or_none"),
        (Says(""), "check_answers_with_a_reason_or_none"),
        (Counting(), "check_is_a_pure_function_of_the_view"),
        (LooseLimit(None), "check_keeps_its_rollout_limit"),
        (LooseEpochs(None), "check_keeps_its_epoch_limit"),
        (SpendsOn(None), "check_stops_where_a_limit_on_cost_is_reached"),
        (Crashes(None), "check_answers_with_a_reason_or_none"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_rule_that_breaks_the_contract_is_found(rule: StoppingRule, check: str) -> None:
    assert check in failing(rule)


@pytest.mark.parametrize(
    "rule", [Target(0.5), Patience(2), Budget(rollouts=60, gpu_seconds=5), Budget(epochs=2), Says("always")], ids=repr
)
def test_rules_that_keep_it_pass(rule: StoppingRule) -> None:
    assert len([check for check in checks_for(rule) if check.__module__.endswith("checks.stopping")]) == 6
    assert failing(rule) == set()
    assert failing(rule | Budget(seconds=3)) == set()
