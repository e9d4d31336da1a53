"""What a run does against collapse: the options, temperatures by update, and restarts."""

from itertools import pairwise
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.diversity import Archive, Diversity, Embedder, Restart, Temperature, UpdateView
from combee_dspy.exceptions import (
    ArgumentError,
    ArgumentTypeError,
    ArgumentValueError,
    UnknownStrategyError,
)


class Unmeasured(Embedder):
    name: ClassVar[str] = "unmeasured"

    def embed(self, texts):
        raise AssertionError("this costs money")


def test_an_embedder_without_a_known_threshold_needs_one():
    with pytest.raises(ArgumentValueError, match="calibrate_threshold"):
        Archive(Diversity(embedder=Unmeasured()))
    Archive(Diversity(embedder=Unmeasured(), threshold=0.9))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"threshold": 1.0}, ArgumentValueError),
        ({"threshold": "high"}, ArgumentError),
        ({"recent": 0}, ArgumentValueError),
        ({"temperature": 0.7}, ArgumentTypeError),
        ({"restart": True}, ArgumentTypeError),
        ({"embedder": "no-such"}, UnknownStrategyError),
        ({"embedder": 7}, ArgumentTypeError),
    ],
)
def test_wrong_options_are_refused(changes, error):
    with pytest.raises(error):
        Archive(Diversity(**changes))


levels = st.floats(0, 2)


@st.composite
def schedules(draw):
    start, end = draw(levels), draw(levels)
    return Temperature(
        start=start,
        end=end,
        updates=draw(st.integers(1, 40)),
        raise_by=draw(st.floats(0, 0.5)),
        patience=draw(st.integers(0, 4)),
        highest=draw(st.floats(max(start, end), 2)),
    )


@given(schedules(), st.integers(0, 100), st.integers(0, 30))
def test_temperatures_stay_within_the_bounds_and_staleness_never_lowers_them(
    schedule, update, stale
):
    planned = schedule.at(update)
    assert (
        min(schedule.start, schedule.end) - 1e-9
        <= planned
        <= max(schedule.start, schedule.end) + 1e-9
    )
    assert planned <= schedule.at(update, stale) <= schedule.highest
    assert schedule.at(update, schedule.patience) == planned


@given(schedules())
def test_a_schedule_goes_from_the_start_to_the_end(schedule):
    assert schedule.at(schedule.updates + 50) == pytest.approx(schedule.end)
    if schedule.updates > 1:
        assert schedule.at(0) == pytest.approx(schedule.start)


def test_it_falls_by_half_a_cosine_and_rises_with_each_stale_update_up_to_the_highest():
    assert Temperature(1.0, 0.0, 5, highest=1.0).at(1) == pytest.approx(0.8535534)
    constant = Temperature(0.7, 0.7, raise_by=0.2, patience=2, highest=1.2)
    results = [constant.at(9, stale) for stale in range(7)]
    assert results == pytest.approx([0.7, 0.7, 0.7, 0.9, 1.1, 1.2, 1.2])


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (Temperature, {"start": -0.1}),
        (Temperature, {"updates": 0}),
        (Temperature, {"start": 1.5}),
        (Restart, {"patience": 0}),
        (Restart, {"min_progress": 0}),
    ],
)
def test_what_is_out_of_range_is_refused(kind, changes):
    with pytest.raises(ArgumentValueError, match=kind.__name__):
        kind(**changes)


def history(scores, restarted=()):
    return [UpdateView(score, number in restarted) for number, score in enumerate(scores)]


PROGRESS = Restart(patience=3, min_progress=0.01)


def test_no_progress_for_the_patience_starts_again():
    assert PROGRESS.due(history([0.5, 0.5, 0.5])) is None
    assert "0.0050 in 3 updates" in PROGRESS.due(history([0.5, 0.5, 0.505, 0.505]))
    assert PROGRESS.due(history([0.5, 0.5, 0.5, 0.51])) is None
    assert PROGRESS.due(history([0.4, 0.5, 0.5, 0.5])) is None


def test_after_a_restart_the_count_begins_anew():
    assert PROGRESS.due(history([0.5] * 6, restarted=(4,))) is None
    assert PROGRESS.due(history([0.5] * 7, restarted=(4,))) is not None


@given(st.integers(1, 6), st.lists(st.floats(0, 1), max_size=40))
def test_it_never_starts_again_twice_within_the_patience(patience, scores):
    rule = Restart(patience, 0.3)
    views, starts, best, again = [], [], 0.0, False
    for number, score in enumerate(scores, start=1):
        best = max(best, score)
        views.append(UpdateView(best, again))
        again = rule.due(views) is not None
        if again:
            starts.append(number)
    assert all(later - earlier >= patience for earlier, later in pairwise(starts))
    assert not starts or starts[0] >= patience
