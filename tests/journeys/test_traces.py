"""From logs to a better program: nothing is run to learn, and what decides is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dspy

from combee_dspy import Budget, Combee, Validation
from combee_dspy.traces import JsonLines
from tests.journeys.server import Asked, Server
from tests.worlds import ANIMALS, code_word, examples, metric, proposer_answer, rows, task_answer

FIELDS = {"inputs": ["question"], "outputs": {"answer": "reply"}, "expected": {"answer": "right"}}


def mind(asked: Asked) -> str:
    request: Any = asked
    return task_answer(request) if asked.model == "task" else proposer_answer(request)


def write_logs(path: Path, count: int) -> Path:
    lines = [
        {
            "question": f"Number {number}: word for {animal}?",
            "reply": "unknown",
            "right": code_word(animal),
        }
        for number, animal in ((n, ANIMALS[n % len(ANIMALS)]) for n in range(count))
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def test_logs_teach_and_rows_decide(tmp_path: Path) -> None:
    logs = JsonLines(str(write_logs(tmp_path / "logs.jsonl", 36)), FIELDS)
    student = dspy.Predict("question -> answer")
    with Server(mind) as server, dspy.context(lm=server.lm("task")):
        combee = Combee(
            metric,
            reflection_lm=server.lm("proposer"),
            budget=Budget(rollouts=60),
            validation=Validation(probe=False),
            tracker=(),
            log_dir=str(tmp_path / "run"),
        )
        program = combee.compile(
            student, traces=logs, valset=examples(6, 100), heldout=examples(6, 200)
        )
        report = program.combee_report
        bought = rows(tmp_path / "run", "SELECT purpose FROM effect WHERE kind = 'rollout'")
        assert server.answered["task"] == len(bought)
        assert "train" not in {row["purpose"] for row in bought}
        assert report.recorded == 36
        assert report.best_score == 1.0
        assert report.heldout.difference > 0.5
        assert all("held-out set of 6 rows" in text for text in report.warnings)
