from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.diversity import TemperatureSchedule
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError

levels = st.floats(0, 2)


@st.composite
def schedules(draw):
    start, end = draw(levels), draw(levels)
    return TemperatureSchedule(
        start=start,
        end=end,
        iterations=draw(st.integers(1, 40)),
        shape=draw(st.sampled_from(["cosine", "linear", "constant"])),
        raise_by=draw(st.floats(0, 0.5)),
        patience=draw(st.integers(0, 4)),
        highest=draw(st.floats(max(start, end), 2)),
    )


@given(schedules(), st.integers(1, 100), st.integers(0, 30))
def test_temperatures_stay_within_the_bounds_and_staleness_never_lowers_them(schedule, iteration, stale):
    schedule.validate()
    planned = schedule.temperature(iteration)
    assert min(schedule.start, schedule.end) - 1e-9 <= planned <= max(schedule.start, schedule.end) + 1e-9
    assert planned <= schedule.temperature(iteration, stale) <= schedule.highest
    assert schedule.temperature(iteration, schedule.patience) == planned


@given(schedules())
def test_it_starts_at_the_start_and_ends_at_the_end(schedule):
    last = schedule.start if schedule.shape == "constant" else schedule.end
    assert schedule.temperature(schedule.iterations) == pytest.approx(last)
    assert schedule.temperature(schedule.iterations + 50) == pytest.approx(last)
    if schedule.iterations > 1:
        assert schedule.temperature(1) == pytest.approx(schedule.start)


def test_the_shapes_differ_between_the_ends():
    at = {
        shape: TemperatureSchedule(1.0, 0.0, 5, shape, highest=1.0).temperature(2)
        for shape in ("cosine", "linear", "constant")
    }
    assert at == {"cosine": pytest.approx(0.8535534), "linear": pytest.approx(0.75), "constant": 1.0}


def test_each_stale_iteration_beyond_the_patience_raises_it_up_to_the_highest():
    schedule = TemperatureSchedule(0.7, 0.7, shape="constant", raise_by=0.2, patience=2, highest=1.2)
    found = [schedule.temperature(9, stale) for stale in range(7)]
    assert found == pytest.approx([0.7, 0.7, 0.7, 0.9, 1.1, 1.2, 1.2])


@pytest.mark.parametrize(
    ("changes", "argument", "error"),
    [
        ({"start": -0.1}, "start", ArgumentValueError),
        ({"end": 2.1, "highest": 2}, "end", ArgumentValueError),
        ({"start": float("nan")}, "start", ArgumentValueError),
        ({"start": "hot"}, "start", ArgumentTypeError),
        ({"raise_by": True}, "raise_by", ArgumentTypeError),
        ({"iterations": 0}, "iterations", ArgumentValueError),
        ({"iterations": 2.0}, "iterations", ArgumentTypeError),
        ({"patience": -1}, "patience", ArgumentValueError),
        ({"shape": "zigzag"}, "shape", ArgumentValueError),
        ({"start": 1.5}, "highest", ArgumentValueError),
    ],
)
def test_wrong_fields_are_refused_by_name(changes, argument, error):
    with pytest.raises(error) as caught:
        TemperatureSchedule(**changes).validate()
    assert caught.value.argument == f"temperature.{argument}"
