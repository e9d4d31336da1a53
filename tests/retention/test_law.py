from __future__ import annotations

import inspect
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from combee_dspy.aggregators import ParallelScan, PlanNode, ScanPlan, plan_scan
from combee_dspy.events import Event, ScanStarted
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import Reflection
from combee_dspy.retention import (
    RetentionFit,
    RetentionLaw,
    RetentionLaws,
    RetentionSample,
    fit_retention,
    play_scan,
    pooled_retention,
    predicted_survival,
    survival_range,
    tune_scan,
)
from combee_dspy.strategies import StrategyContext
from combee_dspy.streams import derive
from combee_dspy.testing.doubles import ScriptedPredict


def known(law: RetentionLaw) -> RetentionFit:
    return RetentionFit(law, (law, law), 1_000, 1.0, None, 10)


def kept_by(reads: int | None, writes: int | None, entries: list[int], stream: random.Random) -> list[int]:
    """What a call with these limits returns: the truth that laws are fitted to."""
    taken = stream.sample(entries, reads) if reads is not None and reads < len(entries) else entries
    distinct = sorted(set(taken))
    return stream.sample(distinct, writes) if writes is not None and writes < len(distinct) else distinct


def samples(reads: int | None, writes: int | None, copies: tuple[int, ...] = (1,)) -> list[RetentionSample]:
    stream = random.Random(5)
    return [
        RetentionSample(m, len(kept_by(reads, writes, [i for i in range(m) for _ in range(x)], stream)), m, x)
        for m in (4, 8, 16, 24, 48, 96)
        for x in copies
        for _ in range(4)
    ]


@pytest.fixture(scope="module", params=[(12, None), (None, 12)], ids=["attention", "writing"])
def measured(request: pytest.FixtureRequest) -> tuple[int | None, int | None, RetentionLaws]:
    reads, writes = request.param
    return (
        reads,
        writes,
        RetentionLaws(
            fit_retention(samples(reads, writes), replicates=40),
            fit_retention(samples(reads, writes, (1, 2)), replicates=40),
        ),
    )


def test_the_limit_is_found_and_which_one_it_is(measured: tuple[int | None, int | None, RetentionLaws]) -> None:
    reads, _, laws = measured
    assert laws.reads.law.reads == pytest.approx(12, rel=0.05)
    assert laws.reads.law.rate == pytest.approx(1, abs=0.02)
    limit = laws.merges.law.reads if reads else laws.merges.law.writes
    other = laws.merges.law.writes if reads else laws.merges.law.reads
    assert limit == pytest.approx(12, rel=0.06)
    assert other > 24
    for fit in (laws.reads, laws.merges):
        assert fit.misfit is not None
        assert fit.misfit > 0.05
        low, high = fit.interval(48)
        assert low < 12 / 48 < high


def test_prediction_agrees_with_a_scan_played_through(measured: tuple[int | None, int | None, RetentionLaws]) -> None:
    reads, writes, laws = measured
    for n, p, fan_in in ((10, 2, 32), (40, 2, 32), (120, 1, 8), (120, 3, 16)):
        plan = plan_scan(n, p, fan_in, derive(1, "predict", n, p))
        predicted = predicted_survival(laws, plan, max_lessons=1_000)
        stream = random.Random(n * p)
        shares, firsts = [], []
        for repeat in range(12):
            held: list[list[int]] = []
            for level, nodes in enumerate(plan_scan(n, p, fan_in, derive(repeat, "play", n, p)).levels):
                inputs = [
                    [list(node.sources)] if level == 0 else [held[child] for child in node.sources] for node in nodes
                ]
                held = [
                    lists[0]
                    if level and len(lists) == 1
                    else kept_by(reads, writes, [one for entries in lists for one in entries], stream)
                    for lists in inputs
                ]
                if level == 0:
                    firsts.append(len({one for entries in held for one in entries}) / n)
            shares.append(len(held[0]) / n)
        assert predicted.low - 0.01 <= sum(shares) / 12 <= predicted.high + 0.01
        assert predicted.level_one == pytest.approx(sum(firsts) / 12, abs=0.03)


def test_two_copies_in_two_shards_by_hand() -> None:
    read, merge = RetentionLaw(1.0, 3.0), RetentionLaw(0.9, 4.0)
    plan = ScanPlan(6, 2, ((PlanNode(tuple(range(6))), PlanNode(tuple(range(6)))), (PlanNode((0, 1)),)))
    q = 3 / 6
    lines = 12 * q
    once, twice = 4 / lines, 1 - (lines - 4) / lines * (lines - 5) / (lines - 1)
    expected = 0.9 * (2 * q * (1 - q) * once + q * q * twice)
    found = predicted_survival(RetentionLaws(known(read), known(merge)), plan)
    assert found.survival == pytest.approx(expected)
    assert found.level_one == pytest.approx(1 - (1 - q) ** 2)
    assert found.lines == pytest.approx((lines, 6 * expected))


def test_a_perfect_call_loses_nothing_and_a_node_with_one_child_makes_no_call() -> None:
    perfect = RetentionLaws(known(RetentionLaw()), known(RetentionLaw()))
    found = predicted_survival(perfect, plan_scan(40, 2, 32, derive(0, "x")))
    assert (found.survival, found.low, found.high, found.level_one) == pytest.approx((1, 1, 1, 1))
    half = RetentionLaws(known(RetentionLaw()), known(RetentionLaw(0.5)))
    chain = ScanPlan(2, 1, ((PlanNode((0, 1)),), (PlanNode((0,)),)))
    assert predicted_survival(half, chain).survival == pytest.approx(1)
    assert predicted_survival(half, ScanPlan(0, 1, ())).survival == 0


def test_what_a_call_may_return_is_a_limit_too() -> None:
    perfect = RetentionLaws(known(RetentionLaw()), known(RetentionLaw()))
    plan = ScanPlan(40, 1, ((PlanNode(tuple(range(40))),),))
    assert predicted_survival(perfect, plan, max_lessons=10).survival == pytest.approx(0.25)


@given(
    st.floats(0.05, 1),
    st.floats(1, 60),
    st.floats(1, 60),
    st.integers(1, 120),
    st.integers(1, 4),
    st.sampled_from([4, 12, 32]),
)
@settings(max_examples=60, deadline=None)
def test_predictions_are_probabilities(rate: float, reads: float, writes: float, n: int, p: int, fan_in: int) -> None:
    law = known(RetentionLaw(rate, reads, writes))
    found = predicted_survival(RetentionLaws(law, law), plan_scan(n, p, fan_in, derive(n, "plan")))
    assert 0 <= found.survival <= found.level_one + 1e-9 <= 1 + 2e-9
    assert found.lines[-1] == pytest.approx(found.survival * n)
    assert found.lines[0] <= n * p * (1 + 1e-9)


@given(st.floats(0.05, 1), st.floats(1, 40), st.floats(1, 40), st.integers(1, 100), st.integers(1, 3))
@settings(max_examples=80, deadline=None)
def test_more_items_are_never_kept_better_and_more_copies_never_worse(
    rate: float, reads: float, writes: float, items: int, copies: int
) -> None:
    law = RetentionLaw(rate, reads, writes)
    assert 0 <= law.q(items, copies) <= 1
    assert law.q(items + 1) <= law.q(items) + 1e-12
    assert law.read(60, copies + 1) >= law.read(60, copies) - 1e-12
    assert law.q(items) * items <= min(reads, writes) + 1e-6


def test_a_law_of_another_form_is_contradicted() -> None:
    odd = [RetentionSample(m, round(m * q), m) for m, q in ((10, 0.2), (40, 0.9), (80, 0.2)) for _ in range(6)]
    fit = fit_retention(odd, replicates=4)
    assert fit.dispersion > 1 or (fit.misfit or 1) < 0.01


def test_calls_that_vary_much_widen_the_interval() -> None:
    even = [RetentionSample(40, 20, 40) for _ in range(10)] + [RetentionSample(4, 4, 4) for _ in range(10)]
    wild = [RetentionSample(40, kept, 40) for kept in (2, 38) * 5] + [RetentionSample(4, 4, 4) for _ in range(10)]
    narrow, wide = (fit_retention(one, replicates=60) for one in (even, wild))
    assert wide.dispersion > 5 * narrow.dispersion
    assert wide.interval(40)[1] - wide.interval(40)[0] > 1.5 * (narrow.interval(40)[1] - narrow.interval(40)[0])


def test_the_same_samples_and_seed_give_the_same_fit() -> None:
    some = samples(12, None)[:12]
    assert fit_retention(some, replicates=5, seed=3) == fit_retention(some, replicates=5, seed=3)


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        [RetentionSample(4, 5, 4)],
        [RetentionSample(0, 1, 5)],
        [RetentionSample(4, 0, 0)],
        [RetentionSample(4, -1, 4)],
        [RetentionSample(4, 1, 4, copies=0)],
    ],
)
def test_samples_that_contradict_themselves_are_refused(wrong: list[RetentionSample]) -> None:
    with pytest.raises(ArgumentValueError, match="samples"):
        fit_retention(wrong)
    with pytest.raises(ArgumentValueError, match="replicates"):
        fit_retention([RetentionSample(2, 1, 2)], replicates=1)


def test_one_size_is_enough_to_fit_if_not_to_tell() -> None:
    fit = fit_retention([RetentionSample(1, 1, 1)] * 3, replicates=4)
    assert fit.law.q(1) == pytest.approx(1, abs=0.01)
    assert fit.misfit is None
    assert fit_retention([RetentionSample(8, 0, 8)] * 3, replicates=4).law.q(8) < 0.05


def test_pooling_adds_up_calls_of_one_size() -> None:
    pooled = pooled_retention([RetentionSample(8, 2, 8), RetentionSample(4, 4, 4), RetentionSample(8, 6, 8)])
    assert list(pooled) == [(4, 1), (8, 1)]
    kept, total, low, high = pooled[8, 1]
    assert (kept, total) == (8, 16)
    assert 0.2 < low < 0.5 < high < 0.8


def test_the_best_setting_is_the_cheapest_of_the_best() -> None:
    perfect = RetentionLaws(known(RetentionLaw()), known(RetentionLaw()))
    tuned = tune_scan(perfect, 40, copies=(1, 2), fan_ins=(4, 32))
    assert len(tuned.choices) == 4
    assert tuned.best is not None
    assert (tuned.best.copies, tuned.best.calls) == (1, min(one.calls for one in tuned.choices))
    crowded = RetentionLaws(known(RetentionLaw(1.0, 4.0)), known(RetentionLaw()))
    smaller = tune_scan(crowded, 40, copies=(1, 2), fan_ins=(4, 32)).best
    assert smaller is not None
    assert smaller.fan_in == 4


def test_a_budget_of_calls_rules_settings_out() -> None:
    crowded = RetentionLaws(known(RetentionLaw(1.0, 4.0)), known(RetentionLaw()))
    tuned = tune_scan(crowded, 40, copies=(1, 2), fan_ins=(4, 32), max_calls=8)
    assert [one.affordable for one in tuned.choices] == [one.calls <= 8 for one in tuned.choices]
    assert tuned.best is not None
    assert tuned.best.calls <= 8
    assert tune_scan(crowded, 40, copies=(1,), fan_ins=(4,), max_calls=2).best is None


@pytest.mark.parametrize("n", [40, 240, 600])
@pytest.mark.parametrize("fan_in", [8, 16, 32])
def test_the_tree_that_is_tuned_is_the_one_that_a_scan_makes(n: int, fan_in: int) -> None:
    laws = RetentionLaws(known(RetentionLaw()), known(RetentionLaw()))
    (choice,) = tune_scan(laws, n, copies=(2,), fan_ins=(fan_in,)).choices
    events: list[Event] = []
    context = StrategyContext("answer", "Answer.", ScriptedPredict(), events.append)
    ParallelScan(fan_in=fan_in).aggregate([Reflection(i, {"Feedback": f"fact {i}"}) for i in range(n)], context)
    assert [event.levels for event in events if isinstance(event, ScanStarted)] == [choice.levels]


def test_more_copies_pay_where_calls_forget_and_merges_do_not() -> None:
    forgetful = RetentionLaws(known(RetentionLaw(0.5)), known(RetentionLaw()))
    tuned = tune_scan(forgetful, 60, copies=(1, 2, 3), fan_ins=(32,), max_lessons=32)
    assert [one.predicted.survival for one in tuned.choices] == pytest.approx([0.5, 0.75, 0.875])
    assert tuned.best is not None
    assert tuned.best.copies == 3


@pytest.mark.parametrize(
    ("arguments", "named"), [({"n": 0}, "n"), ({"copies": ()}, "copies"), ({"fan_ins": ()}, "fan_ins")]
)
def test_a_question_that_has_no_answer_is_refused(arguments: dict[str, object], named: str) -> None:
    laws = RetentionLaws(known(RetentionLaw()), known(RetentionLaw()))
    with pytest.raises(ArgumentValueError, match=named):
        tune_scan(laws, **{"n": 10, **arguments})


def test_the_default_law_has_no_limit() -> None:
    assert RetentionLaw().q(10_000) == 1
    assert math.isinf(RetentionLaw().reads)


def test_scans_played_under_a_law_stray_about_what_is_expected() -> None:
    laws = RetentionLaws(known(RetentionLaw(0.9, 10.5, 12.0)), known(RetentionLaw(0.8, 15.0)))
    plan = plan_scan(40, 2, 16, derive(3, "play"))
    stream = derive(4, "play")
    shares = [len(play_scan(laws.reads.law, laws.merges.law, plan, stream)) / 40 for _ in range(150)]
    expected = predicted_survival(laws, plan).survival
    assert sum(shares) / 150 == pytest.approx(expected, abs=0.015)
    many = RetentionFit(laws.reads.law, (laws.reads.law,) * 60, 1_000, 1.0, None, 10)
    same = RetentionLaws(many, RetentionFit(laws.merges.law, (laws.merges.law,) * 60, 1_000, 1.0, None, 10))
    one, ten = (survival_range(same, plan, scans) for scans in (1, 10))
    assert one[0] < ten[0] < expected < ten[1] < one[1]


def test_a_range_needs_a_scan_and_reflections() -> None:
    laws = RetentionLaws(known(RetentionLaw()), known(RetentionLaw()))
    assert survival_range(laws, plan_scan(9, 1, 8, derive(0, "x")), 2) == (1.0, 1.0)
    with pytest.raises(ArgumentValueError, match="scans"):
        survival_range(laws, plan_scan(9, 1, 8, derive(0, "x")), 0)
    with pytest.raises(ArgumentValueError, match="plan"):
        survival_range(laws, ScanPlan(0, 1, ()), 1)


def test_scans_are_predicted_by_the_defaults_of_the_aggregator() -> None:
    scan = inspect.signature(ParallelScan).parameters
    assert inspect.signature(tune_scan).parameters["merge_fan_in"].default == scan["merge_fan_in"].default
    for predicts in (tune_scan, predicted_survival, survival_range):
        assert inspect.signature(predicts).parameters["max_lessons"].default == scan["max_lessons"].default
