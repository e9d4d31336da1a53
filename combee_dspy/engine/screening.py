"""Children run on a few of their parent's examples before their validation is paid for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from gepa.strategies.acceptance import StrictImprovementAcceptance

from combee_dspy.engine.candidates import Candidate, candidate_id
from combee_dspy.engine.state import Proposed
from combee_dspy.evaluation import sign_test
from combee_dspy.events import CandidateScreened, Event
from combee_dspy.records import Rollout
from combee_dspy.streams import derive

__all__ = ["NonInferior", "ScreenPlan", "Screening", "verdict"]

# With 8 examples: 2 losses without a win, or 4 with one, are refused.
_REFUSED_AT = 0.25


@dataclass(frozen=True, slots=True)
class ScreenPlan:
    """Which examples of its minibatch a child runs on, and what stands in for the others.

    Attributes:
        candidate_id: The child's content hash.
        parent_id: The parent's.
        positions: Places in the minibatch, ascending.
        parent: The parent's rollouts on the whole minibatch.
        floor: The least score that there is, as far as is known; minus infinity where nothing is.
    """

    candidate_id: str
    parent_id: str
    positions: tuple[int, ...]
    parent: tuple[Rollout, ...]
    floor: float = -math.inf

    def filled(self, rollouts: Sequence[Rollout]) -> tuple[Rollout, ...]:
        """Return one rollout per example: the child's own, the parent's elsewhere.

        gepa compares sums over the minibatch: what is the parent's on both sides cancels.
        """
        own = dict(zip(self.positions, rollouts, strict=True))
        return tuple(own.get(place, rollout) for place, rollout in enumerate(self.parent))

    def surely_passes(self, scores: Sequence[float | None]) -> bool:
        """Return whether the child passes whatever its missing scores will be.

        Where the parent has the least score that there is, a missing one is a tie at worst, and a loss elsewhere.

        Args:
            scores: Its scores on the screen's examples; ``None`` where there is none yet.
        """
        before = [self.parent[place].score for place in self.positions]
        held = all(score is None or score >= self.floor for score in scores)
        worst = [
            (old if held and old <= self.floor else math.nan) if score is None else score
            for old, score in zip(before, scores, strict=True)
        ]
        return verdict(before, worst)[0]


class Screening:
    """Plans and judges the screens of a run. Owned by the thread that runs gepa's loop.

    All children of a parent and minibatch run on the same examples, drawn by the seed, the
    iteration and the minibatch; anchors are always among them.

    A child goes on to its validation unless the screen shows it to be worse: unless a sign test of the
    paired scores has p at or below ``_REFUSED_AT``. Validation decides what is better; a screen of a few
    examples that asked for an improvement would refuse half of the children that are.

    Args:
        seed: The run's seed.
        size: Examples of a screen.
        anchors: Row hashes of examples that every child must run on.
        proposed: Returns the children of this iteration, by content hash.
        emit: Where events go.
        floor: The score of a rollout that failed: the least there is, as long as nothing is seen that scores lower.

    Attributes:
        gains: What each child of this iteration gained on its screen on average, by content hash.
    """

    def __init__(
        self,
        seed: int,
        size: int,
        anchors: frozenset[str],
        proposed: Callable[[], Mapping[str, Proposed]],
        emit: Callable[[Event], None],
        floor: float = -math.inf,
    ) -> None:
        self._floor = floor
        self._seed = seed
        self._size = size
        self._anchors = anchors
        self._proposed = proposed
        self._emit = emit
        self._iteration = 0
        self._parents: dict[tuple[str, tuple[str, ...]], tuple[int, tuple[Rollout, ...]]] = {}
        self.gains: dict[str, float] = {}

    def begin(self, iteration: int) -> None:
        """Forget the iteration before."""
        self._iteration = iteration
        self._parents.clear()
        self.gains.clear()

    def remember(self, number: int, parent: Candidate, rollouts: tuple[Rollout, ...]) -> None:
        """Keep a parent's rollouts on its minibatch.

        Args:
            number: Position of the minibatch in the iteration.
            parent: The parent.
            rollouts: In minibatch order.
        """
        self._look([rollout.score for rollout in rollouts])
        rows = tuple(rollout.example_id for rollout in rollouts)
        self._parents[candidate_id(parent), rows] = (number, rollouts)

    def judge(self, plan: ScreenPlan, rollouts: Sequence[Rollout]) -> bool:
        """Note and tell how a child did on its screen; return whether it may go on.

        Args:
            plan: Its screen.
            rollouts: Its own, on the screen's examples.
        """
        before = [plan.parent[place].score for place in plan.positions]
        after = [rollout.score for rollout in rollouts]
        self._look(after)
        passed, reason = verdict(before, after)
        score, against = fmean(after), fmean(before)
        self.gains[plan.candidate_id] = score - against
        self._emit(
            CandidateScreened(
                iteration=self._iteration,
                candidate_id=plan.candidate_id,
                against_id=plan.parent_id,
                size=len(after),
                score=score,
                against_score=against,
                passed=passed,
                reason=reason,
            )
        )
        return passed

    def _look(self, scores: Sequence[float]) -> None:
        if not all(score >= self._floor for score in scores):
            self._floor = -math.inf

    def plan(self, child: Candidate, batch: Sequence[Any], row_hash: Callable[[Any], str]) -> ScreenPlan | None:
        """Return a child's screen; ``None`` where it is to run on its whole minibatch.

        Args:
            child: The child.
            batch: Its minibatch.
            row_hash: An example's hash.
        """
        identity = candidate_id(child)
        proposed = self._proposed().get(identity)
        if proposed is None or len(batch) <= self._size:
            return None
        rows = tuple(row_hash(row) for row in batch)
        number, parent = self._parents.get((proposed.parent, rows), (0, ()))
        if not parent:
            return None
        stream = derive(self._seed, "screen", self._iteration, number)
        drawn = set(stream.sample(range(len(rows)), self._size))
        drawn |= {place for place, row in enumerate(rows) if row in self._anchors}
        return ScreenPlan(identity, proposed.parent, tuple(sorted(drawn)), parent, self._floor)


def verdict(before: Sequence[float], after: Sequence[float]) -> tuple[bool, str]:
    """Return whether a child may go on to its validation, and why.

    Args:
        before: The parent's scores.
        after: The child's, on the same examples.
    """
    wins, losses, chance = sign_test(before, after)
    said = f"{wins} wins and {losses} losses against its parent, p = {chance:.3g} by a one-sided sign test"
    if chance <= _REFUSED_AT:
        return False, f"it is worse: {said}, at or below {_REFUSED_AT}"
    return True, f"not shown to be worse: {said}"


class NonInferior:
    """gepa's acceptance criterion: what a screen does not show to be worse; elsewhere what is better.

    A child that ran on its whole minibatch must do better on it than its parent, as in ``dspy.GEPA``: there
    the minibatch is small beside the validation that would follow.

    Args:
        screening: Knows which children were screened.
    """

    def __init__(self, screening: Screening) -> None:
        self._screening = screening
        self._better = StrictImprovementAcceptance()

    def should_accept(self, proposal: Any, state: Any) -> bool:
        """Return whether the child is kept."""
        if candidate_id(proposal.candidate) not in self._screening.gains:
            return bool(self._better.should_accept(proposal, state))
        return self._verdict(proposal)[0]

    def reject_reason(self, proposal: Any, state: Any) -> str:
        """Return why it is not, in one sentence."""
        if candidate_id(proposal.candidate) not in self._screening.gains:
            before, after = sum(proposal.subsample_scores_before or ()), sum(proposal.subsample_scores_after or ())
            return f"its minibatch's score {after:g} is not above its parent's, {before:g}"
        return self._verdict(proposal)[1]

    def _verdict(self, proposal: Any) -> tuple[bool, str]:
        # What stands in for examples outside the screen is the parent's: ties, which say nothing.
        return verdict(proposal.subsample_scores_before or (), proposal.subsample_scores_after or ())
