from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.evaluation import paired_difference
from combee_dspy.exceptions import ArgumentValueError

scores = st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.sampled_from([0.0, 1.0])), min_size=1, max_size=60)


@given(scores, st.integers(0, 10))
def test_interval_holds_the_difference_and_is_reproducible(pairs: list[tuple[float, float]], seed: int) -> None:
    before, after = zip(*pairs, strict=True)
    found = paired_difference(before, after, seed=seed, resamples=400)
    assert found == paired_difference(before, after, seed=seed, resamples=400)
    assert found.low <= found.high
    assert found.difference == pytest.approx(np.mean(after) - np.mean(before))
    assert -1.0 <= found.low <= found.high <= 1.0


def test_no_change_has_no_width() -> None:
    found = paired_difference([0.0, 1.0, 1.0], [0.0, 1.0, 1.0], seed=1)
    assert (found.low, found.high) == (0.0, 0.0)


def test_coverage_is_near_its_level() -> None:
    """On many drawn samples the interval holds the true difference about 19 times in 20."""
    generator = np.random.default_rng(7)
    hits = 0
    for trial in range(200):
        before = generator.random(80) < 0.4
        after = generator.random(80) < 0.6
        found = paired_difference(before.astype(float), after.astype(float), seed=trial, resamples=500)
        hits += found.low <= 0.2 <= found.high
    assert 175 <= hits <= 200


@pytest.mark.parametrize(("before", "after"), [([], []), ([1.0], [1.0, 0.0])])
def test_unpaired_is_refused(before: list[float], after: list[float]) -> None:
    with pytest.raises(ArgumentValueError, match="pair"):
        paired_difference(before, after, seed=0)
