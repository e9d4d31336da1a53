"""Which operator makes the next child: uniform at first, then by what each has brought on validation."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from combee_dspy.exceptions import ArgumentValueError

__all__ = [
    "OperatorOutcome",
    "draw_operators",
    "operator_weights",
]

_PRIOR = 1.0
_HALF_LIFE = 20.0


@dataclass(frozen=True, slots=True)
class OperatorOutcome:
    """What became of one attempt of one operator.

    Attributes:
        operator: What tells the operator apart from the run's others.
        iteration: The iteration, from 1.
        lift: The child's mean validation score less its parent's, in points of the
            metric; ``None`` where the child was not validated.
        accepted: Whether the child joined the pool. A refused edit and a rejected
            child did not.

    Raises:
        ArgumentValueError: ``lift`` is not finite.
    """

    operator: str
    iteration: int
    lift: float | None
    accepted: bool

    def __post_init__(self) -> None:
        if self.lift is not None and not math.isfinite(self.lift):
            raise ArgumentValueError("lift", self.lift, "is not finite", "Give None where nothing was measured.")

    @property
    def reward(self) -> float | None:
        """What the attempt brought: the lift, at least 0; ``None`` where that is not known yet.

        A child that was refused, rejected or worse on validation brings 0, however
        much worse it is: the search keeps its parent either way, so a bad child
        costs what any child costs. A negative reward would turn the search away
        from bold operators, whose failures are worse and cost the same.
        """
        if not self.accepted:
            return 0.0
        return None if self.lift is None else max(0.0, self.lift)


def operator_weights(
    outcomes: Iterable[OperatorOutcome],
    names: Sequence[str],
    *,
    iteration: int,
    warmup: int = 5,
    floor: float = 0.05,
) -> dict[str, float]:
    """Return the probability with which each operator is drawn.

    Uniform before iteration ``warmup``. From then on probability matching with a
    floor, as adaptive operator selection has it (Thierens, "An adaptive pursuit
    strategy for allocating operator probabilities", GECCO 2005, §2):

        P(a) = P_min + (1 − K·P_min) · Q(a) / Σ Q

    Q(a) is the mean reward of a's attempts. Rewards fade by half every twenty
    iterations, because the lift that is left to win shrinks as the search goes on and
    an operator must not live on what it did at first. One pseudo-attempt at the mean
    of the operators' means keeps a single lucky or unlucky child from deciding, and gives
    an operator that was never tried an average chance. Where nothing has brought
    anything yet, all stay equal.

    Matching was chosen over softmax and UCB because lifts have no scale that
    is known beforehand: a temperature or a confidence width would have to be tuned
    per metric, and Q / Σ Q needs neither. Exp3 is made for rewards chosen by an
    adversary and divides by small probabilities, which is noisy over a few dozen children.

    Args:
        outcomes: All attempts so far, in any order. Those of operators that are not
            named, and accepted children that are not validated yet, do not count.
        names: The operators, each once.
        iteration: The iteration that is about to be planned, from 1.
        warmup: The first iteration whose weights follow the outcomes.
        floor: P_min, at most half of an equal share, which it is cut to where there are many operators.

    Returns:
        Probability by name, in the order of ``names``, summing to 1.

    Raises:
        ArgumentValueError: ``names`` is empty or repeats one, or ``floor`` is not in [0, 1].
    """
    if not names or len(set(names)) < len(names):
        raise ArgumentValueError("names", names, "is empty or repeats a name", "Give each operator a name of its own.")
    if not 0 <= floor <= 1:
        raise ArgumentValueError("floor", floor, "is not in [0, 1]", "Give a probability such as 0.05.")
    equal = 1.0 / len(names)
    if iteration < warmup:
        return dict.fromkeys(names, equal)
    qualities = _qualities(outcomes, names, iteration)
    total = math.fsum(qualities.values())
    if total <= 0:
        return dict.fromkeys(names, equal)
    least = min(floor, equal / 2)
    free = 1.0 - len(names) * least
    return {name: least + free * quality / total for name, quality in qualities.items()}


def _qualities(outcomes: Iterable[OperatorOutcome], names: Sequence[str], iteration: int) -> dict[str, float]:
    gained = dict.fromkeys(names, 0.0)
    counted = dict.fromkeys(names, 0.0)
    # Floating sums depend on their order; arrival must not.
    for outcome in sorted(outcomes, key=lambda one: (one.iteration, one.operator, one.lift or 0.0)):
        reward = outcome.reward
        if outcome.operator not in gained or reward is None:
            continue
        weight = 0.5 ** (max(0, iteration - outcome.iteration) / _HALF_LIFE)
        gained[outcome.operator] += weight * reward
        counted[outcome.operator] += weight
    means = [gained[name] / counted[name] for name in names if counted[name]]
    mean = math.fsum(means) / len(means) if means else 0.0
    return {name: (gained[name] + _PRIOR * mean) / (counted[name] + _PRIOR) for name in names}


def draw_operators(weights: Mapping[str, float], count: int, stream: random.Random) -> list[str]:
    """Draw operators without replacement: none is drawn again before each has been drawn.

    Args:
        weights: Probability, or any weight from 0, by name. Where all that is left weighs 0, all are equal.
        count: How many. Past the number of operators a new round begins.
        stream: Where chance comes from.

    Raises:
        ArgumentValueError: There is no operator, a weight is negative or not finite, or ``count`` is negative.
    """
    if not weights or any(not math.isfinite(weight) or weight < 0 for weight in weights.values()):
        remedy = "Give at least one operator, each with a weight from 0."
        raise ArgumentValueError("weights", dict(weights), "cannot be drawn from", remedy)
    if count < 0:
        raise ArgumentValueError("count", count, "is negative", "Give how many to draw.")
    drawn: list[str] = []
    left: dict[str, float] = {}
    while len(drawn) < count:
        left = left or dict(weights)
        drawn.append(_one(left, stream))
        del left[drawn[-1]]
    return drawn


def _one(weights: Mapping[str, float], stream: random.Random) -> str:
    names = list(weights)
    if not any(weights.values()):
        return stream.choice(names)
    return stream.choices(names, weights=list(weights.values()))[0]
