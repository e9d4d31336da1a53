"""Rules that change under a program that has learned them, where no slice tells them apart."""

from __future__ import annotations

import pytest

from combee_dspy.lessons import Book, BookLesson
from combee_strategist.live._evidence import weighed
from combee_strategist.live._lines import Lines
from plugins.strategist.tests.test_live_learning import GOODS, served_lines, trial

OLD, NEW = (
    BookLesson("old", "Go left.", ("a", "b", "c", "d"), rivals=("new",)),
    BookLesson("new", "Go right.", ("x", "y"), rivals=("old",)),
)


@pytest.mark.parametrize(("aged", "served"), [((), "old"), (("a", "b", "c", "d"), "new")])
def test_what_recent_requests_teach_outvotes_what_old_ones_taught(aged, served):
    book = weighed(Book((OLD, NEW)), (), aged)
    assert [lesson.id for lesson in book.served] == [served]
    assert [lesson.sources for lesson in book.lessons] == [OLD.sources, NEW.sources]


def test_old_evidence_holds_where_nothing_contradicts_it():
    alone = BookLesson("alone", "Stop.", ("a", "b"))
    assert weighed(Book((alone,)), ("a", "b"), ("a", "b")).served


def test_a_line_takes_the_place_of_what_it_contradicts():
    lines = Lines({"self": ""}, {"self": Book((OLD, NEW))})
    old, new = ("self", "old"), ("self", "new")
    assert lines.swapped({old}, {new}) == {new}
    assert lines.unreplaced({old}) == {old}
    assert lines.unreplaced({old, new}) == set()


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
