"""What a search leaves over for drawing its finalists again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.engine.finals import FINALS_SHARE, affordable_finalists, finals_reserve

counts = st.integers(0, 12)
sizes = st.integers(1, 400)
limits = st.integers(0, 20_000)


def test_a_large_budget_keeps_a_draw_of_each_finalist() -> None:
    assert finals_reserve(2_000, 3, 60) == 180
    assert finals_reserve(None, 3, 60) == 0


def test_a_small_budget_keeps_fewer_finalists_or_none() -> None:
    assert finals_reserve(600, 3, 60) == 120
    assert finals_reserve(500, 3, 60) == 0
    assert finals_reserve(2_000, 1, 60) == 0
    assert affordable_finalists(3, 119, 60) == 0


@given(limits, counts, sizes)
def test_the_reserve_pays_for_whole_draws_and_never_passes_its_share(limit: int, finalists: int, size: int) -> None:
    kept = finals_reserve(limit, finalists, size)
    assert 0 <= kept <= FINALS_SHARE * limit
    assert kept % size == 0
    drawn = kept // size
    assert drawn == 0 or 2 <= drawn <= finalists
    # What was kept back pays for what it was kept for.
    assert affordable_finalists(finalists, kept, size) == drawn


@given(limits, counts, sizes)
def test_a_larger_budget_never_keeps_less(limit: int, finalists: int, size: int) -> None:
    assert finals_reserve(limit, finalists, size) <= finals_reserve(limit + size, finalists, size)
