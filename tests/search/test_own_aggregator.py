"""An aggregator of one's own decides what is learned, whatever the artifact; the report and MLflow
name it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import dspy
import pytest

from combee_dspy import Budget, Combee, Search
from combee_dspy.aggregators import Aggregator, gathered
from combee_dspy.edits import Retire
from combee_dspy.lessons import lesson_id
from combee_dspy.records import Lesson, Lessons, NodeOutput, Reflection
from combee_dspy.strategies import StrategyContext
from combee_dspy.tracking._params import params
from tests.worlds import events, gate_metric, gate_rows, rows

DOUBTFUL = "Doubtful: [G9] asks for nothing."


class Signed(Aggregator):
    """Writes what each reflection says under its own name, by code. It adds a lesson to each
    minibatch, and takes it out again by an edit.
    """

    name: ClassVar[str] = "signed"

    async def aggregate(
        self, reflections: Sequence[Awaitable[Reflection | None]], context: StrategyContext
    ) -> Lessons:
        read = await gathered(reflections)
        if not read:
            return Lessons(context.component)
        # What the metric says of a right answer teaches nothing.
        feedback = {
            each.index: str(each.record["Feedback"]).removeprefix("Wrong. ") for each in read
        }
        lessons = tuple(
            Lesson(f"{text} Signed.", (index,))
            for index, text in feedback.items()
            if text != "Right."
        )
        lessons = (*lessons, Lesson(f"{DOUBTFUL} Signed.", tuple(feedback)))
        node = NodeOutput(1, 0, tuple(feedback), tuple(lesson.text for lesson in lessons))
        edits = (Retire(lesson_id(lessons[-1].text), "nobody vouches for it"),)
        return Lessons(context.component, lessons, nodes=(node,), edits=edits)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"search": Search(keep="pareto")},
        {"artifact": "playbook"},
        {"artifact": "memory"},
        {"artifact": "skill"},
    ],
    ids=str,
)
def test_its_aggregate_is_what_decides_and_what_is_named(
    service: Any, tmp_path: Path, options: dict[str, Any]
) -> None:
    combee = Combee(
        gate_metric,
        aggregator=Signed(),
        reflection_lm=service.lm(),
        log_dir=tmp_path,
        tracker=(),
        num_threads=8,
        reflection_minibatch_size=6,
        budget=Budget(epochs=1),
        **options,
    )
    with dspy.context(lm=service.lm()):
        program = combee.compile(
            dspy.Predict("question -> answer"), trainset=gate_rows(0, 24), valset=gate_rows(30, 42)
        )
    report = program.combee_report
    assert report.best_score > report.seed_score
    learned = [line for text in report.texts.values() for line in text.splitlines() if "[G" in line]
    assert learned
    assert all(line.endswith("Signed.") for line in learned)
    assert not any(DOUBTFUL in text for text in report.texts.values())
    assert DOUBTFUL in json.dumps(events(tmp_path, "book")[-1]), "it stays in the book"
    roles = {
        row["role"]
        for row in rows(tmp_path, "SELECT DISTINCT role FROM effect WHERE kind = 'call'")
    }
    assert roles == ({"reflector"} if options.get("artifact") == "playbook" else set()), (
        "nobody else reads or writes"
    )
    assert report.specs["aggregator"]["name"] == "signed"
    assert {scan["aggregator"] for scan in events(tmp_path, "scan")} == {"signed"}
    (run,) = rows(tmp_path, "SELECT * FROM run")
    decided = params(run["name"], run["seed"], json.loads(run["description"]))
    assert "signed" in decided["aggregator"]
