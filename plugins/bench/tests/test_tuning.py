"""What one call keeps, fitted and carried through a scan."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_bench import tuning
from combee_bench.options import TuneScanOptions
from combee_bench.planted import plant, planted_in, planted_record
from combee_bench.tuning.laws import CallLaw, CallLaws, Fit, Sample, fit_law, pooled
from combee_bench.tuning.run import best_of, choices
from combee_bench.tuning.survival import plan_scan, predicted_survival


def drawn(law: CallLaw, sizes: tuple[int, ...], copies: int = 1, calls: int = 20) -> list[Sample]:
    stream = random.Random(7)
    return [
        Sample(m, copies, sum(stream.random() < law.q(m, copies) for _ in range(m)))
        for m in sizes
        for _ in range(calls)
    ]


def known(law: CallLaw) -> Fit:
    return Fit(law, (law, law))


@given(
    st.integers(1, 200), st.integers(1, 4), st.floats(0.1, 1), st.floats(1, 50), st.floats(1, 50)
)
def test_q_is_a_probability_that_copies_do_not_lower(
    items: int, copies: int, rate: float, reads: float, writes: float
) -> None:
    q = CallLaw(rate, reads, writes).q(items, copies)
    assert 0 <= q <= rate + 1e-9
    # As many more entries as there are more copies: each thing is read as often.
    assert CallLaw(1.0, reads * copies).q(items, copies) >= CallLaw(1.0, reads).q(items) - 1e-9


def test_without_copies_the_law_is_a_limit_over_the_size() -> None:
    law = CallLaw(0.9, 12)
    assert [law.q(m) for m in (4, 12, 24, 48)] == pytest.approx([0.9, 0.9, 0.45, 0.225])


def test_a_law_is_found_again_from_calls() -> None:
    law = CallLaw(0.9, 12)
    fit = fit_law(drawn(law, (4, 8, 16, 32, 64)))
    assert fit.law.rate == pytest.approx(0.9, abs=0.06)
    assert fit.law.reads == pytest.approx(12, abs=1.5)
    low, high = fit.interval(32)
    assert low < law.q(32) < high < low + 0.2


def test_a_limit_on_writing_is_told_from_one_on_reading_by_copies() -> None:
    law = CallLaw(1.0, 60, 10)
    sizes = (4, 8, 16, 32, 48)
    fit = fit_law([*drawn(law, sizes), *drawn(law, sizes, copies=2)])
    assert fit.law.writes == pytest.approx(10, abs=1.5)
    assert fit.law.reads > 30


def test_pooled_shares_have_intervals_and_no_law() -> None:
    result = pooled([Sample(4, 1, 4), Sample(4, 1, 2), Sample(8, 2, 0)])
    assert result[4, 1][:2] == (6, 8)
    assert result[4, 1][2] < 0.75 < result[4, 1][3]
    assert result[8, 2][:3] == (0, 8, 0.0)


def test_a_scan_that_loses_nothing_keeps_everything() -> None:
    laws = CallLaws(known(CallLaw()), known(CallLaw()))
    assert predicted_survival(laws, plan_scan(40, 2, 16)).survival == pytest.approx(1.0)


def test_two_copies_and_one_merge_follow_the_formula() -> None:
    laws = CallLaws(known(CallLaw(0.5)), known(CallLaw(1.0, 20)))
    plan = plan_scan(40, 2, 16)
    assert plan.calls == (6, 1)
    result = predicted_survival(laws, plan, max_lessons=100)
    # Each of 80 copies is kept with probability one half, so a merge is given 40 lines.
    once, twice = CallLaw(1.0, 20).read(40, 1), CallLaw(1.0, 20).read(40, 2)
    assert result.survival == pytest.approx(0.5 * once + 0.25 * twice)
    assert result.level_one == pytest.approx(0.75)


def test_the_cheapest_of_the_best_is_named_and_what_is_too_much_is_not() -> None:
    laws = CallLaws(known(CallLaw(0.7)), known(CallLaw()))
    options = TuneScanOptions(copies=(1, 3), fan_in=(8, 16), reflections=60)
    result = choices(laws, options)
    best = best_of(result)
    assert best is not None
    assert best.copies == 3
    assert best.calls == min(one.calls for one in result if one.copies == 3)
    limited = choices(
        laws, TuneScanOptions(copies=(1, 3), fan_in=(8, 16), reflections=60, max_calls=1)
    )
    assert best_of(limited) is None


def test_the_probe_finds_the_service_own_law() -> None:
    options = TuneScanOptions(sizes=(4, 16, 48), calls=2, reflections=20)
    (tuned,) = tuning.run(options)
    assert not tuned.probe.failed
    # The service attends to 12 items of a call.
    assert tuned.laws.reads.law.reads == pytest.approx(12, abs=0.5)
    summary = tuning.summary(options, [tuned])
    assert {row["call"] for row in summary["measured"]} == {"read", "merge"}
    assert all(
        value is None or math.isfinite(value)
        for law in summary["laws"].values()
        for value in law.values()
    )


def test_planted_facts_are_told_apart() -> None:
    facts = plant(300, 0)
    assert len({fact.code for fact in facts}) == 300
    feedback = str(planted_record(facts[0], 0).record["Feedback"])
    assert planted_in(facts, [feedback]) == {facts[0].code}
    assert planted_in(facts, [facts[1].line, facts[2].code]) == {facts[1].code}
