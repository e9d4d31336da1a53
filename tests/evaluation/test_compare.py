from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from combee_dspy.evaluation import (
    clearly_worse,
    paired_difference,
    sign_test,
)
from combee_dspy.exceptions import ArgumentValueError
from tests.slow import slow_but

binary = st.sampled_from([0.0, 1.0])
graded = st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0])
pairs = st.lists(st.tuples(binary, binary), min_size=1, max_size=60) | st.lists(
    st.tuples(graded, graded), min_size=1, max_size=60
)


@given(pairs)
def test_the_sign_test_is_the_binomial_one(scores) -> None:
    before, after = zip(*scores, strict=True)
    wins, losses, chance = sign_test(before, after)
    decided = wins + losses
    expected = binomtest(losses, decided, alternative="greater").pvalue if decided else 1.0
    assert chance == pytest.approx(expected)
    assert wins == sum(new > old for old, new in scores)


def test_a_p_at_the_level_is_exact() -> None:
    assert sign_test([1, 1], [0, 0]) == (0, 2, 0.25)
    assert sign_test([1.0], [float("nan")]) == (0, 1, 0.5)


@pytest.mark.parametrize(
    ("parent", "child", "worse"),
    [
        ([1] * 4, [0] * 4, False),
        ([1] * 5, [0] * 5, True),
        ([1] * 60, [0] * 2 + [1] * 58, False),
        ([0.5] * 20, [0.5] * 20, False),
        # Seven small losses against one large win: more often worse, and better on average.
        ([0.5] * 8, [0.45] * 7 + [1.0], False),
        ([0.5] * 8, [0.3] * 7 + [0.6], True),
        ([1.0] * 5, [float("nan")] * 5, True),
    ],
)
def test_only_a_clear_loss_counts(parent, child, worse) -> None:
    assert clearly_worse(child, parent) is worse
    assert not clearly_worse(parent, parent)


@pytest.mark.parametrize("n", [6, 20, 60])
def test_a_child_as_good_as_its_parent_is_rarely_called_worse(n) -> None:
    generator = np.random.default_rng(n)
    called = [clearly_worse(*generator.choice([0.0, 0.25, 1.0], size=(2, n))) for _ in range(2_000)]
    assert fmean(called) <= 0.06


@given(pairs, st.integers(0, 10))
def test_the_interval_holds_the_difference_and_is_reproducible(scores, seed) -> None:
    before, after = zip(*scores, strict=True)
    result = paired_difference(before, after, seed=seed)
    assert result == paired_difference(before, after, seed=seed)
    assert -1.0 <= result.low <= result.difference <= result.high <= 1.0
    assert result.difference == pytest.approx(result.after - result.before)
    assert (result.n, result.confidence) == (len(scores), 0.95)


def test_few_examples_that_all_agree_do_not_make_certain() -> None:
    unchanged = paired_difference([0.0, 1.0] * 5, [0.0, 1.0] * 5)
    assert unchanged.low < -0.1 < 0.1 < unchanged.high
    won = paired_difference([0.0] * 4 + [1.0] * 4, [1.0] * 8)
    assert won.low < 0.1
    many = paired_difference([0.0] * 400, [0.0] * 400)
    assert -0.01 < many.low < many.high < 0.01


@pytest.mark.parametrize("n", slow_but((10,), [5, 10, 30, 100]))
@pytest.mark.parametrize("kind", ["right or wrong", "graded", "rare and large"])
def test_coverage_is_at_least_near_its_level(n, kind, monkeypatch) -> None:
    """On many drawn samples the interval holds the true difference about 19 times in 20, or
    more.
    """
    monkeypatch.setattr("combee_dspy.evaluation._compare._RESAMPLES", 299)
    generator, hits, trials = np.random.default_rng(n), 0, 120
    for trial in range(trials):
        before = (
            (generator.random(n) < 0.4).astype(float)
            if kind == "right or wrong"
            else generator.random(n)
        )
        if kind == "right or wrong":
            after, truth = (generator.random(n) < 0.6).astype(float), 0.2
        elif kind == "graded":
            after, truth = (
                before + generator.choice([-0.25, 0.0, 0.25, 0.5], p=[0.2, 0.5, 0.2, 0.1], size=n),
                0.05,
            )
        else:
            after, truth = before + generator.choice([-0.02, 1.0], p=[0.95, 0.05], size=n), 0.031
        result = paired_difference(before, after, seed=trial)
        hits += result.low <= truth <= result.high
    assert hits >= 0.88 * trials


@pytest.mark.parametrize(
    ("before", "after"), [([], []), ([1.0], [1.0, 0.0]), ([1.0], [float("nan")])]
)
def test_what_cannot_be_compared_is_refused(before, after) -> None:
    with pytest.raises(ArgumentValueError, match="after"):
        paired_difference(before, after)
