from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from combee_dspy.aggregators import shard_count
from combee_dspy.aggregators._dealing import even_runs
from combee_dspy.shuffle import largest_shard


@pytest.mark.parametrize("n", [1, 2, 3, 4, 9, 40, 56])
def test_as_many_shards_as_in_the_paper_as_long_as_they_fit(n):
    assert shard_count(n, 2, 16) == math.isqrt(n)


@pytest.mark.parametrize(("n", "k"), [(57, 8), (100, 13), (240, 30), (256, 32), (10_000, 1_250)])
def test_longer_batches_get_the_fewest_shards_that_keep_the_fan_in(n, k):
    assert shard_count(n, 2, 16) == k
    assert largest_shard(n, 2, k - 1) > 16


@given(
    n=st.integers(1, 400),
    copies=st.integers(1, 4),
    fan_in=st.integers(2, 40),
    placement=st.sampled_from(["distinct", "plain"]),
    window=st.none() | st.integers(2, 6),
)
@settings(deadline=None)
def test_no_shard_passes_the_fan_in(n, copies, fan_in, placement, window):
    k = shard_count(n, copies, fan_in, placement, window)  # type: ignore[arg-type]
    assert 1 <= largest_shard(n, copies, k, placement, window) <= fan_in  # type: ignore[arg-type]
    assert k >= math.isqrt(n)


SIZES = st.lists(st.integers(0, 60), max_size=40)


@given(sizes=SIZES, room=st.integers(1, 100))
@settings(deadline=None)
def test_runs_are_the_fewest_that_fit_and_even(sizes, room):
    runs = even_runs(sizes, room)
    assert (
        [first for first, _ in runs] == [0, *(last for _, last in runs[:-1])] if runs else not sizes
    )
    assert (runs[-1][1] if runs else 0) == len(sizes)
    sums = [sum(sizes[first:last]) for first, last in runs]
    lengths = [last - first for first, last in runs]
    assert all(length >= 1 for length in lengths)
    assert all(total <= room or length == 1 for total, length in zip(sums, lengths, strict=True))
    # Neither fewer runs, nor as many with a shorter longest one.
    best = cut(sizes, room)
    assert (len(runs), max(sums, default=0)) == best


def cut(sizes, room):
    """The same by trying every cut: the fewest runs, then the smallest largest sum."""
    best = [(0, 0)]
    for last in range(1, len(sizes) + 1):
        fitting = [
            first for first in range(last) if last - first == 1 or sum(sizes[first:last]) <= room
        ]
        best.append(min((best[f][0] + 1, max(best[f][1], sum(sizes[f:last]))) for f in fitting))
    return best[-1]
