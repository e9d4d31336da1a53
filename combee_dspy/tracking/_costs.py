"""What the LM calls of a run have cost."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection
from dataclasses import dataclass

from combee_dspy.journal import RunHistory
from combee_dspy.tracking._sql import DOLLARS
from combee_dspy.tracking._text import dollars

_BY_ROLE = """SELECT u.role, e.purpose = 'heldout', sum(u.calls),
    sum(u.prompt_tokens + u.completion_tokens), total(u.dollars),
    coalesce(sum(CASE WHEN u.dollars IS NULL THEN u.calls END), 0), sum(u.gpu_seconds)
FROM usage u JOIN effect e ON e.id = u.effect
WHERE e.run = ? AND e.id > ? AND e.id <= ? AND e.step <= ?
  AND e.ended <= ? GROUP BY 1, 2"""
_BY_MODEL = f"""SELECT u.role, u.model, sum(u.calls), sum(u.errors), sum(u.cached),
    sum(u.prompt_tokens), sum(u.completion_tokens), {DOLLARS}, total(u.dollars),
    sum(u.gpu_seconds), total(u.seconds),
    coalesce(sum(u.calls) FILTER (WHERE u.dollars IS NULL), 0)
FROM usage u JOIN effect e ON e.id = u.effect WHERE +e.run = ? GROUP BY 1, 2 ORDER BY 1, 2"""  # noqa: S608 - constants


@dataclass(frozen=True, slots=True)
class CallCosts:
    """What some LM calls have cost.

    Attributes:
        role: Their role; empty for several.
        heldout: Whether they read the held-out set.
        calls: LM calls.
        tokens: Tokens read and written.
        known_dollars: Of the calls whose price is known.
        unpriced: Calls whose price is not known.
        gpu_seconds: ``None`` where no GPUs are declared.
    """

    role: str
    heldout: bool
    calls: int
    tokens: int
    known_dollars: float
    unpriced: int
    gpu_seconds: float | None

    @property
    def dollars(self) -> float | None:
        """All dollars; ``None`` where the price of one call is not known."""
        return None if self.unpriced else self.known_dollars

    def __str__(self) -> str:
        """Return the dollars, as far as they are known."""
        return dollars(self.known_dollars, self.unpriced)


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """What the LM calls of a role on one model have cost: the columns of ``costs``.

    Attributes:
        role: The role.
        model: The model.
        calls: LM calls.
        errors: Those that ended with an error.
        cached: Those that DSPy's cache answered.
        prompt_tokens: Tokens read.
        completion_tokens: Tokens written.
        dollars: ``None`` where the price of one call is not known.
        known_dollars: Of the calls whose price is known.
        gpu_seconds: ``None`` where no GPUs are declared.
        seconds: Sum of their seconds.
        unpriced: Calls whose price is not known.
    """

    role: str
    model: str
    calls: int
    errors: int
    cached: int
    prompt_tokens: int
    completion_tokens: int
    dollars: float | None
    known_dollars: float
    gpu_seconds: float | None
    seconds: float
    unpriced: int


def costs_by_model(history: RunHistory) -> tuple[ModelCosts, ...]:
    """Return a run's costs by role and model, those of the held-out set included."""
    return tuple(ModelCosts(*row) for row in history.reader.rows(_BY_MODEL, (history.run,)))


def costs_by_role(
    history: RunHistory,
    *,
    after: int = 0,
    upto: int = sys.maxsize,
    last_step: int = sys.maxsize,
    until: float = math.inf,
) -> list[CallCosts]:
    """Return a run's costs by role, those of the held-out set apart.

    Args:
        history: Of the run.
        after: Only those of effects with a larger number.
        upto: Only those of effects with at most this number.
        last_step: Only those of updates up to this one.
        until: Only those of effects that had ended by then, in Unix time.
    """
    rows = history.reader.rows(_BY_ROLE, (history.run, after, upto, last_step, until))
    return [CallCosts(role, bool(heldout), *sums) for role, heldout, *sums in rows]


def total_costs(costs: Collection[ModelCosts]) -> CallCosts:
    """Return the sum of some costs."""
    gpu_seconds = [cost.gpu_seconds for cost in costs if cost.gpu_seconds is not None]
    return CallCosts(
        role="",
        heldout=False,
        calls=sum(cost.calls for cost in costs),
        tokens=sum(cost.prompt_tokens + cost.completion_tokens for cost in costs),
        known_dollars=math.fsum(cost.known_dollars for cost in costs),
        unpriced=sum(cost.unpriced for cost in costs),
        gpu_seconds=math.fsum(gpu_seconds) if gpu_seconds else None,
    )
