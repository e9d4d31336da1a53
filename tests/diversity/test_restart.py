from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.diversity import IterationView, Restart
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError


def history(scores, similarities=None, restarted=()):
    alike = similarities or [None] * len(scores)
    return [
        IterationView(number, score, similarity, number in restarted)
        for number, (score, similarity) in enumerate(zip(scores, alike, strict=True), start=1)
    ]


PROGRESS = Restart(patience=3, min_progress=0.01, min_diversity=None)
DIVERSITY = Restart(patience=3, min_progress=None, min_diversity=0.2)


def test_no_progress_for_the_patience_starts_again():
    assert PROGRESS.decide(history([0.5, 0.5, 0.5])) is None
    reason = PROGRESS.decide(history([0.5, 0.5, 0.505, 0.505]))
    assert "0.0050 in 3 iterations" in reason
    assert PROGRESS.decide(history([0.5, 0.5, 0.5, 0.51])) is None
    assert PROGRESS.decide(history([0.4, 0.5, 0.5, 0.5])) is None


def test_little_diversity_in_every_iteration_of_the_patience_starts_again():
    scores = [0.1, 0.2, 0.3, 0.4]
    assert "0.150" in DIVERSITY.decide(history(scores, [0.1, 0.85, 0.9, 0.95]))
    assert DIVERSITY.decide(history(scores, [0.9, 0.9, 0.7, 0.9])) is None
    assert DIVERSITY.decide(history(scores[:2], [0.9, 0.9])) is None


def test_what_was_not_measured_is_not_held_against_the_front():
    assert DIVERSITY.decide(history([0.1] * 3, [0.9, None, 0.9])) is None


def test_one_bound_is_enough():
    both = Restart(patience=2, min_progress=0.01, min_diversity=0.2)
    assert "diversity" in both.decide(history([0.1, 0.2, 0.3], [0.9] * 3))
    assert "score" in both.decide(history([0.1, 0.1, 0.1], [0.1] * 3))
    assert both.decide(history([0.1, 0.2, 0.3], [0.1] * 3)) is None


def test_after_a_restart_the_count_begins_anew():
    assert PROGRESS.decide(history([0.5] * 6, restarted=(5,))) is None
    assert PROGRESS.decide(history([0.5] * 7, restarted=(5,))) is not None
    assert DIVERSITY.decide(history([0.5] * 6, [0.9] * 6, restarted=(5,))) is None
    assert DIVERSITY.decide(history([0.5] * 7, [0.9] * 7, restarted=(5,))) is not None


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.floats(0, 1), st.none() | st.floats(0, 1)), max_size=40),
)
def test_it_never_starts_again_twice_within_the_patience(patience, found):
    rule = Restart(patience, 0.3, 0.3)
    views, starts, best = [], [], 0.0
    again = False
    for number, (score, similarity) in enumerate(found, start=1):
        best = max(best, score)
        views.append(IterationView(number, best, similarity, again))
        again = rule.decide(views) is not None
        if again:
            starts.append(number)
    assert all(later - earlier >= patience for earlier, later in pairwise(starts))
    assert not starts or starts[0] >= patience


@pytest.mark.parametrize(
    ("changes", "argument", "error"),
    [
        ({"patience": 0}, "restart.patience", ArgumentValueError),
        ({"patience": 2.5}, "restart.patience", ArgumentTypeError),
        ({"min_progress": 0}, "restart.min_progress", ArgumentValueError),
        ({"min_diversity": 1.1}, "restart.min_diversity", ArgumentValueError),
        ({"min_diversity": "low"}, "restart.min_diversity", ArgumentTypeError),
        ({"min_progress": None, "min_diversity": None}, "restart", ArgumentValueError),
    ],
)
def test_wrong_fields_are_refused_by_name(changes, argument, error):
    with pytest.raises(error) as caught:
        Restart(**changes).validate()
    assert caught.value.argument == argument
