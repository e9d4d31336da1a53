from __future__ import annotations

import math
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from combee_dspy.shuffle import effective_copies, largest_shard, plan_shards
from combee_dspy.streams import derive

SIZES = [2, 3, 4, 5, 7, 8, 9, 11, 13, 97, 240, 997, 10_000]


def shape(n):
    return max(1, math.isqrt(n))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("copies", [1, 2, 3, 5])
def test_distinct_placement_is_exact_at_every_size(n, copies):
    k = shape(n)
    shards = plan_shards(n, copies, k, derive(0, n))
    p = max(1, min(copies, k - 1))
    assert Counter(index for shard in shards for index in shard) == dict.fromkeys(range(n), p)
    assert all(len(set(shard)) == len(shard) for shard in shards)
    sizes = [len(shard) for shard in shards]
    assert len(sizes) == k
    assert max(sizes) - min(sizes) <= 1


@settings(deadline=None)
@example(n=8, copies=5, k=25, seed=0, window=6)
@given(
    n=st.integers(0, 300),
    copies=st.integers(1, 8),
    k=st.integers(1, 60),
    seed=st.integers(0, 2**32),
    window=st.none() | st.integers(1, 10),
)
def test_distinct_invariants(n, copies, k, seed, window):
    shards = plan_shards(n, copies, k, derive(seed), "distinct", window)
    p = effective_copies(copies, k, "distinct", window)
    assert Counter(index for shard in shards for index in shard) == dict.fromkeys(range(n), p)
    assert all(len(set(shard)) == len(shard) for shard in shards)
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= (1 if window is None else 3)
    assert max(sizes) == largest_shard(n, copies, k, "distinct", window)


@settings(deadline=None)
@given(
    n=st.integers(0, 200),
    copies=st.integers(1, 6),
    k=st.integers(2, 40),
    seed=st.integers(0, 2**32),
)
def test_plain_invariants(n, copies, k, seed):
    shards = plan_shards(n, copies, k, derive(seed), "plain")
    assert Counter(index for shard in shards for index in shard) == dict.fromkeys(range(n), copies)
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) == largest_shard(n, copies, k, "plain")


@pytest.mark.parametrize(("n", "k"), [(9, 3), (25, 5), (100, 10)])
def test_plain_separates_twins_as_often_as_the_closed_form_says(n, k):
    rounds = 3_000
    s = 2 * n // k
    apart = 0
    for seed in range(rounds):
        shards = plan_shards(n, 2, k, derive(seed, n), "plain")
        apart += sum(1 for shard in shards for count in Counter(shard).values() if count == 1) // 2
    expected = 1 - (s - 1) / (2 * n - 1)
    # The n pairs of one shuffle are nearly independent; four standard errors, widened for what is
    # not.
    error = 6 * math.sqrt(expected * (1 - expected) / (rounds * n))
    assert apart / (rounds * n) == pytest.approx(expected, abs=error)


def test_distinct_meets_every_partner_equally_often():
    # A cyclic layout would also be exact but would pair each shard with its neighbours only.
    met: Counter[tuple[int, int]] = Counter()
    for seed in range(400):
        homes: dict[int, list[int]] = {}
        for position, shard in enumerate(plan_shards(36, 2, 6, derive(seed))):
            for index in shard:
                homes.setdefault(index, []).append(position)
        met.update((min(pair), max(pair)) for pair in homes.values())
    expected = 400 * 36 / 15
    assert len(met) == 15
    assert all(0.8 * expected < count < 1.2 * expected for count in met.values())


@settings(deadline=None)
@given(
    n=st.integers(20, 300), k=st.integers(8, 40), window=st.integers(3, 6), seed=st.integers(0, 100)
)
def test_a_window_keeps_copies_near_their_record(n, k, window, seed):
    shards = plan_shards(n, 2, k, derive(seed), window=window)
    for position, shard in enumerate(shards):
        for index in shard:
            # The shard that the record would go to without any shuffle.
            home = index * k / n
            assert abs(position - home) < 2 * window


@pytest.mark.parametrize(
    ("k", "window", "blocks"), [(30, 4, 7), (8, 4, 2), (7, 4, 1), (30, None, 1)]
)
def test_one_pair_in_as_many_as_there_are_blocks_can_meet(k, window, blocks):
    met = {
        (min(pair), max(pair))
        for seed in range(300)
        for shard in plan_shards(60, 2, k, derive(seed), window=window)
        for pair in combinations(shard, 2)
    }
    assert len(met) / math.comb(60, 2) == pytest.approx(1 / blocks, abs=0.03)
