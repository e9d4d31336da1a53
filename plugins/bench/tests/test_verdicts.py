"""How often verdicts are wrong, over a few simulated studies."""

from __future__ import annotations

import pytest

from combee_bench import verdicts
from combee_bench.options import HELDOUT, CompareOptions, SpeedOptions, VerdictsOptions
from combee_bench.statistics import fewest_examples
from combee_bench.surroundings import load_rows


@pytest.fixture(scope="module")
def rows() -> list[verdicts.VerdictRate]:
    return list(verdicts.run(VerdictsOptions(studies=20)))


def rate(rows: list[verdicts.VerdictRate], verdict: str, truth: str) -> float:
    (found,) = [one.rate for one in rows if one.verdict.startswith(verdict) and truth in one.truth]
    return found


def test_every_verdict_keeps_what_it_states(rows: list[verdicts.VerdictRate]) -> None:
    errors = [one for one in rows if one.stated is not None and "power" not in one.truth]
    assert len(errors) > 15
    for one in errors:
        # Four standard errors of 20 studies of the stated rate.
        assert one.rate <= one.stated + 4 * (one.stated * (1 - one.stated) / one.studies) ** 0.5, (
            one
        )


def test_what_is_true_is_said_more_often_than_what_is_not(rows: list[verdicts.VerdictRate]) -> None:
    assert rate(rows, "calibration passes", "0.9, 80") > rate(rows, "calibration passes", "0.6, 80")
    assert rate(rows, "calibration ends", "0.6") > rate(rows, "calibration ends", "0.9")
    assert rate(rows, "restart", " 0 points") > rate(rows, "restart", " 2 points")


def test_the_default_sizes_can_show_the_default_margin() -> None:
    assert CompareOptions().margin == SpeedOptions().margin
    assert SpeedOptions().heldout == HELDOUT >= fewest_examples(CompareOptions().margin)
    loaded = load_rows("formula-mini", {"task": "compute"}, train=24, validation=6, heldout=HELDOUT)
    assert len(loaded.heldout) == HELDOUT
