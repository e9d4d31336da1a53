"""A diagnosis of serial search: what it says, from where it reads, and what it shows."""

from __future__ import annotations

import json
import random
import re
from types import SimpleNamespace

import pytest

from combee_dspy.exceptions import ArgumentValueError
from combee_strategist.planning import Ceiling, Curve, diagnose, read_diagnosis
from plugins.strategist.tests.searches import CONVERGED, ROWS, search


def test_a_plateau_above_the_student_is_a_go_with_its_numbers():
    found = diagnose(search(CONVERGED), slots=16)
    assert (found.verdict, found.go) == ("converged", True)
    assert found.score == pytest.approx(0.65, abs=0.02)
    assert 400 <= found.to_plateau <= 700
    assert f"{4 * found.to_plateau} rollouts" in found.advice
    assert f"target is {found.score + 0.01:.3f}" in found.advice


def test_a_search_without_a_point_left_to_gain_is_told_so():
    advice = diagnose(search([0.4, *[1.0] * 10])).advice
    assert "the target is 1.000, all there is" in advice
    assert "validate on harder ones" in advice


def test_a_search_that_still_learns_gets_more_serial_rollouts():
    found = diagnose(search([0.4 + 0.02 * step for step in range(15)]))
    assert (found.verdict, found.go, found.to_plateau) == ("rising", False, None)
    assert found.gain.low > 0
    assert "more serial rollouts" in found.advice


def test_a_search_that_learned_nothing_gets_another_method():
    found = diagnose(search([0.4] * 15))
    assert found.verdict == "flat"
    assert "change the method" in found.advice
    # So is one in which no child was ever good enough to be validated.
    assert diagnose(search([0.4], total=1_000)).verdict == "flat"


def test_few_examples_tell_nothing_however_flat_they_lie():
    found = diagnose(search(CONVERGED, rows=20))
    assert found.verdict == "undecided"
    assert "20 validation rows" in found.advice


def test_the_best_of_many_lucky_candidates_is_no_gain():
    # Each is right on other examples, none more often than the student: their best rises all the
    # same.
    luck = random.Random(1)
    scores = tuple(tuple(float(luck.random() < 0.4) for _ in range(ROWS)) for _ in range(40))
    assert max(map(sum, scores)) > sum(scores[0]) + 0.03 * ROWS
    found = diagnose(Curve(tuple(range(100, 4100, 100)), scores, 4000))
    assert not found.go
    assert found.above_seed.low < 0


def test_no_candidate_late_in_a_search_is_a_plateau_too():
    early = search(CONVERGED[:5], total=5_000)
    assert diagnose(early).verdict == "converged"


def test_the_ceiling_is_what_stays_serial_and_what_the_slots_take():
    ceiling = diagnose(search(CONVERGED), slots=16).ceiling
    assert ceiling == Ceiling(wall=100.0, serial=20.0, busy=320.0, slots=16)
    assert ceiling.speedup == pytest.approx(100 / (20 + 320 / 16))
    assert ceiling.unbounded == pytest.approx(5.0)
    assert Ceiling(100.0, 90.0, 320.0, 4).speedup == 1.0


def test_a_diagnosis_is_read_as_it_was_written_and_its_page_obeys_nobody(tmp_path):
    curve = search(CONVERGED)
    hostile = Curve(
        curve.rollouts,
        curve.scores,
        curve.total,
        (),
        "<script>x</script>[a](javascript:b)\n| # \x1b[2J",
    )
    found = diagnose(hostile)
    found.save(tmp_path)
    assert read_diagnosis(tmp_path) == found
    page = (tmp_path / "diagnosis.html").read_text(encoding="utf-8")
    text = (tmp_path / "diagnosis.md").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "<a " not in page
    assert "\x1b" not in text
    assert text.startswith("# Diagnosis of serial search: converged\n\n> Go: ")
    assert f"{found.score:.3f}" in text
    assert read_diagnosis(tmp_path / "nowhere") is None
    (tmp_path / "diagnosis.json").write_text(json.dumps({"verdict": "converged"}))
    with pytest.raises(ArgumentValueError, match="combee diagnose"):
        read_diagnosis(tmp_path)


def test_gepas_own_results_are_a_curve():
    results = SimpleNamespace(
        val_subscores=[dict(enumerate(one)) for one in search(CONVERGED).scores],
        discovery_eval_counts=[100 * (step + 1) for step in range(15)],
        total_metric_calls=2_000,
    )
    curve = Curve.of_gepa(results)
    assert curve.total == 2_000
    assert diagnose(curve, slots=8).verdict == "converged"
    assert diagnose(curve, slots=8).ceiling is None


def test_gepas_scores_are_paired_by_example_whatever_their_order():
    scores = [{0: 0.0, 1: 0.25, 2: 0.5, 3: 1.0}, {3: 1.0, 2: 0.5, 1: 0.25, 0: 0.0}]
    results = SimpleNamespace(
        val_subscores=scores, discovery_eval_counts=[4, 8], total_metric_calls=12
    )
    assert Curve.of_gepa(results).scores == ((0.0, 0.25, 0.5, 1.0),) * 2


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: search([0.4]),
        lambda: search(CONVERGED, rows=3),
        lambda: Curve((1, 2, 3, 4), ((1.0,), (1.0,), (1.0,), (1.0, 0.0)), 4),
        lambda: Curve((1, 2, 4, 3), ((1.0,),) * 4, 4),
        lambda: diagnose(search(CONVERGED), margin=3.0),
        lambda: diagnose(search(CONVERGED), slots=0),
    ],
)
def test_what_is_no_curve_is_refused(wrong):
    with pytest.raises(ArgumentValueError):
        wrong()


def levels(rows: int, *right: int) -> Curve:
    """Return candidates that answer so many of the easiest examples right."""
    scores = tuple(tuple(float(row < count) for row in range(rows)) for count in right)
    bought = tuple(100 * (number + 1) for number in range(len(right)))
    return Curve(bought, scores, bought[-1])


def test_on_fifty_rows_a_search_that_is_flat_at_its_best_has_converged():
    for late in ([35] * 10, [35, 33, 34, 30, 35, 31, 35, 34, 35, 32], [35] * 5 + [36] * 5):
        diagnosis = diagnose(levels(50, 20, 25, 30, 33, *[35] * 6, *late))
        assert (diagnosis.verdict, diagnosis.go) == ("converged", True), late
        assert diagnosis.late_rise == pytest.approx((max(late) - 35) / 50)
        assert diagnosis.to_plateau <= 600
    assert diagnose(levels(50, *[20] * 20)).verdict == "flat"
    assert not diagnose(levels(50, *range(15, 35))).go


def test_above_a_flat_curve_nothing_is_rising():
    # One example more, in the second half, is the luck of one example.
    for rows in (40, 50, 100, 200):
        student, plateau = round(0.4 * rows), round(0.7 * rows)
        curve = levels(rows, student, *[plateau] * 12, *[plateau + 1] * 7)
        assert diagnose(curve).verdict == "converged", rows
    assert diagnose(levels(20, 8, *[14] * 19)).verdict != "rising"


def test_advice_for_too_few_rows_says_how_many_would_do():
    few = diagnose(search(CONVERGED, rows=30))
    assert few.verdict == "undecided"
    rows = int(re.search(r"Validate on about (\d+) rows", few.advice).group(1))
    assert diagnose(search(CONVERGED, rows=rows)).gain.high < few.gain.high
    assert rows > 30
    assert diagnose(search(CONVERGED, rows=2 * rows)).go
