"""Rules that change under a program that has learned them, where no slice tells them apart."""

from __future__ import annotations

import random

import dspy

from combee_dspy.lessons import Book, BookLesson
from combee_dspy.traces import Trace
from combee_strategist.live._evidence import drifted, moved
from combee_strategist.live._lines import Lines
from combee_strategist.live._proving import Prover
from combee_strategist.live._records import LineEvidence
from combee_strategist.live._served import ServedRow
from combee_strategist.live._verdict import GateRow
from plugins.strategist.tests.test_live_learning import GOODS, served_lines, trial

OLD, NEW = (
    BookLesson("old", "Go left.", ("a", "b", "c", "d"), rivals=("new",)),
    BookLesson("new", "Go right.", ("x", "y"), rivals=("old",)),
)


def served(pattern, version="v1", since=0):
    """Return rows of one slice that a version answered, right where the pattern has a 1."""
    return [
        ServedRow(
            Trace(f"r{n}", {}, {}, score=float(mark), prompt=version),
            float(n),
            (),
            "all",
            False,
            True,
        )
        for n, mark in enumerate(pattern, since)
    ]


def test_a_slice_in_which_a_minority_goes_wrong_is_seen_as_drifted():
    before = "1111101111" * 30
    (drift,) = drifted(served(before + "110" * 32), {}, "v1")
    assert (drift.slice, 300 <= drift.since < 320) == ("all", True)
    assert drifted(served(before * 2), {}, "v1") == []
    assert drifted(served(before + "0" * 8), {}, "v1")[0].since == 300


def test_a_share_of_few_requests_is_not_taken_for_sure():
    assert drifted(served("1" * 8 + "0" * 4), {}, "v1") == []


def test_what_earlier_versions_got_wrong_does_not_hide_that_what_is_right_goes_wrong():
    first = served("0" * 60)
    second = served("1" * 40 + "0" * 8, "v2", 60)
    (drift,) = drifted([*first, *second], {}, "v2")
    assert (drift.since, drift.whole) == (100, True)
    assert drift.why == "0 of the last 8 are right, 40 of 40 before"
    # All versions together show nothing yet.
    assert drifted([*first, *second], {}, "v3") == []


def test_a_fall_is_seen_beside_few_earlier_answers():
    (drift,) = drifted(served("1" * 8 + "0" * 16), {}, "v1")
    assert (drift.since, drift.whole) == (8, True)


def mixed(count, weights, since=0):
    """Return rows that went wrong, of slices drawn by weights."""
    names = random.Random(since).choices(range(len(weights)), weights, k=count)
    return [
        ServedRow(Trace(f"r{n}", {}, {}, score=0.0), float(since + n), (), f"s{name}", False, True)
        for n, name in enumerate(names)
    ]


def test_few_requests_of_many_slices_are_no_other_mix():
    rare = [(place + 1) ** -1.5 for place in range(100)]
    for seed in range(10):
        rows = mixed(9_000, rare, seed * 10_000)
        assert moved(rows, rows[-20].at) == []
    before, after = mixed(500, [1] * 24), mixed(500, [5, 5, *[1] * 22], 500)
    assert [why.split(":")[0] for why in moved([*before, *after], 500.0)] == [
        "the mix of requests has moved",
        "the mix of failures has moved",
    ]


def test_a_line_takes_the_place_of_what_it_contradicts():
    lines = Lines({"self": ""}, {"self": Book((OLD, NEW))})
    old, new = ("self", "old"), ("self", "new")
    assert lines.swapped({old}, {new}) == {new}


def test_exceptions_do_not_hide_what_should_replace_their_rule():
    old = BookLesson("old", "A kettle gets the code K1.", ("a",), rivals=("new",))
    new = BookLesson("new", "A kettle gets the code K2.", ("x",), rivals=("old",))
    narrow = [
        BookLesson(colour, f"A {colour} kettle gets the code K2.", (colour,), rule="old")
        for colour in ("red", "big")
    ]
    lines = Lines({"self": ""}, {"self": Book((old, *narrow, new))})

    class Runs:
        def score(self, texts, rows):
            return [float("K2" in texts["self"]) for _ in rows]

    row = GateRow(dspy.Example(question="A big red kettle", code="K2"), "all", trusted=True)
    candidates = [
        LineEvidence("self", each.id, each.text, each.sources, new=True) for each in (*narrow, new)
    ]
    proven, _ = Prover(lines, {("self", "old")}, Runs()).prove(candidates, [(row, 0.0)])
    passed = [line.lesson for line in proven if line.passed]
    assert (len(passed), "new" in passed) == (2, True)


def test_a_drift_within_a_slice_is_learned_and_the_rest_stays(desk):
    here = desk(slices=lambda inputs: "all", trusted=())
    for _ in range(2):
        here.label(*GOODS, trusted=True)
        here.label(*GOODS)
    here.live.tick()
    trial(here)
    here.live.tick()
    here.server.refresh()
    assert here.ask("ant")[1] == "K0"
    here.clock.pass_hours(96)
    here.rules |= {"ant": "Z0", "bell": "Z1"}
    for _ in range(6):
        here.label(*GOODS, trusted=True)
        here.label(*GOODS, *GOODS)
        here.clock.pass_hours(8)
        here.live.tick()
        here.settle()
    here.server.refresh()
    assert "the code for ant is K0" not in served_lines(here)
    assert [here.ask(goods)[1] for goods in GOODS] == ["Z0", "Z1", *(f"K{n}" for n in range(2, 8))]


def test_users_who_change_their_minds_after_a_promotion_set_earlier_rows_aside(desk):
    here = desk(slices=lambda inputs: "all", trusted=())
    for _ in range(3):
        here.label(*GOODS, trusted=True)
        here.label(*GOODS)
    here.live.tick()
    trial(here)
    assert "promote" in [each.action for each in here.live.tick()]
    here.server.refresh()
    here.label(*GOODS * 3)
    here.rules = {goods: f"Z{n}" for n, goods in enumerate(GOODS)}
    here.clock.pass_hours(9)
    here.label(*GOODS * 2)
    here.live.tick()
    (drift,) = [each for each in here.live.decisions() if each.action == "drift" and each.text]
    assert (drift.text, drift.entire) == ("all", True)
    assert drift.why == "0 of the last 16 are right, 24 of 24 before"
