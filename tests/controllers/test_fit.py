"""The law of an epoch's delay by batch size, and its plateau."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.controllers._fits import DelayLaw, epoch_delays, fit_power_law
from combee_dspy.records import Measurement

scales = st.floats(0.01, 1e6)
exponents = st.floats(0.05, 1.5)


@given(scales, exponents, st.lists(st.integers(1, 500), min_size=2, max_size=8, unique=True))
def test_exact_delays_give_back_the_law_they_came_from(scale, exponent, sizes):
    law = fit_power_law({size: scale * size**-exponent for size in sizes})
    assert law == (pytest.approx(scale, rel=1e-5), pytest.approx(exponent, rel=1e-5))


@pytest.mark.parametrize("seed", range(5))
def test_the_law_is_recovered_from_delays_that_are_ten_percent_off(seed):
    stream = random.Random(seed)
    delays = {
        size: 4000 * size**-0.8 * math.exp(stream.gauss(0, 0.1)) for size in (3, 6, 11, 21, 40)
    }
    scale, exponent = fit_power_law(delays)
    # Standard error of the slope: 0.1 over the spread of log sizes (2.04) is 0.049; four of them.
    assert exponent == pytest.approx(0.8, abs=0.2)
    assert scale * 11**-exponent == pytest.approx(4000 * 11**-0.8, rel=0.2)


@given(scales, exponents, st.floats(1e-4, 1e3))
def test_the_plateau_is_where_one_more_example_stops_saving_tau(scale, exponent, tau):
    law = DelayLaw(scale, exponent)
    size = law.plateau(tau)
    assert law.slope(size) == pytest.approx(tau, rel=1e-6)
    assert law.slope(size * 0.9) > tau > law.slope(size * 1.1)


def test_an_epoch_takes_as_many_updates_as_batches_and_a_size_counts_with_its_median():
    seconds = [Measurement(4, 9.0), Measurement(2, 5.0), Measurement(4, 1.0), Measurement(4, 2.0)]
    assert list(epoch_delays(seconds, 8).items()) == [(2, 20.0), (4, 4.0)]


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf, 1.7e308])
def test_delays_that_say_nothing_are_left_out(seconds):
    delays = [Measurement(4, seconds), Measurement(0, 1.0), Measurement(2, 1.0)]
    assert epoch_delays(delays, 8) == {2: 4.0}


@pytest.mark.parametrize("delays", [{}, {4: 1.0}, {2: 1e-300, 3: 1e300}])
def test_what_determines_no_law_fits_nothing(delays):
    assert fit_power_law(delays) is None


@pytest.mark.parametrize("exponent", [0.0, -0.4])
def test_there_is_no_plateau_where_larger_batches_save_nothing(exponent):
    assert DelayLaw(10.0, exponent).slope(3) == 0.0
    assert DelayLaw(10.0, exponent).plateau(0.1) == 0.0


def test_extreme_laws_stay_finite():
    assert math.isfinite(DelayLaw(1e300, 1e-9).plateau(1e-300))
