"""Judges that are held against another while a run goes on: calibration, and the ceiling with its proxy."""

from __future__ import annotations

import json
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import dspy
import pytest
from dspy.clients.cache import Cache
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.costs import Price, PriceTable
from combee_dspy.evaluation import CalibratedMetric, Calibration, CappedMetric, CostCeiling, Judge, SteppedMetric
from combee_dspy.evaluation._ceiling import fit_line
from combee_dspy.events import CalibrationFinished, ScheduleDecided
from combee_dspy.exceptions import ArgumentError, ArgumentValueError, CalibrationFailedError
from combee_dspy.rollouts._fingerprint import scorer_fingerprint
from combee_dspy.testing import ScriptedLM, as_chat


def golds(count):
    return [dspy.Example(question=f"q{n}", size=n).with_inputs("question") for n in range(count)]


def truth(gold, pred, trace=None, pred_name=None, pred_trace=None):
    return gold.size / 1000


def liar(gold, pred, trace=None, pred_name=None, pred_trace=None):
    return 1 - gold.size / 1000


def constant(gold, pred, trace=None, pred_name=None, pred_trace=None):
    return 1.0


def told(gold, pred, trace=None, pred_name=None, pred_trace=None):
    return dspy.Prediction(score=gold.size / 1000, feedback=f"about {gold.size}")


def judge_all(metric, examples, workers=1):
    preds = [dspy.Prediction(answer=f"a{gold.size}") for gold in examples]
    with ThreadPoolExecutor(workers) as pool:
        outputs = list(pool.map(metric, examples, preds))
    # As a run does, with each rollout that it has asked for.
    for output in outputs:
        metric.observe(output)
    return outputs


def calibrated(judge=told, reference=truth, **settings):
    metric = CalibratedMetric(judge, Calibration(reference, **settings), seed=1)
    assert isinstance(metric, SteppedMetric)
    return metric


def test_one_in_twenty_is_judged_by_both_whatever_the_order() -> None:
    asked: list[int] = []

    def reference(gold, pred, trace=None, pred_name=None, pred_trace=None):
        asked.append(gold.size)
        return truth(gold, pred)

    examples = golds(1000)
    first = calibrated(reference=reference)
    outputs = judge_all(first, examples)
    drawn = list(asked)
    assert 30 <= len(drawn) <= 70
    assert [output.score for output in outputs] == [gold.size / 1000 for gold in examples]
    assert all(output.feedback for output in outputs)
    asked.clear()
    second = calibrated(reference=reference)
    judge_all(second, examples[::-1], workers=8)
    assert sorted(asked) == sorted(drawn)
    assert second.result() == first.result()
    other = CalibratedMetric(told, Calibration(reference), seed=2)
    asked.clear()
    judge_all(other, examples)
    assert sorted(asked) != sorted(drawn)


def test_agreement_goes_on_and_disagreement_aborts() -> None:
    events = []
    good = calibrated()
    judge_all(good, golds(1000))
    good.step(3, events.append)
    (event,) = events
    assert isinstance(event, CalibrationFinished)
    assert (event.subject, event.passed, event.correlation, event.iteration) == ("judge", True, 1.0, 3)
    bad = calibrated(judge=liar)
    judge_all(bad, golds(1000))
    with pytest.raises(CalibrationFailedError, match=r"-1\.000") as caught:
        bad.step(3, events.append)
    assert events[-1].pairs == caught.value.result.pairs
    assert not events[-1].passed


def test_it_decides_at_the_minimum_and_each_doubling() -> None:
    events = []
    metric = calibrated(share=1.0, minimum=10)
    for count in range(1, 45):
        judge_all(metric, golds(count)[-1:])
        metric.step(count, events.append)
    assert [event.size for event in events] == [10, 20, 40]
    metric.step(45, events.append, final=True)
    assert events[-1].size == 44
    metric.step(46, events.append, final=True)
    assert len(events) == 4


def test_too_few_pairs_are_no_calibration() -> None:
    metric = calibrated(share=1.0)
    judge_all(metric, golds(3))
    metric.step(1, pytest.fail)
    assert metric.result() is None
    with pytest.raises(CalibrationFailedError, match="3 rollouts judged by both"):
        metric.step(1, pytest.fail, final=True)


def test_a_judge_without_opinion_fails_and_a_reference_without_one_waits() -> None:
    events = []
    metric = calibrated(judge=constant, share=1.0)
    judge_all(metric, golds(20))
    with pytest.raises(CalibrationFailedError, match="the judge gave all 20"):
        metric.step(1, events.append)
    waiting = calibrated(reference=constant, share=1.0)
    judge_all(waiting, golds(20))
    waiting.step(1, pytest.fail)
    with pytest.raises(CalibrationFailedError, match="the reference gave all 20"):
        waiting.step(2, events.append, final=True)


def test_a_reference_that_raises_ends_the_run_and_spoils_no_score() -> None:
    def broken(gold, pred, trace=None, pred_name=None, pred_trace=None):
        raise KeyError("label")

    metric = calibrated(reference=broken, share=1.0)
    assert judge_all(metric, golds(2))[1].score == 0.001
    with pytest.raises(CalibrationFailedError, match="reference raised KeyError"):
        metric.step(1, pytest.fail)


def test_feedback_on_a_predictor_passes_through() -> None:
    metric = calibrated(judge=truth, reference=constant, share=1.0)
    gold = golds(1)[0]
    assert metric(gold, dspy.Prediction(answer="a"), [], "predict", []) == 0.0
    assert metric.result() is None
    assert metric(gold, dspy.Prediction(answer="a")).calibration["reference"] == 1.0


def test_rollouts_from_a_cache_count_once() -> None:
    first, second = calibrated(share=1.0), calibrated(share=1.0)
    outputs = judge_all(first, golds(20))
    for output in [*outputs, *outputs, 0.5, None]:
        second.observe(output)
    assert second.result() == first.result()
    assert second.result().passed


def test_what_nobody_has_asked_for_yet_decides_nothing() -> None:
    metric = calibrated(share=1.0, minimum=4)
    outputs = [metric(gold, dspy.Prediction(answer="a")) for gold in golds(8)]
    metric.step(1, pytest.fail)
    assert metric.result() is None
    for output in outputs:
        metric.observe(output)
    assert metric.result() is not None


def test_pairs_and_decisions_survive_a_resume() -> None:
    events = []
    first = calibrated(share=1.0, minimum=10)
    judge_all(first, golds(10))
    first.step(1, events.append)
    second = calibrated(share=1.0, minimum=10)
    second.load(json.loads(json.dumps(first.dump())))
    assert second.result() == first.result()
    # Decided at ten: the next decision is due at twenty.
    judge_all(second, golds(19))
    second.step(2, pytest.fail)
    judge_all(second, golds(20))
    second.step(3, events.append)
    assert [event.size for event in events] == [10, 20]


def test_it_travels_without_its_pairs_and_keeps_its_identity() -> None:
    metric = calibrated(share=1.0)
    judge_all(metric, golds(20))
    copy = pickle.loads(pickle.dumps(metric))  # noqa: S301 - our own bytes
    assert copy.result() is None
    assert scorer_fingerprint(copy) == scorer_fingerprint(metric)
    assert scorer_fingerprint(metric) != scorer_fingerprint(calibrated(judge=liar))


# --- ceiling ----------------------------------------------------------------------------------------------------


def judge_lm():
    def answer(request):
        size = request.text.rsplit('"answer": "a', 1)[1].split('"')[0]
        return as_chat({"feedback": "word " * 40, "score": int(size) / 1000})

    return ScriptedLM(answer)


def capped(proxy=truth, full=None, prices=None, **settings):
    metric = CappedMetric(
        full or Judge("Right?", lm=judge_lm()), CostCeiling(proxy, **{"sample": 10, **settings}), prices=prices
    )
    assert isinstance(metric, SteppedMetric)
    return metric


def test_below_the_ceiling_nothing_changes() -> None:
    metric = capped(tokens=100_000)
    judge_all(metric, golds(40), workers=4)
    assert metric.mean_cost > 40
    metric.step(1, pytest.fail)
    assert metric.line is None


def test_above_it_the_proxy_is_calibrated_and_takes_over_between_iterations() -> None:
    events = []
    half = lambda gold, pred, trace=None, pred_name=None, pred_trace=None: gold.size / 2000  # noqa: E731 - a proxy
    metric = capped(half, tokens=10)
    before = scorer_fingerprint(metric)
    judge_all(metric, golds(100), workers=4)
    lm_calls = len(metric.full.lm.requests)
    assert lm_calls == 100
    metric.step(2, events.append)
    calibration, decision = events
    assert (calibration.subject, calibration.passed) == ("proxy", True)
    assert isinstance(decision, ScheduleDecided)
    assert decision.values["score_by"] == "proxy"
    assert decision.values["mean_cost"] == metric.mean_cost
    scores = [getattr(output, "score", output) for output in judge_all(metric, golds(90))]
    assert len(metric.full.lm.requests) == lm_calls
    # On the full evaluator's scale, not the proxy's, within what the sample showed.
    assert scores[50] == pytest.approx(0.05, abs=0.003)
    assert scorer_fingerprint(metric) != before
    metric.step(3, pytest.fail)


def test_a_hand_over_survives_a_resume() -> None:
    first = capped(tokens=10, share=1.0)
    judge_all(first, golds(30))
    first.step(1, lambda event: None)
    second = capped(tokens=10, share=1.0)
    second.load(json.loads(json.dumps(first.dump())))
    assert second.line == first.line is not None
    assert second.mean_cost == first.mean_cost
    judge_all(second, golds(5))
    assert not second.full.lm.requests
    before = capped(tokens=100_000)
    judge_all(before, golds(30))
    after = capped(tokens=100_000)
    after.load(before.dump())
    assert after.mean_cost == before.mean_cost
    assert after.line is None


def test_with_too_few_pairs_the_proxy_first_goes_beside_every_rollout() -> None:
    events = []
    metric = capped(tokens=10, share=0.001)
    judge_all(metric, golds(12))
    metric.step(1, events.append)
    assert events[-1].values["proxy_beside"] == "every rollout"
    assert metric.line is None
    metric.step(2, pytest.fail)
    judge_all(metric, golds(12))
    metric.step(3, events.append)
    assert metric.line is not None


def test_a_proxy_that_disagrees_aborts() -> None:
    events = []
    metric = capped(liar, tokens=10, share=1.0)
    judge_all(metric, golds(30))
    with pytest.raises(CalibrationFailedError, match="the proxy is not fit"):
        metric.step(1, events.append)
    assert not events[-1].passed
    assert metric.line is None


def test_what_the_cache_answers_says_nothing_about_the_price(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = Cache(enable_disk_cache=False, enable_memory_cache=True, disk_cache_dir=None)
    monkeypatch.setattr(dspy, "cache", fresh)
    lm = judge_lm()
    lm.cache = True
    metric = capped(full=Judge("Right?", lm=lm), tokens=10, share=0.001)
    first = judge_all(metric, golds(10))
    mean = metric.mean_cost
    assert mean is not None
    assert [output.score for output in judge_all(metric, golds(10))] == [output.score for output in first]
    assert len(lm.requests) == 10
    assert metric.mean_cost == mean


def test_dollars_need_prices() -> None:
    metric = capped(dollars=1e-9, prices=PriceTable())
    judge_all(metric, golds(5))
    with pytest.raises(ArgumentValueError, match="have no price"):
        metric.step(1, pytest.fail)
    lm = judge_lm()
    priced = capped(full=Judge("Right?", lm=lm), dollars=1e-9, share=1.0, prices=PriceTable({lm.model: Price(1, 1)}))
    judge_all(priced, golds(20))
    priced.step(1, lambda event: None)
    assert priced.line is not None


def test_feedback_on_a_predictor_is_no_evaluation() -> None:
    metric = capped(tokens=10, share=1.0)
    gold, pred = golds(1)[0], dspy.Prediction(answer="a0")
    metric(gold, pred)
    mean = metric.mean_cost
    metric(gold, pred, [], "predict", [])
    assert metric.mean_cost == mean
    assert len(metric.full.lm.requests) == 1


def test_a_calibrated_judge_under_a_ceiling_is_stepped_too() -> None:
    events = []
    inner = CalibratedMetric(Judge("Right?", lm=judge_lm()), Calibration(truth, share=1.0), seed=1)
    metric = capped(full=inner, tokens=10, share=1.0)
    outputs = judge_all(metric, golds(30))
    assert {"calibration", "proxy_calibration"} <= set(outputs[0].keys())
    metric.step(1, events.append)
    assert [getattr(event, "subject", "decision") for event in events] == ["judge", "proxy", "decision"]


def test_a_hand_over_waits_for_the_step_whatever_ends_meanwhile() -> None:
    """A rollout that is in flight while others pass the ceiling is scored by the same evaluator as they."""
    gate, late = threading.Event(), []
    metric = capped(tokens=1, share=1.0)
    slow = golds(21)[-1]

    def wait():
        gate.wait(10)
        late.append(metric(slow, dspy.Prediction(answer="a20")))

    thread = threading.Thread(target=wait)
    thread.start()
    judge_all(metric, golds(20))
    gate.set()
    thread.join()
    assert late[0].feedback.startswith("word")


pair_lists = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=4, max_size=30)


@given(pair_lists, st.floats(0, 1))
def test_the_line_stays_in_what_was_seen_and_rises(pairs, score: float) -> None:
    line = fit_line(pairs)
    fulls = [full for _, full in pairs]
    assert min(fulls) <= line(score) <= max(fulls)
    assert line(score) <= line(min(1.0, score + 0.1)) + 1e-12


@pytest.mark.parametrize(
    "wrong",
    [
        {"proxy": 3, "tokens": 1},
        {},
        {"tokens": 1, "dollars": 1},
        {"tokens": -1},
        {"tokens": float("inf")},
        {"tokens": 1, "sample": 3},
        {"tokens": 1, "share": 0},
    ],
)
def test_wrong_ceilings_are_refused(wrong) -> None:
    with pytest.raises(ArgumentError):
        CostCeiling(**{"proxy": truth, **wrong})
