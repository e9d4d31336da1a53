"""What an iteration starts with: the front, the operators' weights, the temperature, a fresh start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from combee_dspy.diversity import IterationView, TemperatureSchedule
from combee_dspy.engine.candidates import candidate_id
from combee_dspy.engine.settings import Settings
from combee_dspy.engine.state import RunState
from combee_dspy.events import DiversityMeasured, Event, OperatorsWeighted, Restarted
from combee_dspy.operators import draw_operators, operator_weights
from combee_dspy.streams import derive

__all__ = ["Steering"]


def _temperature(schedule: TemperatureSchedule, iteration: int, stale: int, draw: int) -> float | None:
    # A draw after a refusal is as hot as if one more iteration had brought nothing.
    return schedule.temperature(iteration, stale + draw)


class Steering:
    """Decides, at the start of each iteration, how its children will be made.

    Reads validation scores only. Owned by the thread that runs gepa's loop.

    Args:
        settings: The run's settings.
        state: The run's state.
        children: Children made of each minibatch; 0 where a proposer of DSPy's makes them.
        front_similarity: How alike some candidates are, 0 to 1; ``None`` below two.
        emit: Where events go.
    """

    def __init__(
        self,
        settings: Settings,
        state: RunState,
        children: int,
        front_similarity: Callable[[Sequence[dict[str, str]]], float | None],
        emit: Callable[[Event], None],
    ) -> None:
        self._settings = settings
        self._state = state
        self._children = children
        self._front_similarity = front_similarity
        self._emit = emit

    def begin(self, state: Any) -> bool:
        """Prepare an iteration, and return whether its children start from the seed's text.

        Args:
            state: gepa's state.
        """
        run = self._state
        run.iteration = state.i + 1
        if not self._children:
            return False
        diversity = self._settings.diversity
        self._read_pool(state)
        self._weigh()
        similarity = self._front_similarity(run.front[: diversity.top_k])
        if run.iteration > 1:
            best = max(state.program_full_scores_val_set)
            run.views.append(IterationView(run.iteration - 1, best, similarity, run.restarted))
        if diversity.temperature is not None:
            stale = self._stale(state.program_full_scores_val_set[0])
            run.temperature_of = partial(_temperature, diversity.temperature, run.iteration, stale)
            run.stale = stale
        self._emit(
            DiversityMeasured(
                iteration=run.iteration,
                front_similarity=similarity,
                refused=run.drawn.refused,
                repeated=run.drawn.repeated,
                distinct=run.drawn.distinct,
                temperature=run.temperature_of(0),
            )
        )
        reason = diversity.restart.decide(run.views) if diversity.restart is not None else None
        run.restarted = reason is not None
        if reason is not None:
            self._emit(Restarted(iteration=run.iteration, reason=reason))
        return run.restarted

    def operators(self, task: int) -> list[int]:
        """Return the operators that make the children of one minibatch, by position.

        Args:
            task: Position of the minibatch in the iteration.
        """
        count = len(self._settings.operators)
        if self._children >= count:
            return list(range(count)) if self._children else []
        if not self._children:
            return []
        stream = derive(self._settings.seed, "operators", self._state.iteration, task)
        drawn = draw_operators(self._state.weights, self._children, stream)
        return sorted(self._state.labels.index(label) for label in drawn)

    def _read_pool(self, state: Any) -> None:
        """Read the front off gepa's pool: a resumed run has no other memory of it."""
        scores = list(state.program_full_scores_val_set)
        pool = [dict(candidate) for candidate in state.program_candidates]
        for candidate, score in zip(pool, scores, strict=True):
            self._state.scores.setdefault(candidate_id(candidate), score)
        order = sorted(range(len(pool)), key=lambda index: (-scores[index], index))
        self._state.front = [pool[index] for index in order[: self._settings.diversity.top_k]]

    def _weigh(self) -> None:
        run = self._state
        before = dict(run.weights)
        run.weights = dict(operator_weights(run.outcomes, run.labels, iteration=run.iteration))
        if run.weights != before and len(run.labels) > 1:
            even = len(set(run.weights.values())) == 1
            reason = "uniform" if even else f"validation lift of {len(run.outcomes)} children"
            self._emit(OperatorsWeighted(iteration=run.iteration, weights=dict(run.weights), reason=reason))

    def _stale(self, seed_score: float) -> int:
        """Return how many iterations have gone by without a better validation score."""
        best = [seed_score, *(view.best_score for view in self._state.views)]
        return len(best) - 1 - best.index(max(best))
