"""How much may be begun early, as far as the budget and the share of guesses go."""

from __future__ import annotations

import math
from dataclasses import dataclass

from combee_dspy.engine.state import RunState

__all__ = ["Allowance", "speculation_room"]

# Updates that an epoch has at least where PowerLaw, at its defaults, picks the size.
_FEW_UPDATES = 4
# A third of a call over the share is no reason to let a minibatch, or its last read, wait.
_TOLERANCE = 1.005
# The room divides by what is left of the share up to 1.
_WIDEST = 0.99


@dataclass(frozen=True, slots=True)
class Allowance:
    """What a run may begin before it is asked for. It reads the run's state and changes nothing.

    Attributes:
        state: The run's state.
        share: The largest share of calls, rollouts and reads, that may be made on a guess and not be needed, in [0, 1).
        validation: Validation examples.
        screen: Examples that a child runs on before its validation.
        epoch: Training examples, N.
        limit: The budget in rollouts, if any.
        least: Rollouts of the smallest iteration.
        last: Training examples after which no iteration begins, if that is known.
    """

    state: RunState
    share: float
    validation: int
    screen: int
    epoch: int
    limit: int | None
    least: int
    last: float | None = None

    def over(self, drawn: int | None = None) -> bool:
        """Return whether what has been drawn is all that the run will draw.

        Args:
            drawn: Training examples; by default what has been drawn so far.
        """
        return self.last is not None and (self.state.cursor if drawn is None else drawn) >= self.last

    def affords_first(self) -> bool:
        """Return whether anything is left for a first iteration after the seed's validation."""
        return self.limit is None or self.limit > self.validation

    def affords_second(self, drawn: int, size: int) -> bool:
        """Return whether there will be a second iteration, before the first one.

        Args:
            drawn: Training examples of the first.
            size: Training examples of the second.
        """
        if self.over(drawn):
            return False
        return self.limit is None or self.limit >= self.validation + 2 * (self.least + size)

    def affords_another(self) -> bool:
        """Return whether the budget can pay for an iteration beyond this one."""
        if self.over():
            return False
        if self.limit is None:
            return True
        sizes = [decision.size for decision in self.state.decisions[-1:]]
        return self.limit - self.state.bought - self.state.wasted >= 2 * self.least + sum(sizes)

    def room(self, *, certain: int, guesses: int, reading: int, guessed_reads: int, screened: bool) -> int:
        """Return how many more calls, rollouts or reads, may be started on a guess.

        Args:
            certain: Rollouts begun early that are sure to be asked for: as good as bought.
            guesses: Guessed rollouts that nobody has asked for yet.
            reading: Shards of scans that are under way.
            guessed_reads: Shards that may be read on a guess.
            screened: Whether a child is being screened whose validation has not been asked for.
        """
        rollouts = self.state.bought + certain
        wasted = self.state.wasted + self.state.wasted_reads + guessed_reads
        planned = self.planned(rollouts, reading, screened=screened)
        room = speculation_room(self.share, planned, wasted, guesses)
        if self.limit is None:
            return room
        # With less left than the smallest iteration takes, a budget ends a run. It pays for wrong guesses too.
        whole = self.limit - self.least + self.state.reads + reading
        room = min(room, math.floor(_widened(self.share) * whole) - wasted - guesses)
        # What it has left is for what is needed: another iteration at least, before any guess.
        return max(0, min(room, self.limit - rollouts - self.state.wasted - guesses - self.least))

    def planned(self, rollouts: int, reading: int, *, screened: bool) -> int:
        """Return the calls that the epoch under way will have made when it is over, as far as one can tell.

        They are rollouts and shards read. Each of its iterations screens a child, which is validated as often as
        children were so far, the first counted in, and reads as many shards as an iteration did so far. Few
        iterations are the careful guess: batches as large as now, or a quarter of the epoch where that is more.

        Args:
            rollouts: Asked for so far.
            reading: Shards of scans that are under way.
            screened: Whether a child's validation is still to come in the iteration under way.
        """
        cursor, outcomes = self.state.cursor, self.state.outcomes
        left = -cursor % self.epoch
        if self.last is not None:
            left = min(left, max(0, int(self.last) - cursor))
        size = max(self.epoch // _FEW_UPDATES, 1, *(decision.size for decision in self.state.decisions[-1:]))
        # With staleness the next iteration's minibatch has been drawn, and its children are still to come.
        iterations = math.ceil(left / size) + bool(self.state.drawn_ahead)
        kept = (1 + sum(outcome.accepted for outcome in outcomes)) / (1 + len(outcomes))
        validations = int((iterations + screened) * kept * self.validation)
        reads = self.state.reads + reading
        reads += reads * iterations // max(1, len(self.state.decisions))
        return rollouts + left + iterations * self.screen + validations + reads


def speculation_room(share: float, calls: int, wasted: int, outstanding: int) -> int:
    """Return how many more calls may be started on a guess.

    Even if every guess turned out wrong, no more than ``share`` of all calls would have been made for nothing:
    (wasted + outstanding + more) ≤ share · (calls + outstanding + more). A share is kept to within half a
    per cent of itself: 0.1 is 0.1005 at most, and above 0.99 to the call.

    Args:
        share: The share, in [0, 1).
        calls: Calls that are asked for: so far, or by the plan's end.
        wasted: Calls that were made for nothing so far.
        outstanding: Guesses that nobody has asked for yet.
    """
    share = _widened(share)
    return max(0, math.floor((share * (calls + outstanding) - wasted - outstanding) / (1 - share)))


def _widened(share: float) -> float:
    return min(share * _TOLERANCE, max(share, _WIDEST))
