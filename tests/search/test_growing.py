"""A growing text: rows that fail come first, and a run ends when nothing is left to learn."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from combee_dspy import Budget, Search, Validation
from combee_dspy.aggregators import Aggregator, gathered
from combee_dspy.records import Lesson, Lessons
from combee_dspy.search._batches import Batches
from combee_dspy.search._candidates import Row
from combee_dspy.search._row_scores import RowScores
from tests.worlds import World, animal_of, examples, in_kind, rows, task_answer


class Spoils(Aggregator):
    """Teaches a good line until an update, and then one that spoils every answer."""

    name = "spoils"

    def __init__(self, update: int = 0) -> None:
        self.update = update

    async def aggregate(self, reflections: Any, context: Any) -> Lessons:
        read = await gathered(reflections)
        text = "Be exact with animals" if context.update < self.update else "Never answer a question"
        return Lessons(context.component, (Lesson(text, tuple(one.index for one in read)),))


def spoilt(request: Any) -> str:
    if "Never answer" in request.system:
        return in_kind(request, {"answer": "no"})
    return task_answer(request)


def test_lines_are_tested_however_long_ago_the_last_validation_was(tmp_path: Path) -> None:
    report = World.made(spoilt).compile(
        aggregator=Spoils(22), search=Search(keep="trunk", staleness=0), reflection_minibatch_size=1, train=24,
        validation=40, budget=Budget(updates=32), log_dir=tmp_path, skip_perfect_score=False,
    ).combee_report  # fmt: skip
    assert report.updates == 32
    assert "Never answer" not in str(report.texts)


READ: dict[int, dict[str, bool]] = {}


class Slow(Aggregator):
    """Teaches one rule an update, so that rows go on to fail; notes which rows it read, and whether they were right."""

    name = "slow"

    async def aggregate(self, reflections: Any, context: Any) -> Lessons:
        read = await gathered(reflections)
        READ[context.update] = {one.example_id: one.perfect for one in read}
        rules = sorted({rule for one in read for rule in re.findall(r"the word for \w+ is \w+", str(one.record))})
        new = [rule for rule in rules if rule not in context.text][:1]
        return Lessons(context.component, tuple(Lesson(rule, tuple(one.index for one in read)) for rule in new))


@pytest.mark.parametrize("staleness", [0, 1])
def test_rows_that_fail_come_first_once_every_row_was_seen(staleness: int) -> None:
    READ.clear()
    World.made().compile(
        aggregator=Slow(), search=Search(keep="trunk", staleness=staleness), reflection_minibatch_size=6, train=12,
        validation=6, budget=Budget(updates=3), validation_options=Validation(probe=False),
    )  # fmt: skip
    assert len({*READ[0], *READ[1]}) == 12, "the first epoch has each row once"
    known = {row: right for update in range(2 - staleness) for row, right in READ[update].items()}
    failing = {row for row, right in known.items() if not right}
    assert len(failing) > 3
    assert len(failing & READ[2].keys()) >= 3, "half of the minibatch is for rows that are known to fail"


def batches(size: int) -> Batches:
    train = tuple(Row("train", index, example, str(index)) for index, example in enumerate(examples(size)))
    task = SimpleNamespace(
        splits=SimpleNamespace(train=train),
        limits=SimpleNamespace(epochs=None),
        settings=SimpleNamespace(seed=0),
        anchors=(),
    )
    return Batches(task, None)  # type: ignore[arg-type]  # all that it reads of a task


def test_half_of_a_minibatch_is_for_rows_that_fail() -> None:
    drawing = batches(12)

    def draw(size: int, failing: list[int]) -> list[int]:
        return [row.index for row in drawing.draw(size, lambda: None, failing)]

    first = [*draw(6, []), *draw(6, [0, 1, 2, 3])]
    assert sorted(first) == list(range(12)), "rows never seen come before rows that fail"
    rows = draw(6, [7, 2, 5, 9, 1])
    assert len(set(rows)) == 6
    assert len({7, 2, 5} & set(rows)) == 3
    rows = draw(4, [7])
    assert len(set(rows)) == 4, "what no failing row takes goes on with the epoch"
    assert 7 in rows
    assert len(set(draw(2, []))) == 2


def learned(**right: bool) -> Any:
    rows = [Row("train", int(name[1:]), None, name) for name in right]  # type: ignore[arg-type]  # only its place
    rollouts = [SimpleNamespace(score=float(is_right)) for is_right in right.values()]
    return SimpleNamespace(plan=SimpleNamespace(rows=rows), rollouts=rollouts)


def test_what_an_update_knows_of_rows_is_what_earlier_updates_ran() -> None:
    scores = RowScores(1.0)
    for update in (learned(r0=False, r1=False, r2=True), learned(r0=True, r3=False), learned(r1=False, r3=True)):
        scores.begin(update.plan.rows)
        scores.end(update)
    assert scores.failing(-1) == []
    assert scores.failing(0) == [], "updates 1 and 2 run both rows that failed, and will tell"
    assert scores.failing(2) == [1]
    assert not scores.are_right(2, 4)
    scores.begin(learned(r1=True).plan.rows)
    scores.end(learned(r1=True))
    assert scores.are_right(3, 4)
    assert not scores.are_right(3, 5), "a row was never seen"


def test_a_row_that_readings_do_not_teach_is_no_longer_preferred() -> None:
    scores = RowScores(1.0)
    for update in range(4):
        assert scores.failing(update - 1) == ([0] if update else [])
        scores.begin(learned(r0=False).plan.rows)
        scores.end(learned(r0=False))
    assert scores.failing(3) == []


def test_a_run_ends_once_every_training_row_is_right(tmp_path: Path) -> None:
    report = World.made().compile(
        search=Search(keep="trunk"), reflection_minibatch_size=6, train=24, validation=6, log_dir=tmp_path,
        max_metric_calls=300,
    ).combee_report  # fmt: skip
    assert report.reason == "A full pass found nothing new to learn: every training row was right when it ran last"
    ran = rows(tmp_path, "SELECT example, score FROM effect WHERE purpose = 'train' ORDER BY step")
    latest = {row["example"]: row["score"] for row in ran}
    assert list(latest.values()) == [1.0] * 24
    assert len(ran) < 3 * 24, "no row that is right runs again for nothing"


def test_rows_that_nothing_teaches_do_not_keep_a_run_busy(tmp_path: Path) -> None:
    def hopeless(request: Any) -> str:
        return in_kind(request, {"answer": "unknown"}) if "ant" in animal_of(request.last) else task_answer(request)

    report = World.made(hopeless).compile(
        search=Search(keep="trunk"), reflection_minibatch_size=6, train=24, validation=6, log_dir=tmp_path,
        max_metric_calls=1000,
    ).combee_report  # fmt: skip
    assert report.reason == "A full pass found nothing new to learn: no new text came of the rows that fail"
    assert report.rollouts < 150
