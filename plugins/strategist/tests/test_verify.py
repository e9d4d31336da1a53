"""A claim that holds survives; one that fails on one slice, one seed or one kind of hardware is
caught there alone.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

import dspy
import pytest

from combee_dspy import Budget, Task, compile_many
from combee_dspy.evaluation import CostPerPoint, PairedDifference, SerialBaseline
from combee_dspy.exceptions import ArgumentValueError, RefusedError
from combee_strategist.planning import (
    Claim,
    Verification,
    check_run,
    check_slices,
    over_serial,
    slices_of,
)
from combee_strategist.planning.verify import rows_for
from plugins.strategist.tests.claims import RIGHT, ROWS, WRONG, report
from tests.worlds import World, examples


def beside(found, serial=RIGHT, seconds=(300.0, 100.0), margin=0.02):
    """The report with what it has cost above a serial search."""
    cost = over_serial(found, report(after=serial), margin=margin)
    slow, fast = (
        SerialBaseline(score, seconds=one) for score, one in zip((0.8, 0.8), seconds, strict=True)
    )
    return replace(
        found,
        per_point=CostPerPoint.of(
            slow, fast.score, fast, point=0.01, versus=cost.versus, margin=margin
        ),
    )


def verdicts(checks):
    return {(one.where, one.verdict) for one in checks}


def test_rows_that_a_margin_needs_grow_with_the_square_of_the_width():
    found = PairedDifference(0.5, 0.75, 0.25, 0.0, 0.5, 48, 0.95)
    assert rows_for(found, 0.25) == 48
    assert rows_for(found, 0.125) == 4 * 48


def test_what_holds_everywhere_survives_and_is_ready(tmp_path):
    claim, found = Claim(faster=2.0), beside(report())
    checks = [
        *check_run("run", "seed 0", claim, found),
        *check_slices(claim, found, slices_of(ROWS, ["kind"])),
        *check_run("seed", "seed 1", claim, found),
        *check_run("hardware", "small", claim, found),
    ]
    assert {one.verdict for one in checks} == {"survives"}
    whole = Verification(claim, "run.yaml", str(found.per_point), tuple(checks))
    assert whole.ready
    whole.save(tmp_path)
    assert json.loads((tmp_path / "verify.json").read_text())["ready"] is True
    text = (tmp_path / "verify.md").read_text(encoding="utf-8")
    assert text.startswith("# The claim is ready\n")
    assert text.count("| survives |") == len(checks) == 9
    assert "3 times as fast, held-out no more than 0.02 worse" in text
    page = (tmp_path / "verify.html").read_text(encoding="utf-8")
    assert page.count('<span class="chip better">survives</span>') == 9
    assert page.count('<div class="bar better">') == 8, "all but the share of draws"
    # One that does not, and it is not; nor is one that was not tried in every way.
    assert not replace(whole, checks=(*checks, replace(checks[0], verdict="inconclusive"))).ready
    for kind in ("run", "seed", "slice", "hardware"):
        fewer = replace(whole, checks=tuple(one for one in checks if one.kind != kind))
        assert not fewer.ready
        assert fewer.untried == (kind,)


def test_a_slice_that_pays_for_the_others_is_caught():
    # Half of the rows get much better, and those of kind b worse: the whole is a clear gain.
    after = [1.0 if row.kind == "a" else 0.0 for row in ROWS]
    before = [0.0 if row.kind == "a" else 0.4 for row in ROWS]
    found = report(before, after)
    assert found.heldout.low > 0.05
    checks = list(check_slices(Claim(), found, slices_of(ROWS, ["kind"])))
    assert verdicts(checks[:2]) == {
        ("kind a (100 rows)", "survives"),
        ("kind b (100 rows)", "fails"),
    }
    assert checks[2].verdict == "survives"
    # Where a slice has too few rows to tell, that is said, and is no yes.
    few = {"few": [1, 3]}
    check = next(check_slices(Claim(), found, few))
    assert check.verdict == "inconclusive"
    assert re.search(r"; add [\d,]+ rows for a 2-point margin$", check.found)


def test_a_gain_of_a_few_lucky_rows_does_not_survive_being_drawn_again():
    after = [1.0 if n < 3 else 0.5 for n in range(200)]
    lucky = report([0.5] * 200, after)
    (drawn,) = check_slices(Claim(gain=0.005), lucky, {})
    assert (drawn.verdict, drawn.where) == ("inconclusive", "1,000 bootstrap draws of 200 rows")
    (drawn,) = check_slices(Claim(gain=0.2), lucky, {})
    assert drawn.verdict == "fails"


@pytest.mark.parametrize(
    ("given", "verdicts"),
    [
        ({"seconds": (300.0, 290.0)}, ["survives", "fails"]),  # as good, and hardly faster
        (
            {"seconds": (300.0, 1.0), "serial": [1.0] * 200},
            ["survives", "fails"],
        ),  # fast, and worse
        ({"serial": [0.8] * 200}, ["survives", "inconclusive"]),  # these rows cannot tell
        ({"seconds": (None, 1.0)}, ["survives", "inconclusive"]),  # nobody knows how fast
    ],
)
def test_a_speed_needs_both_seconds_and_the_guarantee(given, verdicts):
    checks = list(check_run("hardware", "small", Claim(faster=2.0), beside(report(), **given)))
    assert [one.verdict for one in checks] == verdicts
    if "serial" in given:
        assert "times as fast" not in checks[1].found


def test_a_gain_is_above_what_was_claimed():
    assert next(check_run("seed", "1", Claim(gain=0.1), beside(report()))).verdict == "survives"
    assert (
        next(check_run("seed", "1", Claim(gain=0.55), beside(report()))).verdict == "inconclusive"
    )
    assert next(check_run("seed", "1", Claim(gain=0.9), beside(report()))).verdict == "fails"
    assert (
        next(check_run("seed", "1", Claim(), beside(report(after=WRONG)))).verdict == "inconclusive"
    )


def test_without_a_speed_serial_search_must_not_be_better_all_the_same():
    _, against = check_run("seed", "1", Claim(faster=0.0), beside(report(), serial=[1.0] * 200))
    assert against.verdict == "fails"
    assert "fast" not in against.claim + against.found


def test_rows_that_came_in_another_order_are_paired_by_what_they_are():
    turned = report(WRONG[::-1], RIGHT[::-1], ROWS[::-1])
    versus = over_serial(report(), turned).versus
    assert versus.difference == 0
    assert versus.high < 0.02


def test_what_a_run_has_paid_is_its_own_where_a_journal_holds_several(tmp_path):
    world = World.made()
    tasks = [
        Task(
            name,
            dspy.Predict("question -> answer"),
            examples(train),
            examples(6, 100),
            heldout=examples(6, 200),
        )
        for name, train in (("large", 24), ("small", 4))
    ]
    combee = world.combee(log_dir=tmp_path, budget=Budget(epochs=1), skip_perfect_score=False)
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        large, small = (one.report for one in compile_many(tasks, combee=combee, at_once=1))
    assert large.rollouts > small.rollouts
    assert over_serial(small, large).baseline.rollouts == large.rollouts


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ArgumentValueError, match="other held-out rows"):
        over_serial(report(), report(WRONG[:100], RIGHT[:100], ROWS[:100]))
    assert over_serial(report(), report(models={"task": "another"})).versus is None
    for one in (
        report(),
        replace(report(), heldout=None),
        replace(report(), per_point=over_serial(report(), report(models={"task": "another"}))),
    ):
        with pytest.raises(RefusedError, match="a claim of seed 1"):
            list(check_run("seed", "seed 1", Claim(), one))
    with pytest.raises(RefusedError, match="held-out"):
        list(check_slices(Claim(), replace(report(), receipt=None), {}))


def test_slices_cut_the_rows_into_parts():
    lengths = slices_of(ROWS)
    assert list(lengths) == [f"length of the inputs, quarter {n}" for n in (1, 2, 3, 4)]
    assert sorted(place for places in lengths.values() for place in places) == list(range(200))
    assert max(lengths["length of the inputs, quarter 1"]) < min(
        lengths["length of the inputs, quarter 2"]
    )
    years = slices_of(ROWS, ["year", "kind"])
    assert len(years) == 6
    assert [len(one) for one in years.values()] == [50, 50, 50, 50, 100, 100]
    assert slices_of(ROWS[:3]) != {}
    for wrong in ("question", "nothing"):
        with pytest.raises(ArgumentValueError, match="by"):
            slices_of(ROWS, [wrong])


@pytest.mark.parametrize("margin", [0.0, -0.02, 0.5, float("nan")])
def test_a_margin_that_excludes_no_loss_is_no_claim(margin):
    with pytest.raises(ArgumentValueError, match="margin"):
        Claim(margin=margin)
