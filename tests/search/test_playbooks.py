"""Playbooks in whole runs: a trunk of bullets that curators edit while rollouts go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Combee, Search
from combee_dspy.artifacts import Playbook
from tests.worlds import events, gate_metric, gate_rows, rows


def compiled(service: Any, place: Path, **kwargs: Any) -> Any:
    arguments = {"artifact": "playbook", "reflection_minibatch_size": 6, **kwargs}
    combee = Combee(
        gate_metric,
        reflection_lm=service.lm(),
        log_dir=place,
        tracker=(),
        num_threads=8,
        **arguments,
    )
    with dspy.context(lm=service.lm()):
        return combee.compile(
            dspy.Predict("question -> answer"),
            trainset=gate_rows(0, 24),
            valset=gate_rows(30, 42),
            heldout=gate_rows(60, 84),
        )


@pytest.mark.parametrize("staleness", [0, 2])
def test_it_learns_and_needs_no_budget(service: Any, tmp_path: Path, staleness: int) -> None:
    program = compiled(service, tmp_path, search=Search(staleness=staleness))
    report = program.combee_report
    assert report.reason == "1 epoch is done", (
        "it reads its trainset once, unless it is told otherwise"
    )
    assert report.heldout.after - report.heldout.before > 0.3
    text = report.texts["playbook"]
    assert sum(f"[G{number}]" in text for number in range(6)) >= 5
    assert set(report.texts) == {"playbook"}
    roles = {
        row["role"]
        for row in rows(tmp_path, "SELECT DISTINCT role FROM effect WHERE kind = 'call'")
    }
    assert roles == {"reflector", "proposer"}
    assert {event["operator"] for event in events(tmp_path, "candidate")} == {"seed", "playbook"}


def test_each_trajectory_is_reflected_on_once_and_perfect_minibatches_cost_nothing(
    service: Any, tmp_path: Path
) -> None:
    compiled(service, tmp_path, budget=Budget(epochs=2))
    learned = {
        event["step"]: event["rows"] for event in events(tmp_path, "update") if not event["skipped"]
    }
    reflected = rows(
        tmp_path, "SELECT step, count(*) AS n FROM effect WHERE role = 'reflector' GROUP BY step"
    )
    assert {row["step"]: row["n"] for row in reflected} == learned
    skipped = [event for event in events(tmp_path, "update") if event["skipped"]]
    assert skipped, "by the second epoch it has learned what there is"
    (calls,) = rows(
        tmp_path,
        "SELECT count(*) AS n FROM effect WHERE kind = 'call' AND step = ?",
        skipped[0]["step"],
    )
    assert calls["n"] == 0


def test_its_parameters_are_kept(service: Any, tmp_path: Path) -> None:
    small = Playbook(max_tokens=64, sections=("RULES",))
    program = compiled(service, tmp_path, artifact=small, aggregator="parallel-scan")
    assert "RULES" in program.combee_report.texts["playbook"]
    assert program.combee_report.specs["artifact"]["name"] == "playbook"
