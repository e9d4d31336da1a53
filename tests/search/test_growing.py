"""A growing text: its lines are tested, and a run ends when nothing is left to learn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from combee_dspy import Budget, Search
from combee_dspy.aggregators import Aggregator, gathered
from combee_dspy.edits import BookEdit, Retire
from combee_dspy.lessons import lesson_id
from combee_dspy.records import Lesson, Lessons
from combee_dspy.search._candidates import Row
from combee_dspy.search._row_scores import RowScores
from tests.worlds import World, animal_of, events, in_kind, rows, task_answer


class Spoils(Aggregator):
    """Teaches a good line until an update, and then one that spoils every answer."""

    name = "spoils"

    def __init__(self, update: int = 0) -> None:
        self.update = update

    async def aggregate(self, reflections: Any, context: Any) -> Lessons:
        read = await gathered(reflections)
        text = (
            "Be exact with animals" if context.update < self.update else "Never answer a question"
        )
        return Lessons(context.component, (Lesson(text, tuple(one.index for one in read)),))


class Late(Aggregator):
    """Teaches a line an update, and finds when it compares lines that the new one is empty."""

    name = "late"

    async def aggregate(self, reflections: Any, context: Any) -> Lessons:
        read = await gathered(reflections)
        text = f"Rule {context.update} holds"
        return Lessons(context.component, (Lesson(text, tuple(one.index for one in read)),))

    async def relate(self, fresh: Sequence[str], context: Any) -> tuple[BookEdit, ...]:
        assert {lesson.text for lesson in context.book.lessons} >= set(fresh)
        return tuple(Retire(lesson_id(text), "empty") for text in fresh)


def test_a_text_knows_of_comparisons_by_the_number_of_its_update(tmp_path: Path) -> None:
    World.made().compile(
        aggregator=Late(),
        search=Search(keep="trunk", staleness=1),
        reflection_minibatch_size=6,
        budget=Budget(epochs=1),
        log_dir=tmp_path,
        skip_perfect_score=False,
    )
    texts = {
        one["step"]: one["texts"]["self"]
        for one in events(tmp_path, "candidate")
        if one["operator"] != "test"
    }
    rules = {
        step: [rule for rule in range(4) if f"Rule {rule}" in text]
        for step, text in texts.items()
        if step >= 0
    }
    assert rules == {0: [0], 1: [0, 1], 2: [1, 2], 3: [2, 3]}
    book = events(tmp_path, "book")[-1]["lessons"]
    assert [lesson["state"] for lesson in book] == 4 * ["retired"], "the end knows of all"


def spoilt(request: Any) -> str:
    if "Never answer" in request.system:
        return in_kind(request, {"answer": "no"})
    return task_answer(request)


def test_lines_are_tested_however_long_ago_the_last_validation_was(tmp_path: Path) -> None:
    report = (
        World.made(spoilt)
        .compile(
            aggregator=Spoils(22),
            search=Search(keep="trunk", staleness=0),
            reflection_minibatch_size=1,
            train=24,
            validation=40,
            budget=Budget(updates=32),
            log_dir=tmp_path,
            skip_perfect_score=False,
        )
        .combee_report
    )
    assert report.updates == 32
    assert "Never answer" not in str(report.texts)


def learned(**right: bool) -> Any:
    rows = [Row("train", int(name[1:]), None, name) for name in right]  # type: ignore[arg-type]  # only its place
    rollouts = [SimpleNamespace(score=float(is_right)) for is_right in right.values()]
    return SimpleNamespace(plan=SimpleNamespace(rows=rows), rollouts=rollouts)


def test_rows_are_right_by_what_ran_last() -> None:
    scores = RowScores(1.0)
    for update in (
        learned(r0=False, r1=False, r2=True),
        learned(r0=True, r3=False),
        learned(r1=False, r3=True),
    ):
        scores.end(update)
    assert not scores.are_right(2, 4)
    scores.end(learned(r1=True))
    assert not scores.are_right(2, 4), "what a later update ran is not known yet"
    assert scores.are_right(3, 4)
    assert not scores.are_right(3, 5), "a row was never seen"


def test_a_run_ends_once_every_training_row_is_right(tmp_path: Path) -> None:
    report = (
        World.made()
        .compile(
            search=Search(keep="trunk"),
            reflection_minibatch_size=6,
            train=24,
            validation=6,
            log_dir=tmp_path,
            max_metric_calls=300,
        )
        .combee_report
    )
    assert (
        report.reason
        == "A full pass found nothing new to learn: every training row was right when it ran last"
    )
    ran = rows(tmp_path, "SELECT example, score FROM effect WHERE purpose = 'train' ORDER BY step")
    latest = {row["example"]: row["score"] for row in ran}
    assert list(latest.values()) == [1.0] * 24
    assert len(ran) < 3 * 24, "no row that is right runs again for nothing"


def test_rows_that_nothing_teaches_do_not_keep_a_run_busy(tmp_path: Path) -> None:
    def hopeless(request: Any) -> str:
        return (
            in_kind(request, {"answer": "unknown"})
            if "ant" in animal_of(request.last)
            else task_answer(request)
        )

    report = (
        World.made(hopeless)
        .compile(
            search=Search(keep="trunk"),
            reflection_minibatch_size=6,
            train=24,
            validation=6,
            log_dir=tmp_path,
            max_metric_calls=1000,
        )
        .combee_report
    )
    assert (
        report.reason
        == "A full pass found nothing new to learn: no new text came of the rows that fail"
    )
    assert report.rollouts < 150


@pytest.mark.parametrize("budget", [24, 40])
def test_a_small_budget_still_learns(budget: int) -> None:
    report = (
        World.made()
        .compile(
            search=Search(keep="trunk"),
            train=12,
            validation=6,
            reflection_minibatch_size=4,
            max_metric_calls=budget,
        )
        .combee_report
    )
    assert report.updates >= 1, "what is set aside to test lines leaves room for an update"
    assert report.best_score > report.seed_score
