"""What a text must pass before it goes on trial: two sets of rows, each slice by itself, a budget."""

from __future__ import annotations

from collections import Counter

import dspy
import pytest

from combee_dspy.journal import Journal
from combee_dspy.records import CallUsage
from combee_strategist.live import Gate, Learning
from combee_strategist.live._budget import DayBudget, DaySpentError
from combee_strategist.live._options import DAY
from combee_strategist.live._verdict import (
    GateResult,
    GateRow,
    choose_rows,
    is_better,
    refusal,
)
from plugins.strategist.tests.lives import START, Clock

GATE = Gate(recent=7.0, rows=40, retain=20)


def rows_of(slice_, count, at=START, first=0):
    """Return rows of a slice whose labels came one second apart."""
    return [
        GateRow(
            dspy.Example(question=f"{slice_} {n}", code="K").with_inputs("question"), slice_, at + n
        )
        for n in range(first, first + count)
    ]


def scored(slice_, won=0, lost=0, same=0):
    """Return results of a slice: rows that a change wins, loses, and leaves right."""
    pairs = [(0.0, 1.0)] * won + [(1.0, 0.0)] * lost + [(1.0, 1.0)] * same
    rows = rows_of(slice_, len(pairs))
    return [GateResult(row, *pair) for row, pair in zip(rows, pairs, strict=True)]


def test_a_gain_elsewhere_does_not_pay_for_a_slice_that_loses():
    gained = scored("parcels", won=30, same=30)
    assert refusal({"held-out": gained}, GATE) == ""
    spoiled = {"held-out": [*gained, *scored("letters", lost=2, same=20)]}
    assert refusal(spoiled, GATE) == "slice letters: 2 rows lost and 0 won"
    assert refusal({"held-out": [*gained, *scored("letters", lost=1)]}, GATE) == ""
    assert refusal({"held-out": [*gained, *scored("letters", won=2, lost=2)]}, GATE) == ""


def test_a_slice_is_judged_on_both_sets_together():
    sets = {
        "held-out": [*scored("parcels", won=30, same=30), *scored("letters", lost=1)],
        "retain": scored("letters", lost=1, same=40),
    }
    assert refusal(sets, GATE) == "slice letters: 2 rows lost and 0 won"


@pytest.mark.parametrize("name", ["held-out", "retain"])
def test_each_set_must_be_no_worse_by_itself(name):
    slices = [scored(f"s{n}", lost=1, same=4) for n in range(8)]
    worse = [result for results in slices for result in results]
    (other,) = {"held-out", "retain"} - {name}
    sets = {other: scored("parcels", won=40, same=20), name: worse}
    assert refusal(sets, GATE).startswith(f"{name}: 1.000 before and 0.800 after on 40 rows")


def test_rows_of_earlier_weeks_are_retained_as_many_of_each_slice():
    now = START + 30 * DAY
    recent = rows_of("parcels", 50, now - DAY, first=1_000)
    earlier = [*rows_of("parcels", 200), *rows_of("letters", 10), *rows_of("cards", 5)]
    sets = choose_rows([*recent, *earlier], GATE, now)
    assert {row.at for row in sets["held-out"]} == {row.at for row in recent[10:]}, "the newest"
    counts = Counter(row.slice for row in sets["retain"])
    assert (counts["cards"], counts.total()) == (5, 20), "all of the few"
    assert abs(counts["letters"] - counts["parcels"]) <= 1
    assert not {row.id for row in sets["held-out"]} & {row.id for row in sets["retain"]}


def test_what_is_on_trial_is_replaced_early_by_a_clear_gain_only():
    assert is_better(scored("parcels", won=2, lost=1), clearly=False)
    assert not is_better(scored("parcels", won=2, lost=1), clearly=True)
    assert not is_better(scored("parcels", won=1, lost=1), clearly=False)
    assert is_better(scored("parcels", won=6), clearly=True)


def test_the_dollars_of_a_day_are_never_passed(tmp_path):
    learning, clock, rate = Learning(tokens=None, dollars=1.0), Clock(), 2.0**-17
    journal = Journal(tmp_path)
    log = journal.run("live", 0, {}, {})
    budget = DayBudget(learning, rate, clock, log)
    assert budget.left == 131_072
    budget.reserve(71_072)
    with pytest.raises(DaySpentError, match="60,000 tokens are left"):
        budget.reserve(71_072)  # the first call may still cost all that it reserved
    usage = CallUsage("task", "m", prompt_tokens=30_000, completion_tokens=10_000, dollars=0.25)
    budget.settle(71_072, [usage])
    log.wait()
    again = DayBudget(learning, rate, clock, log)
    assert (budget.left, again.left) == (98_304, 98_304)
    with pytest.raises(DaySpentError, match="a day has 131,072"):
        again.reserve(131_073)
    clock.pass_hours(24)
    assert again.left == 131_072
    journal.close()
