"""AppWorld's two headline scores: task and scenario goal completion."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from combee_dspy.events import Event, RolloutFinished
from combee_dspy.tracking import Hook

__all__ = ["CompletionHook", "GoalCompletion", "goal_completion", "scenario_of"]


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


class CompletionHook(Hook):
    """Keeps the scores of a run by split and candidate, for :func:`goal_completion`.

    The last draw of a task counts.
    """

    def __init__(self) -> None:
        self._scores: dict[tuple[str, str], dict[str, float]] = {}

    def handle(self, event: Event) -> None:
        """Hear one event."""
        if isinstance(event, RolloutFinished):
            task_id = str(event.rollout.example.get("task_id", ""))
            if task_id:
                place = (event.split, event.candidate_id)
                self._scores.setdefault(place, {})[task_id] = event.rollout.score

    def completion(self, split: str = "heldout") -> dict[str, GoalCompletion]:
        """Return the scores on a split: candidate id to both, in the order in which candidates came."""
        return {
            candidate: goal_completion(scores) for (where, candidate), scores in self._scores.items() if where == split
        }
