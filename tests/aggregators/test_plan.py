from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from combee_dspy.aggregators import even_runs, shard_count
from combee_dspy.shuffle import effective_copies, largest_shard


@pytest.mark.parametrize("n", [1, 2, 3, 4, 9, 40, 56])
def test_as_many_shards_as_in_the_paper_as_long_as_they_fit(n: int) -> None:
    assert shard_count(n, 2, 16, 32) == math.isqrt(n)


@pytest.mark.parametrize(("n", "k"), [(57, 8), (100, 13), (240, 30), (256, 32), (10_000, 1_250)])
def test_longer_batches_get_the_fewest_shards_that_keep_the_fan_in(n: int, k: int) -> None:
    assert shard_count(n, 2, 16, 32) == k
    assert largest_shard(n, 2, k - 1) > 16


def test_fewer_longer_shards_spare_a_level_of_merges() -> None:
    assert shard_count(2_000, 2, 200) == 44
    assert shard_count(2_000, 2, 200, 32) == 32
    # Not at the price of copies: one shard of sixteen would need no merge, and one copy of each.
    assert effective_copies(2, shard_count(16, 2, 16, 2)) == 2


@given(
    n=st.integers(1, 400),
    copies=st.integers(1, 4),
    fan_in=st.integers(2, 40),
    merge_fan_in=st.none() | st.integers(2, 40),
    placement=st.sampled_from(["distinct", "plain"]),
    window=st.none() | st.integers(2, 6),
)
@settings(deadline=None)
def test_no_shard_passes_the_fan_in(
    n: int, copies: int, fan_in: int, merge_fan_in: int | None, placement: str, window: int | None
) -> None:
    k = shard_count(n, copies, fan_in, merge_fan_in, placement, window)  # type: ignore[arg-type]
    assert 1 <= largest_shard(n, copies, k, placement, window) <= fan_in  # type: ignore[arg-type]
    if merge_fan_in is None:
        assert k >= math.isqrt(n)


SIZES = st.lists(st.integers(0, 60), max_size=40)


@given(sizes=SIZES, room=st.integers(1, 100), most=st.none() | st.integers(1, 7))
@settings(deadline=None)
def test_runs_are_the_fewest_that_fit_and_even(
    sizes: list[int], room: int, most: int | None
) -> None:
    runs = even_runs(sizes, room, most)
    assert (
        [first for first, _ in runs] == [0, *(last for _, last in runs[:-1])] if runs else not sizes
    )
    assert (runs[-1][1] if runs else 0) == len(sizes)
    sums = [sum(sizes[first:last]) for first, last in runs]
    lengths = [last - first for first, last in runs]
    assert all(length >= 1 for length in lengths)
    assert all(total <= room or length == 1 for total, length in zip(sums, lengths, strict=True))
    assert most is None or max(lengths, default=0) <= most
    # Neither fewer runs, nor as many with a shorter longest one.
    best = cut(sizes, room, most)
    assert (len(runs), max(sums, default=0)) == best


def cut(sizes: list[int], room: int, most: int | None) -> tuple[int, int]:
    """The same by trying every cut: the fewest runs, then the smallest largest sum."""
    known = [(0, 0)]
    for last in range(1, len(sizes) + 1):
        firsts = range(max(0, last - most) if most else 0, last)
        fitting = [first for first in firsts if last - first == 1 or sum(sizes[first:last]) <= room]
        known.append(min((known[f][0] + 1, max(known[f][1], sum(sizes[f:last]))) for f in fitting))
    return known[-1]


def test_many_short_items_are_cut_evenly_too() -> None:
    bounds = even_runs([10] * 33, 10_000, 32)
    assert bounds == [(0, 17), (17, 33)]
    assert all(one[1] == other[0] for one, other in pairwise(bounds))
