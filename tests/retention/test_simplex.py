from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import binomtest, chi2

from combee_dspy.retention import RetentionBook, RetentionLaw, RetentionSample, fit_retention, pooled_retention
from combee_dspy.retention._simplex import minimised


def bowls(centres: np.ndarray) -> tuple[object, object]:
    """Functions with a kink at their centres, many at once and one by one."""

    def one(point: np.ndarray, number: int) -> float:
        off = point - centres[number]
        return float(np.abs(off[0]) + (off[1:] ** 2).sum() + 0.3 * off[0] * off[-1])

    def many(points: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        return np.array([one(point, int(number)) for point, number in zip(points, numbers, strict=True)])

    return many, one


@pytest.mark.parametrize("size", [2, 3])
def test_every_search_ends_where_it_ends_alone(size: int) -> None:
    stream = np.random.default_rng(size)
    # Some centres lie outside the bounds, some starts on them.
    centres = stream.uniform(-0.5, 1.5, (30, size))
    starts = stream.choice([0.0, 0.4, 1.0], (30, size))
    many, one = bowls(centres)
    found = minimised(many, starts, np.zeros(size), np.ones(size))
    options = {"xatol": 1e-3, "fatol": 1e-3, "maxiter": 300}
    for number, point in enumerate(found):
        alone = minimize(
            lambda at, number=number: one(at, number),
            starts[number],
            method="Nelder-Mead",
            bounds=[(0.0, 1.0)] * size,
            options=options,
        )
        assert point == pytest.approx(alone.x, abs=1e-9)


def test_a_search_may_run_out_of_steps() -> None:
    many, _ = bowls(np.full((1, 2), 0.7))
    few = minimised(many, np.full((1, 2), 0.1), np.zeros(2), np.ones(2), most=3)
    assert np.abs(few - 0.7).max() > 0.01
    assert np.abs(minimised(many, np.full((1, 2), 0.1), np.zeros(2), np.ones(2)) - 0.7).max() < 0.01


def test_the_misfit_is_the_tail_of_chi_squared() -> None:
    law = RetentionLaw(0.9, 12.0)
    stream = np.random.default_rng(3)
    sizes = (4, 6, 8, 12, 16, 20, 24, 32, 48)
    for several in range(4, len(sizes) + 1):
        samples = [RetentionSample(m, int(stream.binomial(m, law.q(m))), m) for m in sizes[:several]]
        fit = fit_retention(samples, replicates=2)
        deviance = 0.0
        for one in samples:
            q = min(max(fit.law.q(one.items), 1e-9), 1 - 1e-9)
            for count, likely in ((one.kept, q), (one.total - one.kept, 1 - q)):
                deviance += 2 * count * np.log(count / one.total / likely) if count else 0.0
        assert fit.misfit == pytest.approx(chi2.sf(max(0.0, deviance) / fit.dispersion, several - 2), abs=1e-9)


@pytest.mark.parametrize(("kept", "total"), [(0, 1), (1, 1), (0, 40), (7, 40), (39, 40), (40, 40), (300, 901)])
def test_pooled_counts_have_wilsons_interval(kept: int, total: int) -> None:
    ((_, _, low, high),) = pooled_retention([RetentionSample(total, kept, total)]).values()
    expected = binomtest(kept, total).proportion_ci(method="wilson")
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_preparing_changes_no_expectation() -> None:
    from combee_dspy.records import NodeOutput

    nodes = (NodeOutput(1, 0, (0, 1, 2), ()), NodeOutput(1, 1, (3, 4), ()), NodeOutput(2, 0, (0, 1, 2, 3, 4), ()))
    samples = ([RetentionSample(8, 5, 8), RetentionSample(3, 3, 3)], [RetentionSample(6, 5, 6)])
    more = ([RetentionSample(8, 1, 8)], [])
    books = RetentionBook(), RetentionBook()
    for book in books:
        assert book.expect(nodes) is None
    found = []
    for added in (samples, more):
        for book in books:
            book.add(added)
        books[0].prepare()
        found.append(books[0].expect(nodes))
        assert found[-1] == books[1].expect(nodes)
    # What was added after the fit counts.
    assert found[0] != found[1]
