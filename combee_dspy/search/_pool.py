"""Validated candidates, and gepa's state of them."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gepa.core.callbacks import BudgetUpdatedEvent, ParetoFrontUpdatedEvent, ValsetEvaluatedEvent
from gepa.core.data_loader import ensure_loader
from gepa.gepa_utils import json_default
from gepa.logging.utils import log_detailed_metrics_after_discovering_new_program
from gepa.strategies.eval_policy import FullEvaluationPolicy

from combee_dspy._private import GEPAState, ValsetEvaluation, new_state
from combee_dspy.files import check_folder, make_folder, write_plain
from combee_dspy.operators import visible
from combee_dspy.records import Rollout
from combee_dspy.rollouts import output_of
from combee_dspy.search._candidates import Candidate, Compilation, Place, Row
from combee_dspy.search._effects import VALIDATION, Effects
from combee_dspy.search._gepa import GepaParts

__all__ = ["Member", "Pool", "Scores"]

Scores = Mapping[int, float]
"""Score by position in the validation set."""


@dataclass(frozen=True, slots=True)
class Member:
    """A validated candidate.

    Attributes:
        index: Its position in the pool, and in gepa's state.
        parents: Positions of its parents; empty for the seed.
        step: The update that made it; −1 for the seed.
    """

    index: int
    candidate: Candidate
    parents: tuple[int, ...]
    step: int
    scores: Scores

    @property
    def mean(self) -> float:
        """Mean validation score; NaN where nothing was validated."""
        return math.fsum(self.scores.values()) / len(self.scores) if self.scores else math.nan


class Pool:
    """The validated candidates of a run, in the order in which they joined.

    Attributes:
        validation: The validation rows.
        draws: Answers that one validation averages, for each row.
        log_dir: Where the best outputs are written, as gepa does.
        members: The candidates.
        notes: gepa's note of each iteration under way, by update; they stand in its
            ``full_program_trace``.
    """

    def __init__(self, task: Compilation, effects: Effects, parts: GepaParts) -> None:
        self._effects = effects
        self._parts = parts
        self.validation = task.splits.validation
        self._heldout = len(task.splits.heldout)
        self.loader = ensure_loader([row.example for row in self.validation])
        self.draws: int = task.settings.validation.draws
        self._track_best_outputs = task.settings.track_best_outputs
        self.log_dir: str | None = task.settings.log_dir
        # Train rows that are not in every candidate's validation, whose rollouts are not bought
        # again.
        self._unseen = sys.maxsize
        if task.settings.cache is not False and isinstance(parts.policy, FullEvaluationPolicy):
            rows = {row.hash for row in (*task.splits.train, *task.anchors)}
            self._unseen = len(rows - {row.hash for row in self.validation})
        self.members: list[Member] = []
        self.notes: dict[int, dict[str, Any]] = {}
        self._state: GEPAState | None = None

    @property
    def state(self) -> GEPAState:
        """Gepa's state; there is one once the seed has joined."""
        if self._state is None:
            raise RuntimeError("gepa's state was asked for before the seed was validated")
        return self._state

    @property
    def started(self) -> bool:
        """Whether the seed has joined."""
        return self._state is not None

    def iteration(self, step: int) -> int:
        """Return the number of an update's iteration; of the newest one where it has none."""
        return int(self.notes.get(step, {"i": self.state.i})["i"]) + 1

    @property
    def size(self) -> int:
        """Rollouts that one validation takes at most."""
        return len(self.validation) * self.draws

    def beside_validation(self, size: int) -> int:
        """Return the rollouts that a candidate takes at most on so many train rows, beside those of
        its validation.
        """
        return min(size, self._unseen)

    @property
    def best(self) -> Member:
        """The best candidate by gepa's validation policy."""
        return self.members[self._parts.policy.get_best_program(self.state)]

    @property
    def front(self) -> tuple[int, ...]:
        """Positions of the candidates on gepa's front, ascending."""
        return tuple(sorted(_on_front(self.state)))

    @property
    def history(self) -> tuple[tuple[int, float], ...]:
        """``(update, mean validation score)`` of every member, in order."""
        return tuple((one.step, one.mean) for one in self.members)

    def rows_to_validate(self) -> tuple[Row, ...]:
        """Return the rows that the next candidate is to run on."""
        if self._state is None:
            seed_batch = getattr(self._parts.policy, "get_seed_eval_batch", None)
            ids = list(self.loader.all_ids() if seed_batch is None else seed_batch(self.loader))
        else:
            ids = list(self._parts.policy.get_eval_batch(self.loader, self._state))
        return tuple(self.validation[index] for index in ids)

    async def validate(
        self,
        candidate: Candidate,
        rows: Sequence[Row],
        step: int,
        *,
        purpose: str = "validation",
        first: int = 0,
    ) -> dict[int, tuple[Rollout, ...]]:
        """Run a candidate that update ``step`` made on validation rows; return its draws by row.

        The purpose is ``"validation"`` or ``"final"``, and ``first`` the number of the first draw.
        """
        place, buy = (
            Place(purpose, step),
            partial(self._effects.rollout, candidate, lane=VALIDATION),
        )
        draws = range(first, first + self.draws)
        rollouts = await asyncio.gather(
            *(buy(row, place, replicate=draw) for row in rows for draw in draws)
        )
        if step < 0 and purpose == "validation":
            self._keep_time(rollouts)
        found = iter(rollouts)
        return {row.index: tuple(itertools.islice(found, self.draws)) for row in rows}

    def _keep_time(self, rollouts: Sequence[Rollout]) -> None:
        """Keep time for the held-out set, by what the student's rollouts have taken."""
        if heldout := 2 * self._heldout:  # the student and the result run on each row
            seconds = math.fsum(one.seconds for one in rollouts) / len(rollouts)
            rounds = math.ceil(heldout / self._effects.slots.capacity)
            self._effects.purse.keep_back(seconds * rounds)

    def join(
        self,
        candidate: Candidate,
        parents: Sequence[int],
        step: int,
        rollouts: Mapping[int, Sequence[Rollout]],
    ) -> Member:
        """Take a candidate in that update ``step`` made, with its validation; the seed has no
        parents.
        """
        scores = {
            index: math.fsum(one.score for one in drawn) / len(drawn)
            for index, drawn in rollouts.items()
        }
        evaluation = ValsetEvaluation(
            outputs_by_val_id={index: output_of(drawn[0]) for index, drawn in rollouts.items()},
            scores_by_val_id=scores,
            objective_scores_by_val_id=_objectives(rollouts),
        )
        index = len(self.members)
        if self._state is None:
            self._state = new_state(
                candidate.texts,
                evaluation,
                list(visible(candidate.texts)),
                track_best_outputs=self._track_best_outputs,
                frontier_type=self._parts.frontier_type,
            )
        else:
            self._extend(candidate, parents, step, evaluation)
        member = Member(index, candidate, tuple(parents), step, scores)
        self.members.append(member)
        if parents:
            self._write_best_outputs(index)
        data = {
            "candidate": candidate.id,
            "index": index,
            "score": member.mean if scores else None,
            "rows": len(scores),
            "best": self.best.index == index,
        }
        self._effects.log.emit("validated", data, step=step)
        self._tell(member, evaluation)
        return member

    def _extend(
        self, candidate: Candidate, parents: Sequence[int], step: int, evaluation: ValsetEvaluation
    ) -> None:
        state, calls = self.state, len(evaluation.scores_by_val_id)
        discovered = state.total_num_evals
        state.increment_evals(calls)
        state.num_full_ds_evals += 1
        before = _on_front(state)
        index = state.update_state_with_new_program(
            parent_program_idx=list(parents),
            new_program=dict(candidate.texts),
            valset_evaluation=evaluation,
            run_dir=None,
            num_metric_calls_by_discovery_of_new_program=discovered,
        )
        after = _on_front(state)
        event = ParetoFrontUpdatedEvent(
            iteration=self.iteration(step),
            new_front=sorted(after),
            displaced_candidates=sorted(before - after),
        )
        self._parts.notify("on_pareto_front_updated", event)
        if (note := self.notes.get(step)) is not None:
            note["new_program_idx"] = index
            note.setdefault("new_program_indices", []).append(index)
            note["evaluated_val_indices"] = sorted(evaluation.scores_by_val_id)

    def _write_best_outputs(self, index: int) -> None:
        """Write the outputs that are now the best, where gepa would: it would follow links
        there.
        """
        if self.log_dir is None or self.state.best_outputs_valset is None:
            return
        outputs = Path(self.log_dir, "generated_best_outputs_valset")
        for row, best in self.state.best_outputs_valset.items():
            if not best or best[0][0] != index:
                continue
            folder = outputs / f"task_{row}"
            check_folder(outputs)
            check_folder(folder)
            make_folder(folder)
            text = json.dumps(best[0][1], indent=4, default=json_default)
            write_plain(folder / f"iter_{self.state.i + 1}_prog_{index}.json", text)

    def _tell(self, member: Member, evaluation: ValsetEvaluation) -> None:
        state = self.state
        event = ValsetEvaluatedEvent(
            iteration=self.iteration(member.step),
            candidate_idx=member.index,
            candidate=dict(member.candidate.texts),
            scores_by_val_id=dict(member.scores),
            average_score=self._parts.policy.get_valset_score(member.index, state),
            num_examples_evaluated=len(member.scores),
            total_valset_size=len(self.validation),
            parent_ids=list(member.parents),
            is_best_program=self.best.index == member.index,
            outputs_by_val_id=dict(evaluation.outputs_by_val_id) if member.parents else None,
        )
        self._parts.notify("on_valset_evaluated", event)
        if not member.index:
            state.add_budget_hook(self._budget_moved)
        if member.parents:
            # What gepa logs there stands in the journal.
            log_detailed_metrics_after_discovering_new_program(
                logger=SimpleNamespace(log=lambda _: None),
                gepa_state=state,
                new_program_idx=member.index,
                valset_evaluation=evaluation,
                objective_scores=state.prog_candidate_objective_scores[member.index],
                experiment_tracker=self._parts.experiment,
                linear_pareto_front_program_idx=self.best.index,
                valset_size=len(self.validation),
                val_evaluation_policy=self._parts.policy,
            )

    def _budget_moved(self, total: int, more: int) -> None:
        most = self._effects.purse.limits.rollouts
        event = BudgetUpdatedEvent(
            iteration=self.state.i + 1,
            metric_calls_used=total,
            metric_calls_delta=more,
            metric_calls_remaining=None if most is None else max(0, most - total),
        )
        self._parts.notify("on_budget_updated", event)


def _on_front(state: GEPAState) -> set[int]:
    return {index for front in state.get_pareto_front_mapping().values() for index in front}


def _objectives(rollouts: Mapping[int, Sequence[Rollout]]) -> dict[int, dict[str, float]] | None:
    """Return scores by objective and row, where the metric names objectives."""
    if not any(one.objective_scores for drawn in rollouts.values() for one in drawn):
        return None
    return {
        index: {
            name: math.fsum(one.objective_scores.get(name, 0.0) for one in drawn) / len(drawn)
            for name in dict.fromkeys(name for one in drawn for name in one.objective_scores)
        }
        for index, drawn in rollouts.items()
    }
