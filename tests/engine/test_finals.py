"""What a search leaves over for drawing its finalists again."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.engine.finals import FINALS_SHARE, affordable_finalists, choose, finals_reserve, rivals

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


def _chosen(
    scores: dict[int, list[float]],
    texts: list[str],
    count: int = 3,
    *,
    most: int | None = None,
    again: Mapping[str, float] | None = None,
) -> tuple[Any, list[list[str]]]:
    """Choose among candidates, each with its validation scores; also return what was drawn again.

    A further draw gives every candidate the score that ``again`` names, or 1, on each example.
    """
    drawn: list[list[str]] = []

    def draw(candidates: Any, ids: Any) -> list[list[float]]:
        names = [one["self"] for one in candidates]
        drawn.append(names)
        return [[(again or {}).get(name, 1.0)] * len(ids) for name in names]

    found = SimpleNamespace(
        val_subscores=[dict(enumerate(one)) for one in scores.values()],
        candidates=[{"self": text} for text in texts],
    )
    return choose(found, count, seed=0, most=most, draw=draw), drawn


def test_rivals_that_differ_are_drawn_again() -> None:
    selection, drawn = _chosen({0: [1.0, 0.0, 1.0], 1: [1.0, 1.0, 0.0]}, ["longer text", "text"])
    assert drawn == [["text", "longer text"]]
    assert selection.index == 1


def test_candidates_that_answered_alike_by_chance_are_drawn_again_the_shortest_first() -> None:
    selection, drawn = _chosen(
        {0: [1.0, 0.0], 1: [1.0, 0.0], 2: [0.0, 1.0]}, ["a longer text", "text", "text and more"]
    )
    assert drawn == [["text", "a longer text", "text and more"]]
    assert selection.index == 1


def test_one_within_reach_is_drawn_again_past_one_that_is_not() -> None:
    # Graded scores: the second is a little worse everywhere, the third much worse on two examples.
    best, far, near = [1.0] * 9, [0.9] * 9, [0.0, 0.0, *[1.0] * 7]
    selection, drawn = _chosen({0: best, 1: far, 2: near}, ["best", "far", "near"])
    assert drawn == [["best", "near"]]
    assert selection.finalists == (0, 2)
    assert selection.draws == ((1.0, 1.0), (pytest.approx(7 / 9), 1.0))


def test_what_the_budget_pays_for_goes_to_those_within_reach() -> None:
    best, far, near = [1.0] * 22 + [0.0] * 18, [1.0] * 19 + [0.0] * 21, [1.0] * 9 + [0.0] * 13 + [1.0] * 9 + [0.0] * 9
    for most, names in ((None, ["best", "near", "as good"]), (3, ["best", "near", "as good"]), (2, ["best", "near"])):
        _, drawn = _chosen({0: best, 1: far, 2: near, 3: near}, ["best", "far", "near", "as good"], count=4, most=most)
        assert drawn == [names]


def test_the_mean_of_both_draws_decides() -> None:
    scores = {0: [1.0] * 3 + [0.0], 1: [0.0, 1.0, 1.0, 0.0]}
    selection, _ = _chosen(scores, ["lucky", "steady"], again={"lucky": 0.0, "steady": 1.0})
    assert selection.index == 1
    assert selection.draws == ((0.5, 1.0), (0.75, 0.0))


def test_where_nobody_is_within_reach_the_first_draw_decides_and_names_the_runner_up() -> None:
    selection, drawn = _chosen({0: [1.0] * 9, 1: [1.0] * 5 + [0.0] * 4, 2: [0.0] * 9}, ["best", "second", "third"])
    assert not drawn
    assert (selection.index, selection.runner_up, selection.finalists) == (0, 1, (0, 1, 2))
    assert selection.draws[0] == (1.0,)
    assert selection.lead is not None
    assert selection.lead.difference == pytest.approx(4 / 9)


@pytest.mark.parametrize(
    ("losses", "wins", "within"),
    [(0, 0, True), (1, 0, True), (2, 0, True), (3, 0, False), (4, 1, False), (11, 9, True), (13, 7, False)],
)
def test_within_reach_is_whom_a_quarter_of_chances_puts_as_far_behind(losses: int, wins: int, within: bool) -> None:
    best = [1.0] * losses + [0.0] * wins + [1.0] * 5
    other = [0.0] * losses + [1.0] * wins + [1.0] * 5
    assert rivals([best, other]) == ([0, 1] if within else [0])
    assert rivals([best, other], 0.0) == [0, 1]


def test_the_best_is_always_drawn_and_graded_scores_are_counted_by_example() -> None:
    assert rivals([]) == []
    assert rivals([[0.2, 0.4]]) == [0]
    best = [0.9, 0.8, 0.7, 0.2]
    assert rivals([best, [0.8, 0.7, 0.6, 0.1], [0.1, 0.9, 0.8, 0.3]]) == [0, 2]
