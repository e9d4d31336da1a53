"""What a budget allows: the number itself, what iterations may cost, and what a resume has left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest
from gepa.strategies.proposal_sampling import IndependentSampling, PxNSampling, SameParentSampling

from combee_dspy import Budget, Combee
from combee_dspy.checks import check_splits
from combee_dspy.costs import Counts, Totals
from combee_dspy.engine.seed import seed_candidate
from combee_dspy.engine.settings import minibatches_of, rollout_limit
from combee_dspy.engine.spending import add_totals, dump_totals, load_totals
from combee_dspy.registry import Spec
from combee_dspy.stopping import RunView, StoppingRule


def _combee(world: Any, **kwargs: Any) -> Combee:
    return Combee(world.metric, **{"reflection_lm": world.proposer_lm, "num_threads": 4, "progress": False, **kwargs})


def _compile(world: Any, combee: Combee, train: int = 240, validation: int = 10) -> Any:
    return combee.compile(
        world.student(), trainset=world.examples(train), valset=world.examples(validation, start=500)
    ).combee_report


@pytest.mark.parametrize("auto", ["light", "medium", "heavy"])
@pytest.mark.parametrize("operators", [None, ["insert"]])
def test_presets_buy_what_gepas_presets_buy(world: Any, auto: str, operators: Any) -> None:
    student, train, validation = world.student(), world.examples(24), world.examples(12, start=100)
    combee = _combee(world, auto=auto, operators=operators)
    stock = dspy.GEPA(world.metric, auto=auto, reflection_lm=world.proposer_lm)
    candidates = {"light": 6, "medium": 12, "heavy": 18}[auto]
    theirs = stock.auto_budget(num_preds=1, num_candidates=candidates, valset_size=12)
    seed = seed_candidate(student, {}, combee.operators)
    assert rollout_limit(combee, seed, check_splits(train, validation, None)) == theirs


@pytest.mark.parametrize(
    "budget",
    [
        Budget(rollouts=60) | Budget(seconds=999),
        Budget(rollouts=60) & Budget(rollouts=20),
        Budget(rollouts=60) | (Budget(rollouts=900) & Budget(seconds=1)),
    ],
)
def test_composed_budgets_clip_like_the_plain_one(world: Any, budget: Any) -> None:
    plain = _compile(world, _combee(world, budget=Budget(rollouts=60), reflection_minibatch_size=100))
    report = _compile(world, _combee(world, budget=budget, reflection_minibatch_size=100))
    assert [decision.size for decision in report.decisions] == [decision.size for decision in plain.decisions]
    assert plain.decisions[0].clamps


def test_rollout_limits_of_rules() -> None:
    assert (Budget(rollouts=60) | Budget(seconds=9)).rollout_limit() == 60
    assert (Budget(rollouts=60) | Budget(rollouts=20)).rollout_limit() == 20
    assert (Budget(rollouts=60) & Budget(rollouts=20)).rollout_limit() == 60
    assert (Budget(rollouts=60) & Budget(seconds=9)).rollout_limit() is None
    assert Budget(rollouts=0.5).rollout_limit() == 1


def test_rules_are_rebuilt_by_name() -> None:
    rule = Budget(rollouts=60) | (Budget(dollars=1.5) & Budget(seconds=9))
    assert Spec.from_dict(Spec.of(rule).to_dict()).build() == rule


@pytest.mark.parametrize(
    ("strategy", "drawn"),
    [(None, 1), (PxNSampling(2, 4), 8), (SameParentSampling(3), 3), (IndependentSampling(5), 5), (object(), 1)],
)
def test_minibatches_of_an_iteration(strategy: Any, drawn: int) -> None:
    assert minibatches_of(strategy) == drawn


def test_several_minibatches_of_one_iteration_share_the_budget(world: Any) -> None:
    sampling = {"sampling_strategy": PxNSampling(2, 4)}
    combee = _combee(
        world, max_metric_calls=200, gepa_kwargs=sampling, reflection_minibatch_size=20, operators=["insert"]
    )
    report = _compile(world, combee)
    # 10 are spent on the seed; two finalists of the reserve are worth keeping 20 for, and 30 of 200 are kept.
    assert report.decisions[0].size == (160 - 8 * 10) // 16
    assert report.rollouts <= 200


def test_no_tail_of_single_examples(world: Any) -> None:
    report = _compile(world, _combee(world, max_metric_calls=90, reflection_minibatch_size=20))
    assert "cannot pay for another iteration" in report.reason or "is spent" in report.reason
    assert sum(decision.size == 1 for decision in report.decisions) <= 1


class Seen(StoppingRule):
    """Stops after some iterations; keeps what it was shown."""

    name = "seen"
    views: list[RunView] = []  # noqa: RUF012 - shared by the copies on purpose

    def __init__(self, iterations: int) -> None:
        self.iterations = iterations

    def check(self, view: RunView) -> str | None:
        self.views.append(view)
        return "enough" if view.iteration >= self.iterations else None


def test_a_resumed_run_has_one_budget_and_one_report(world: Any, tmp_path: Path) -> None:
    Seen.views.clear()
    first = _compile(world, _combee(world, budget=Seen(2), log_dir=str(tmp_path)))
    before = len(Seen.views)
    second = _compile(world, _combee(world, budget=Seen(4), log_dir=str(tmp_path)))
    begun = Seen.views[before]
    # What the first part spent counts, and so does what gepa validates again as it resumes.
    assert begun.totals.total.calls >= first.costs["total"]["calls"] > 0
    assert begun.seconds >= Seen.views[before - 1].seconds
    assert begun.validation_scores == Seen.views[before - 1].validation_scores
    calls = len(world.task_lm.requests) + len(world.proposer_lm.requests)
    assert second.costs["total"]["calls"] == calls
    assert second.decisions[: len(first.decisions)] == first.decisions
    assert len(second.decisions) > len(first.decisions)
    assert second.seconds > first.seconds


def test_totals_survive_a_checkpoint() -> None:
    counts = Counts(calls=3, prompt_tokens=7, known_dollars=0.5, slowest=2.0, peak=4)
    spent = Totals(9.0, counts, {"task": counts}, {("task", "a/b"): counts})
    assert load_totals(dump_totals(spent)) == spent
    twice = add_totals(spent, spent)
    assert (twice.total.calls, twice.total.peak, twice.total.slowest) == (6, 4, 2.0)
    assert twice.by_model[("task", "a/b")].known_dollars == 1.0
    assert load_totals({}) == Totals()
