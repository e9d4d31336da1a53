"""How MIPROv2 is asked to spend a budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.baselines import ACE, GEPA, MIPRO, CombeeMethod, plan_mipro
from combee_dspy.exceptions import ArgumentError

SIZES = st.integers(1, 400)


@given(st.integers(1, 5_000), SIZES, SIZES, st.integers(2, 20))
def test_bootstrapping_never_takes_more_than_half_of_the_budget(budget, train, validation, candidates):
    plan = plan_mipro(budget, train, validation, candidates)
    assert 1 <= plan.train <= train
    assert plan.train == 1 or max(0, candidates - 2) * plan.train <= budget / 2


@given(st.integers(1, 5_000), SIZES, SIZES, st.integers(2, 20))
def test_the_trials_reach_the_budget(budget, train, validation, candidates):
    plan = plan_mipro(budget, train, validation, candidates)
    assert plan.trials >= 1
    assert 1 <= plan.minibatch_size <= validation
    each = plan.minibatch_size + validation / 5 if plan.minibatch else validation
    assert validation + plan.trials * each >= budget


def test_all_training_rows_are_used_where_the_budget_allows():
    assert plan_mipro(2_000, 168, 48, 6).train == 168
    assert plan_mipro(600, 168, 48, 6).train == 75


def test_minibatches_begin_where_dspy_begins_them():
    assert not plan_mipro(600, 100, 50, 6).minibatch
    assert plan_mipro(600, 100, 51, 6).minibatch


@pytest.mark.parametrize(
    ("method", "argument"),
    [
        (GEPA(minibatch=0), "minibatch"),
        (MIPRO(candidates=1), "candidates"),
        (MIPRO(labelled=-1), "labelled"),
        (ACE(validate_every=0), "validate_every"),
        (ACE(rounds=0), "rounds"),
        (CombeeMethod({"seed": 3}), "arguments"),
        (CombeeMethod("union"), "arguments"),
    ],
)
def test_wrong_parameters_are_refused_by_name(method, argument):
    with pytest.raises(ArgumentError) as caught:
        method.validate()
    assert caught.value.argument == argument
