"""Which operator makes the next child: uniform at first, then by its gains on validation."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from combee_dspy.operators._base import Operator

_PRIOR, _HALF_LIFE, _WARMUP, _FLOOR = 1.0, 20.0, 4, 0.05


@dataclass(frozen=True, slots=True)
class OperatorOutcome:
    """What became of one attempt of one operator.

    Attributes:
        operator: The operator's label (see :func:`operator_labels`).
        update: The update, from 0.
        lift: The child's mean validation score less its parent's, in points of the metric; ``None``
            where the child was not validated.
        accepted: Whether the child joined the pool. A refused edit and a rejected child did not.
    """

    operator: str
    update: int
    lift: float | None
    accepted: bool

    @property
    def reward(self) -> float | None:
        """What the attempt brought: the lift, at least 0; ``None`` where that is not known yet.

        A bad child brings 0, however bad it is: the search keeps its parent, so it costs what any
        child costs. A negative reward would turn the search away from bold operators.
        """
        if not self.accepted:
            return 0.0
        return None if self.lift is None else max(0.0, self.lift)


def operator_labels(operators: Iterable[Operator]) -> tuple[str, ...]:
    """Return one label per operator: its name, numbered from the second of that name."""
    seen: Counter[str] = Counter()
    labels = []
    for name in (operator.name for operator in operators):
        seen[name] += 1
        labels.append(name if seen[name] == 1 else f"{name} {seen[name]}")
    return tuple(labels)


def operator_weights(
    outcomes: Iterable[OperatorOutcome], labels: Sequence[str], update: int
) -> dict[str, float]:
    """Return the probability with which each operator is drawn. Pure.

    The order of the outcomes does not count.

    Uniform in the first four updates. From then on probability matching with a floor, as adaptive
    operator selection has it (Thierens, "An adaptive pursuit strategy for allocating operator
    probabilities", GECCO 2005, §2):

        P(a) = P_min + (1 − K·P_min) · Q(a) / Σ Q

    P_min is 0.05, or half of an equal share where there are many operators. Q(a) is the mean reward
    of a's attempts. Rewards fade by half every twenty updates, because the lift that is left to win
    shrinks as the search goes on and an operator must not live on what it did at first. One
    pseudo-attempt at the mean of the operators' means keeps a single lucky or unlucky child from
    deciding, and gives an operator that was never tried an average chance. Where nothing has
    brought anything yet, all stay equal. Matching needs no temperature and no confidence width, as
    softmax and UCB would: lifts have no scale that is known beforehand.

    Args:
        outcomes: All attempts so far. Those of operators that are not named, and accepted children
            that are not validated yet, do not count.
        labels: The operators, each once.
        update: The update that is about to be planned, from 0.
    """
    equal = 1.0 / len(labels)
    qualities = _qualities(outcomes, labels, update)
    total = math.fsum(qualities.values())
    if update < _WARMUP or total <= 0:
        return dict.fromkeys(labels, equal)
    least = min(_FLOOR, equal / 2)
    free = 1.0 - len(labels) * least
    return {label: least + free * quality / total for label, quality in qualities.items()}


def _qualities(
    outcomes: Iterable[OperatorOutcome], labels: Sequence[str], update: int
) -> dict[str, float]:
    gained = dict.fromkeys(labels, 0.0)
    counted = dict.fromkeys(labels, 0.0)
    # Floating sums depend on their order; arrival must not.
    for outcome in sorted(
        outcomes, key=lambda outcome: (outcome.update, outcome.operator, outcome.lift or 0.0)
    ):
        reward = outcome.reward
        if outcome.operator not in gained or reward is None:
            continue
        weight = 0.5 ** (max(0, update - outcome.update) / _HALF_LIFE)
        gained[outcome.operator] += weight * reward
        counted[outcome.operator] += weight
    means = [gained[label] / counted[label] for label in labels if counted[label]]
    mean = math.fsum(means) / len(means) if means else 0.0
    return {label: (gained[label] + _PRIOR * mean) / (counted[label] + _PRIOR) for label in labels}


def draw_operators(weights: Mapping[str, float], count: int, stream: random.Random) -> list[str]:
    """Draw labels by their weights, none again before each has been drawn.

    Where all that is left weighs 0, all are equal.
    """
    drawn: list[str] = []
    left: dict[str, float] = {}
    while len(drawn) < count:
        left = left or dict(weights)
        labels = list(left)
        chances = list(left.values()) if any(left.values()) else None
        drawn.append(stream.choices(labels, weights=chances)[0])
        del left[drawn[-1]]
    return drawn
