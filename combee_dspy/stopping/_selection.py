"""The final choice: which candidate a run returns, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from combee_dspy.evaluation import PairedDifference, paired_difference
from combee_dspy.events import CandidateSelected
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.streams import derive_seed

__all__ = ["Finalist", "Selection", "finalists", "select"]

# Sums of the same scores in another order differ by less; a step of one example in a million is more.
_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Finalist:
    """A candidate that may be returned.

    Attributes:
        index: Its index in gepa's pool: earlier candidates have smaller ones.
        draws: Validation scores, draw by draw, each in the order of the validation examples.
        tokens: Tokens of its text, as every call pays them.
    """

    index: int
    draws: tuple[tuple[float, ...], ...]
    tokens: int

    @property
    def per_example(self) -> tuple[float, ...]:
        """Mean score of each validation example over the draws."""
        return tuple(math.fsum(scores) / len(scores) for scores in zip(*self.draws, strict=True))

    @property
    def means(self) -> tuple[float, ...]:
        """Mean validation score of each draw."""
        return tuple(math.fsum(draw) / len(draw) for draw in self.draws)

    @property
    def mean(self) -> float:
        """Mean validation score over all draws."""
        return math.fsum(self.means) / len(self.draws)


@dataclass(frozen=True, slots=True)
class Selection:
    """What was chosen, and how sure that is.

    Attributes:
        index: The chosen candidate's index.
        score: Its mean validation score over all draws.
        runner_up: Index of the next best, or ``None`` where there was no other.
        lead: Paired difference of the runner-up (``before``) and the chosen (``after``), with its
            bootstrap interval over validation examples; ``None`` without a runner-up.
        looks: Candidates compared on validation in the whole run. The interval does not allow for
            them: the best of many is best by luck too.
        reason: One sentence.
        finalists: Indices of those compared, best first.
        draws: Validation scores of each finalist, one per draw, in the order of ``finalists``.
    """

    index: int
    score: float
    runner_up: int | None
    lead: PairedDifference | None
    looks: int
    reason: str
    finalists: tuple[int, ...]
    draws: tuple[tuple[float, ...], ...]

    def event(self, iteration: int) -> CandidateSelected:
        """Return it as an event."""
        return CandidateSelected(
            iteration=iteration,
            index=self.index,
            reason=self.reason,
            finalists=self.finalists,
            draws=self.draws,
            looks=self.looks,
        )


def finalists(scores: Sequence[float], count: int, tokens: Sequence[int] = ()) -> tuple[int, ...]:
    """Return the indices of the candidates that are worth another draw, best first.

    Ties go to fewer tokens, then to the earlier candidate, as in :func:`select`.

    Args:
        scores: Mean validation score per candidate, in the order of the pool.
        count: How many, at least 1.
        tokens: Tokens per candidate; empty where they do not count.

    Raises:
        ArgumentValueError: There is no candidate, ``count`` is below 1, or the lengths differ.
    """
    if not scores:
        raise ArgumentValueError("scores", scores, "is empty", "Give at least one candidate.")
    if count < 1:
        raise ArgumentValueError("count", count, "is below 1", "Give a whole number of at least 1.")
    if tokens and len(tokens) != len(scores):
        raise ArgumentValueError("tokens", len(tokens), "does not pair with scores", "Give one per candidate.")
    order = sorted(
        range(len(scores)), key=lambda index: (-round(scores[index], _DIGITS), tokens[index] if tokens else 0, index)
    )
    return tuple(order[:count])


def select(candidates: Sequence[Finalist], *, looks: int, seed: int = 0, confidence: float = 0.95) -> Selection:
    """Choose the candidate with the best mean validation score over all draws.

    Of equals the one with fewer tokens is chosen, since every call pays them,
    and then the earlier one. A pure function; the order of the arguments does
    not count. With one draw each the choice is GEPA's own, with a stated
    tie-break.

    Args:
        candidates: The finalists, each with scores of the same examples in the same order.
        looks: Candidates compared on validation in the whole run.
        seed: The run's seed; the interval's resampling is derived from it.
        confidence: Level of the interval.

    Raises:
        ArgumentValueError: There is none, two have one index, a score is not finite, or they were
            scored on different numbers of examples.
    """
    _check(candidates)
    order = sorted(candidates, key=lambda one: (-round(one.mean, _DIGITS), one.tokens, one.index))
    best, second = order[0], order[1] if len(order) > 1 else None
    lead = None
    if second is not None:
        interval_seed = derive_seed(seed, "selection")
        lead = paired_difference(second.per_example, best.per_example, seed=interval_seed, confidence=confidence)
    return Selection(
        index=best.index,
        score=best.mean,
        runner_up=None if second is None else second.index,
        lead=lead,
        looks=looks,
        reason=_reason(best, second, lead, looks),
        finalists=tuple(one.index for one in order),
        draws=tuple(one.means for one in order),
    )


def _check(candidates: Sequence[Finalist]) -> None:
    if not candidates:
        raise ArgumentValueError("candidates", (), "is empty", "Give at least one candidate.")
    indices = [one.index for one in candidates]
    if len(set(indices)) < len(indices):
        raise ArgumentValueError("candidates", indices, "holds a candidate twice", "Put its draws into one Finalist.")
    sizes = {len(draw) for one in candidates for draw in one.draws}
    if len(sizes) != 1 or sizes == {0} or not all(one.draws for one in candidates):
        remedy = "Score every finalist on the same validation examples, at least once."
        raise ArgumentValueError("candidates", sorted(sizes), "were not scored on the same examples", remedy)
    if not all(math.isfinite(score) for one in candidates for draw in one.draws for score in draw):
        remedy = "Give failed rollouts the failure score."
        raise ArgumentValueError("candidates", indices, "have a score that cannot be compared", remedy)


def _reason(best: Finalist, second: Finalist | None, lead: PairedDifference | None, looks: int) -> str:
    drawn = f"{len(best.draws)} draws" if len(best.draws) > 1 else "1 draw"
    said = f"best on validation, {best.mean:.4g} over {drawn}"
    if second is None or lead is None:
        return f"{said}; no other candidate was compared ({looks} looks in all)"
    if round(best.mean, _DIGITS) == round(second.mean, _DIGITS):
        by = "earlier" if best.tokens == second.tokens else "with fewer tokens"
        said += f", tied with candidate {second.index} and {by}"
    else:
        said += f", {lead.difference:.4g} above candidate {second.index}"
    return f"{said} ({lead.confidence:.0%} interval {lead.low:.4g} to {lead.high:.4g}; {looks} looks in all)"
