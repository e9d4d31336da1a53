"""AppWorld's two headline scores: task and scenario goal completion."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from combee_dspy.benchmarks import Split
from combee_dspy.journal import Reader

__all__ = ["GoalCompletion", "completion", "goal_completion", "scenario_of"]


@dataclass(frozen=True, slots=True)
class GoalCompletion:
    """AppWorld's scores (arXiv 2407.18901, section 4).

    Attributes:
        task: Share of tasks whose requirements are all met, from 0 to 1.
        scenario: Share of scenarios all of whose tasks are complete, from 0 to 1.
        tasks: How many tasks there are.
        scenarios: How many scenarios.
    """

    task: float
    scenario: float
    tasks: int
    scenarios: int


def scenario_of(task_id: str) -> str:
    """Return the scenario of a task: its id without the last number."""
    return task_id.rpartition("_")[0]


def goal_completion(scores: Mapping[str, float]) -> GoalCompletion:
    """Return both scores.

    Args:
        scores: Task id to score. A scenario counts by those of its tasks that are here:
            give whole scenarios.
    """
    by_scenario: dict[str, list[bool]] = defaultdict(list)
    for task_id, score in scores.items():
        by_scenario[scenario_of(task_id)].append(score >= 1.0)
    tasks, scenarios = len(scores), len(by_scenario)
    return GoalCompletion(
        task=sum(sum(done) for done in by_scenario.values()) / tasks if tasks else 0.0,
        scenario=sum(all(done) for done in by_scenario.values()) / scenarios if scenarios else 0.0,
        tasks=tasks,
        scenarios=scenarios,
    )


def completion(journal: str, split: Split) -> dict[str, GoalCompletion]:
    """Return the scores of a run on a split: candidate to both, in the order in which candidates
    came.

    The last draw of a task counts.

    Args:
        journal: The run's journal, ``combee_report.journal``.
        split: One of the benchmark's.
    """
    tasks = {digest: example.task_id for digest, example in zip(split.example_ids, split.examples, strict=True)}
    wanted = "SELECT candidate, example, score FROM effect WHERE kind = 'rollout' AND split = ? ORDER BY id"
    scores: dict[str, dict[str, float]] = {}
    for row in Reader(Path(journal)).rows(wanted, (split.name,)):
        if row["example"] in tasks:
            scores.setdefault(row["candidate"], {})[tasks[row["example"]]] = row["score"]
    return {candidate: goal_completion(found) for candidate, found in scores.items()}
