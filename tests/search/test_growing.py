"""A growing text: rows that fail come first, and a run ends when nothing is left to learn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from combee_dspy import Budget, Search
from combee_dspy.aggregators import Aggregator, gathered
from combee_dspy.records import Lesson, Lessons
from tests.worlds import World, events, in_kind, task_answer


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
