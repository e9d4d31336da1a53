"""A fortnight: labels that are few, late and partly wrong, a drift, an attack."""

from __future__ import annotations

import pytest

from combee_dspy.streams import derive
from studies.fortnight.peers import DayRow
from studies.fortnight.study import FortnightOptions, summary, table
from studies.fortnight.world import BEGIN, DAY, DAYS, DRIFT_DAY, World, make_world
from studies.weighing.laws import learn
from studies.weighing.prompts import ReadRecord
from studies.weighing.tasks import Laws
from studies.weighing.words import NO_CODE


@pytest.fixture(scope="module")
def world() -> World:
    return make_world(0, 20_000, poison_day=3)


def test_labels_are_few_late_and_partly_wrong(world: World) -> None:
    labelled = [request for request in world.requests if request.label_at and not request.order]
    wrong = [request for request in labelled if request.row.label != request.row.code]
    assert len(labelled) / len(world.requests) == pytest.approx(0.05, abs=0.005)
    assert len(wrong) / len(labelled) == pytest.approx(0.15, abs=0.03)
    assert not any(request.trusted for request in wrong)
    hours = [((request.label_at or 0.0) - request.at) / 3600 for request in labelled]
    assert min(hours) >= 2
    assert max(hours) <= 10


def test_a_third_of_the_rules_change_in_the_middle(world: World) -> None:
    rules = world.launch.truth.rules
    changed = {name for name, code in rules.items() if world.drifted.rules[name] != code}
    assert len(changed) == len(rules) // 3
    for request in world.requests:
        own = world.launch.truth if request.day < DRIFT_DAY else world.drifted
        assert own.code(request.row.case) == request.row.code


def test_orders_come_on_a_single_day_and_a_reader_writes_them_down(world: World) -> None:
    orders = [request for request in world.requests if request.order]
    assert {request.day for request in orders} == {3}
    assert len(orders) == round(0.02 * len(world.requests) / DAYS)
    record = ReadRecord(1, orders[0].row.case, NO_CODE, failed=True, order=orders[0].order)
    for obeys, written in ((1.0, True), (0.0, False)):
        laws = Laws(obeys=obeys)
        lessons = learn([record], [], laws, derive(0, "a reader"))
        assert any(lesson.text == orders[0].order for lesson in lessons) is written


def test_the_labels_of_a_night_are_those_of_two_days(world: World) -> None:
    end = BEGIN + 5 * DAY
    times = [request.label_at for request in world.labelled(4)]
    assert times
    assert all(at is not None and end - 2 * DAY <= at < end for at in times)


def test_recovery_counts_from_the_day_of_the_drift() -> None:
    scores = [90.0] * DRIFT_DAY + [60.0, 70.0, 89.0] + [90.0] * (DAYS - DRIFT_DAY - 3)
    rows = [
        DayRow("live", day + 1, score, 95.0 - (day > 9), 0.0, 0.0, 10)
        for day, score in enumerate(scores)
    ]
    (facts,) = summary(FortnightOptions(), rows)
    assert (facts["days_to_recover"], facts["lost_points"]) == (2, 1.0)
    assert "| days to recover | 2 |" in table(FortnightOptions(), rows)
