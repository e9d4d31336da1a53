"""The paper's controller: what it measures, the law that it fits, and every bound on its size."""

from __future__ import annotations

import math
from dataclasses import astuple, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.controllers import BatchView, PowerLaw
from combee_dspy.exceptions import ArgumentError
from combee_dspy.presets import paper
from combee_dspy.records import BatchDecision, Measurement

START = BatchView(update=0, trainset_size=240, workers=10_000)
MEASURED = replace(
    START, update=8, seen=240, measurements=tuple(Measurement(size, 20.0) for size in (3, 11, 40))
)


def simulate(controller, view, seconds, epochs=1.0):
    """Plan and measure like a search: batches are cut where an epoch ends."""
    decisions: list[BatchDecision] = []
    while view.seen < epochs * view.trainset_size:
        decision = controller.plan(view)
        size = min(decision.size, view.trainset_size - view.seen % view.trainset_size)
        decisions.append(decision)
        view = replace(
            view,
            update=view.update + 1,
            seen=view.seen + size,
            measurements=(*view.measurements, Measurement(size, seconds(size))),
            planned=(*view.planned, decision.size),
        )
    return decisions, view


def slowly(size):
    """Seconds of an update on a service where larger batches take little longer."""
    return 20 * size**0.2


def clamps_of(decision):
    return [(clamp.name, clamp.before, clamp.after) for clamp in decision.clamps]


def test_golden_run_on_a_service_whose_updates_grow_slowly():
    decisions, _ = simulate(PowerLaw(profile=3, min_updates=6), START, slowly)
    assert [decision.size for decision in decisions[:3]] == [8, 18, 40]
    assert all(
        decision.fit is None and decision.reason.startswith("measuring")
        for decision in decisions[:3]
    )
    for decision in decisions[3:]:
        assert decision.fit.scale == pytest.approx(20 * 240, rel=1e-6)
        assert decision.fit.exponent == pytest.approx(0.8, rel=1e-6)
        assert decision.fit.tau == pytest.approx(0.016 * 0.8 * 4800 * 8**-1.8, rel=1e-6), (
            "1.6 % of the slope at 8"
        )
        assert decision.fit.plateau == pytest.approx(8 * 62.5 ** (1 / 1.8), rel=1e-6)
        assert "plateau 79" in decision.reason
    # 174 examples are left of the epoch: five batches, even ones, of at most N / 6 = 40.
    assert [decision.size for decision in decisions[3:]] == [35, 35, 35, 35, 34]
    assert [clamp.name for clamp in decisions[3].clamps] == ["epoch-updates", "even"]


@pytest.mark.parametrize(("exponent", "times"), [(0.5, 15.7), (0.8, 9.9), (1, 7.9)])
def test_the_plateau_is_as_large_as_the_documentation_promises(exponent, times):
    start = replace(START, trainset_size=1200)
    decisions, _ = simulate(PowerLaw(profile=3), start, lambda size: 20 * size ** (1 - exponent))
    assert decisions[-1].fit.plateau == pytest.approx(times * decisions[0].size, rel=0.01)
    assert str(times) in PowerLaw.__doc__


def test_tau_is_fixed_once_the_sizes_are_measured_while_the_law_is_fitted_again():
    """A service that gets slower moves the law, and the plateau with it, and leaves τ alone."""
    delays = [Measurement(size, 20 * size**0.2) for size in (12, 27, 60)]
    delays += [Measurement(size, 60 * size**0.6) for size in (12, 27, 60) for _ in range(3)]
    controller = PowerLaw(profile=3)
    fits = [
        controller.plan(replace(MEASURED, measurements=tuple(delays[:count]))).fit
        for count in range(3, 13)
    ]
    assert len({fit.tau for fit in fits}) == 1
    assert fits[-1].plateau != pytest.approx(fits[0].plateau, rel=0.1)


def test_tau_in_seconds_an_epoch_is_taken_as_it_is():
    decisions, _ = simulate(PowerLaw(tau=20.0), START, slowly)
    assert decisions[-1].fit.tau == 20.0
    assert decisions[-1].fit.plateau == pytest.approx((0.8 * 4800 / 20.0) ** (1 / 1.8))
    assert decisions[-1].size <= math.floor(decisions[-1].fit.plateau)


@pytest.mark.slow
@given(st.integers(1, 3000), st.integers(3, 7), st.integers(1, 20), st.integers(1, 12))
def test_profiling_measures_distinct_rising_sizes_inside_the_first_epoch(
    size, profile, min_updates, min_size
):
    controller = PowerLaw(profile=profile, min_updates=min_updates, min_size=min_size)
    decisions, _ = simulate(controller, replace(START, trainset_size=size), lambda size: 2.0)
    measuring = [each.size for each in decisions if each.reason.startswith("measuring")]
    if profile * (profile + 1) // 2 <= size:
        assert len(measuring) == profile
        assert measuring == sorted(set(measuring))
        assert sum(measuring) <= size
    else:
        assert not measuring
        assert "not fitted" in decisions[0].reason


def test_a_bound_in_the_way_of_the_ladder_is_recorded_and_another_size_is_measured():
    controller = PowerLaw(profile=3, min_updates=6)
    decisions, _ = simulate(controller, replace(START, workers=2), lambda size: 5.0)
    assert [decision.size for decision in decisions[:3]] == [8, 3, 5]
    assert clamps_of(decisions[1]) == [("capacity", 18, 8)]
    assert decisions[3].fit is not None


def test_where_only_one_size_can_be_had_no_law_is_fitted():
    controller = PowerLaw(profile=3, min_updates=6, waves=1)
    decisions, _ = simulate(controller, replace(START, workers=1), lambda size: 5.0)
    assert {decision.size for decision in decisions} == {1}
    assert "delays are known at batch size 1 only" in decisions[-1].reason


def test_batches_that_save_no_time_give_the_smallest_size_with_the_reason():
    decisions, _ = simulate(PowerLaw(profile=3, min_updates=6), START, lambda size: size**1.3)
    last = decisions[-1]
    # Even batches of what is left of the epoch, of at most the eight that were measured.
    assert last.size == 7
    assert "save no time" in last.reason
    assert (last.fit.exponent, last.fit.plateau) == (pytest.approx(-0.3), 0)


def test_sizes_on_their_way_or_without_a_delay_are_not_taken_for_slow():
    view = replace(START, update=3, seen=99, planned=(12, 27, 60))
    cached = tuple(Measurement(size, 0.0) for size in (12, 27, 60))
    decision = PowerLaw(profile=3).plan(replace(view, measurements=cached))
    assert decision == PowerLaw(profile=3).plan(view)
    assert decision.size == 47, "three even batches of the 141 that are left"
    assert "no delay is known" in decision.reason


@pytest.mark.parametrize(
    ("examples", "smallest"), [(2, 1), (12, 1), (24, 3), (60, 3), (120, 6), (240, 10), (1200, 10)]
)
def test_a_profile_begins_at_the_base_or_a_fifth_of_its_top(examples, smallest):
    assert PowerLaw(profile=3).plan(replace(START, trainset_size=examples)).size == smallest


@pytest.mark.parametrize(
    ("examples", "workers", "capacity", "sizes"),
    [
        (240, 64, 64, [60, 60, 60, 60]),
        (60, 32, 32, [15, 15, 15, 15]),
        # Nobody knows how many it takes: no small batch for that.
        (240, 256, None, [60, 60, 60, 60]),
        (1000, 256, None, [64, 250, 126]),
        (1000, 64, 64, [64, 250, 126]),
        (1000, 64, 10, [10, 40, 20]),
    ],
)
def test_what_is_measured_is_what_fills_the_service_and_more(examples, workers, capacity, sizes):
    start = BatchView(update=0, trainset_size=examples, workers=workers, capacity=capacity)
    decisions, view = simulate(PowerLaw(), start, slowly)
    assert list(view.planned[: len(sizes)]) == sizes
    if len(sizes) == 3:
        assert decisions[3].fit.plateau == pytest.approx(10 * 62.5 ** (1 / 1.8), rel=0.05), (
            "tau is that at b0 = 10"
        )


@pytest.mark.parametrize(
    ("at_once", "least", "first"), [(64, 4, 384), (64, 3, 288), (8, 4, 60), (8, 3, 45)]
)
def test_below_the_rows_that_the_documentation_names_no_law_is_fitted(at_once, least, first):
    documented = " ".join(PowerLaw.__doc__.split())
    assert "below 384 rows (288 with three updates an epoch), with 8 below 60 (45)" in documented
    for examples, is_fitted in ((first - 1, False), (first, True)):
        start = BatchView(update=0, trainset_size=examples, workers=at_once)
        decisions, _ = simulate(PowerLaw(min_updates=least), start, slowly, epochs=3)
        assert any(decision.fit for decision in decisions) is is_fitted


@pytest.mark.parametrize("examples", [60, 400])
def test_the_papers_procedure_profiles_fits_and_takes_the_plateau(examples):
    controller = paper()["controller"]
    start = BatchView(update=0, trainset_size=examples, workers=64)
    decisions, view = simulate(controller, start, lambda size: 5 * size**0.4, epochs=2)
    assert [decision.reason.split(":")[0] for decision in decisions[:3]] == ["measuring"] * 3
    assert len(set(view.planned[:3])) == 3
    plateau = controller.relative_tau ** (-1 / 1.6) * min(view.planned)
    for decision in decisions[3:]:
        assert decision.fit.exponent == pytest.approx(0.6, abs=0.01)
        assert decision.fit.plateau == pytest.approx(plateau, rel=0.05)
        assert decision.size <= min(plateau, examples // controller.min_updates)


def test_a_limit_that_backs_off_does_not_shrink_batches():
    """A client's own bound once moved the limit from 69 to 4 in 170 updates; batches followed."""
    start = replace(START, trainset_size=1000, workers=256, capacity=69)
    _, view = simulate(PowerLaw(), start, lambda size: 10 + 0.3 * size)
    assert min(view.planned[:-1]) >= 60


def test_an_epoch_that_ended_before_all_sizes_were_measured_is_fitted_with_what_there_is():
    delays = (Measurement(3, 10.0), Measurement(10, 11.0))
    view = replace(START, trainset_size=60, seen=60, measurements=delays)
    decision = PowerLaw(profile=3, min_updates=6).plan(view)
    assert decision.fit is not None
    assert "from 2 sizes" in decision.reason


def test_every_bound_that_cuts_the_plateau_is_recorded_in_order():
    view = replace(
        MEASURED, workers=9, remaining_rollouts=30, validation_size=10, score_variance=0.05
    )
    decision = PowerLaw(tau=1.0, min_updates=6).plan(view)
    assert decision.fit.plateau == pytest.approx(math.sqrt(4800))
    assert clamps_of(decision) == [
        ("epoch-updates", 69, 40),
        ("capacity", 40, 36),
        ("variance", 36, 20),
        ("budget", 20, 10),
    ]
    assert decision.size == 10


def test_a_plateau_below_the_smallest_batch_is_raised_and_the_raise_is_recorded():
    decision = PowerLaw(tau=4000.0).plan(MEASURED)
    assert (decision.size, clamps_of(decision)) == (3, [("min-size", 1, 3)])


measurements = st.builds(
    Measurement,
    st.integers(0, 4000),
    st.floats(allow_nan=True, allow_infinity=True) | st.floats(0.001, 1000),
)
views = st.builds(
    BatchView,
    update=st.integers(0, 50),
    trainset_size=st.integers(1, 5000),
    seen=st.integers(0, 10_000),
    planned=st.lists(st.integers(1, 5000), max_size=8).map(tuple),
    measurements=st.lists(measurements, max_size=8).map(tuple),
    workers=st.integers(1, 300),
    capacity=st.none() | st.integers(1, 300),
    remaining_rollouts=st.none() | st.integers(0, 10_000),
    validation_size=st.integers(0, 500),
    children=st.integers(0, 4),
    score_variance=st.none() | st.floats(0, 1),
)
controllers = st.builds(
    PowerLaw,
    tau=st.none() | st.just(1e-300) | st.floats(1e-6, 1e6),
    relative_tau=st.floats(1e-6, 10),
    profile=st.none() | st.integers(3, 5),
    min_updates=st.just(6),
)


@given(views, controllers)
def test_any_view_gives_one_decision_within_all_bounds(view, controller):
    decision = controller.plan(view)
    assert 1 <= decision.size <= view.trainset_size
    assert decision == controller.plan(view)
    assert decision.reason
    if view.remaining_rollouts is not None:
        few = min(3, view.trainset_size)
        affordable = (view.remaining_rollouts - few) // max(1, view.validation_size + few)
        children = min(view.children, max(1, affordable))  # an update makes no more
        cost = decision.size * (1 + children) + view.validation_size
        assert decision.size == 1 or cost <= view.remaining_rollouts
    if decision.fit:
        assert all(math.isfinite(value) for value in astuple(decision.fit))


@pytest.mark.parametrize("params", [{"tau": 0}, {"relative_tau": math.nan}, {"profile": 2}])
def test_a_parameter_out_of_range_is_named_when_it_is_made(params):
    with pytest.raises(ArgumentError) as caught:
        PowerLaw(**params)
    assert caught.value.argument == f"PowerLaw.{next(iter(params))}"
