from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.stopping import Finalist, finalists, select

scores = st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=4).map(tuple)
pools = st.lists(
    st.tuples(st.lists(scores, min_size=1, max_size=3).map(tuple), st.integers(0, 3)), min_size=1, max_size=6
).map(lambda found: [Finalist(index, draws, tokens) for index, (draws, tokens) in enumerate(found)])


def test_the_best_over_all_draws_is_chosen_not_the_luckiest_draw() -> None:
    lucky = Finalist(1, ((1.0, 1.0, 1.0), (0.0, 0.0, 0.0)), 10)
    steady = Finalist(2, ((1.0, 1.0, 0.0), (1.0, 1.0, 0.0)), 10)
    found = select([lucky, steady], looks=7)
    assert (found.index, found.runner_up, found.looks) == (2, 1, 7)
    assert found.score == pytest.approx(2 / 3)
    assert found.draws == (pytest.approx((2 / 3, 2 / 3)), pytest.approx((1.0, 0.0)))
    assert found.lead is not None
    assert found.lead.difference == pytest.approx(1 / 6)
    assert "7 looks" in found.reason
    assert "0.1667 above candidate 1" in found.reason


def test_equals_go_to_fewer_tokens_then_to_the_earlier() -> None:
    long, short, later = (Finalist(n, ((1.0, 0.0),), tokens) for n, tokens in ((0, 9), (4, 5), (5, 5)))
    found = select([later, long, short], looks=3)
    assert found.finalists == (4, 5, 0)
    assert "earlier" in found.reason
    assert "fewer tokens" in select([long, short], looks=2).reason


def test_sums_in_another_order_are_equal() -> None:
    one = Finalist(0, ((0.1, 0.2, 0.3),), 5)
    two = Finalist(1, ((0.3, 0.1, 0.2),), 4)
    assert select([one, two], looks=2).index == 1


@given(pools, st.randoms(), st.integers(0, 5))
def test_the_choice_is_a_function_of_what_was_measured(pool, stream, seed: int) -> None:
    found = select(pool, looks=len(pool), seed=seed)
    mixed = list(pool)
    stream.shuffle(mixed)
    assert select(mixed, looks=len(pool), seed=seed) == found
    best = max(one.mean for one in pool)
    chosen = next(one for one in pool if one.index == found.index)
    assert chosen.mean == pytest.approx(best)
    rivals = [one for one in pool if math.isclose(one.mean, best, abs_tol=1e-12)]
    assert (chosen.tokens, chosen.index) == min((one.tokens, one.index) for one in rivals)
    assert sorted(found.finalists) == [one.index for one in pool]
    if found.lead is None:
        assert len(pool) == 1
    else:
        assert found.lead.low <= found.lead.difference + 1e-12
        assert found.lead.difference >= -1e-9


def test_one_finalist_has_no_lead() -> None:
    found = select([Finalist(3, ((0.5,),), 1)], looks=1)
    assert (found.index, found.runner_up, found.lead) == (3, None, None)
    event = found.event(9)
    assert (event.iteration, event.index, event.finalists, event.draws, event.looks) == (9, 3, (3,), ((0.5,),), 1)


@pytest.mark.parametrize(
    "pool",
    [
        [],
        [Finalist(0, ((1.0,),), 1), Finalist(0, ((0.0,),), 1)],
        [Finalist(0, ((1.0,),), 1), Finalist(1, ((0.0, 1.0),), 1)],
        [Finalist(0, (), 1)],
        [Finalist(0, ((1.0,),), 1), Finalist(1, (), 1)],
        [Finalist(0, ((),), 1)],
        [Finalist(0, ((float("nan"),),), 1)],
    ],
)
def test_what_cannot_be_compared_is_refused(pool) -> None:
    with pytest.raises(ArgumentValueError, match="candidates"):
        select(pool, looks=1)


def test_finalists_are_the_best_with_the_same_ties() -> None:
    assert finalists([0.5, 0.9, 0.9, 0.7], 3) == (1, 2, 3)
    assert finalists([0.5, 0.9, 0.9, 0.7], 3, tokens=[1, 9, 2, 1]) == (2, 1, 3)
    assert finalists([0.5], 4) == (0,)
    for wrong in (([], 1), ([0.5], 0), ([0.5, 0.6], 1, [3])):
        with pytest.raises(ArgumentValueError):
            finalists(*wrong)
