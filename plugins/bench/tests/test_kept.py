"""The formula of what is kept, against draws through the real dealing and the simulator's laws."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean, stdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from combee_bench.tuning.kept import expected_share, margin
from combee_dspy.aggregators import shard_count
from combee_dspy.shuffle import plan_shards
from combee_dspy.streams import derive
from combee_simulator import CapacityModel
from studies.real import study
from studies.real.readers import deal
from studies.real.tables import read_cells

DRAWS = 120


def shares_kept(n: int, copies: int, law: CapacityModel) -> list[float]:
    k = shard_count(n, copies, None)
    kept = []
    for seed in range(DRAWS):
        shards = plan_shards(n, copies, k, derive(seed, "deal"))
        read = [law.attend(shard, seed, "call", place) for place, shard in enumerate(shards)]
        kept.append(len(set().union(*read)) / n)
    return kept


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(9, 90), st.integers(1, 3), st.integers(1, 20), st.sampled_from((0.0, 0.13, 0.5)))
def test_the_formula_is_what_dealing_and_reading_come_to(
    n: int, copies: int, most: int, failing: float
) -> None:
    law = CapacityModel(attended_items=most, platitude_share=failing)
    shards = plan_shards(n, copies, shard_count(n, copies, None), derive(0, "deal"))
    expected = expected_share(shards, lambda items: (1 - failing) * min(1.0, most / items))
    kept = shares_kept(n, copies, law)
    # Sizes of shards differ by one, and which reflections lie in the longer is drawn anew.
    assert fmean(kept) == pytest.approx(expected, abs=5 * stdev(kept) / math.sqrt(DRAWS) + 0.005)
    outside = sum(abs(share - expected) > margin(shards) for share in kept)
    assert outside <= 0.05 * DRAWS + 3 * math.sqrt(0.05 * 0.95 * DRAWS)


def test_even_shards_have_the_closed_form() -> None:
    shards = plan_shards(64, 2, 8, derive(0, "deal"))
    expected = expected_share(shards, lambda items: 0.8 * min(1.0, 12 / items))
    assert expected == pytest.approx(1 - (1 - 0.8 * 12 / 16) ** 2)
    assert margin(shards) == pytest.approx(2 * math.sqrt(math.log(40) / 16))


def test_copies_save_what_fails_and_cost_where_a_call_is_full() -> None:
    def kept(copies: int, failing: float, most: int) -> float:
        shards = plan_shards(100, copies, 10, derive(0, "deal"))
        return expected_share(shards, lambda items: (1 - failing) * min(1.0, most / items))

    assert kept(2, 0.2, 40) > kept(1, 0.2, 40)
    assert kept(2, 0.0, 8) < kept(1, 0.0, 8)


def test_what_the_committed_cells_read_is_dealt_again() -> None:
    cells = read_cells(Path(study.__file__).with_name("cells.jsonl"))
    rows = [cell.retained for cell in cells if cell.retained is not None]
    assert len(rows) == 72
    for row in rows:
        assert [len(shard) for shard in deal(row)] == [items for items, _ in row.reads]
