"""The batch controller's contract: what is known in, a batch size out."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from combee_dspy.records import BatchDecision, Measurement
from combee_dspy.strategies import Strategy

__all__ = ["BatchController", "BatchView"]


@dataclass(frozen=True, slots=True)
class BatchView:
    """What is known when the next minibatch is planned.

    Attributes:
        update: The update to plan, from 0.
        trainset_size: N, examples in the trainset.
        seen: Examples drawn so far; the first epoch ends at ``trainset_size``.
        measurements: Delay of every finished update, in order.
        planned: Sizes planned so far, in order. An update that was skipped, for want of a
            mistake to learn from, or is still on its way, was planned and is not measured.
        workers: Rollouts that may run at once.
        capacity: Largest number of LM requests the service was seen to serve at once, if measured.
        remaining_rollouts: What the budget leaves, if it is in rollouts.
        validation_size: Rollouts that a full validation takes.
        children: Children checked on each minibatch; 0 where they are not. Each of them may be validated.
        screen: Examples of its minibatch that a child runs on at most; ``None`` for all.
        score_variance: Variance of the parents' scores so far, if any.
        record_tokens: Mean estimated tokens of a reflection, if measured.
        call_tokens: Tokens of reflections that one LM call may hold, if known.
        fan_in: The most reflections that one LM call is given, where shards are dealt by such a limit.
        merge_fan_in: The most lists that one LM call merges then; ``None`` where code joins them.
        copies: Copies of each reflection that are dealt then.
    """

    update: int
    trainset_size: int
    seen: int = 0
    measurements: tuple[Measurement, ...] = ()
    planned: tuple[int, ...] = ()
    workers: int = 1
    capacity: int | None = None
    remaining_rollouts: int | None = None
    validation_size: int = 0
    children: int = 1
    screen: int | None = None
    score_variance: float | None = None
    record_tokens: float | None = None
    call_tokens: int | None = None
    fan_in: int | None = None
    merge_fan_in: int | None = None
    copies: int = 2


class BatchController(Strategy):
    """Chooses the size of each minibatch (Combee §3.3)."""

    kind: ClassVar[str] = "controller"

    @abstractmethod
    def plan(self, view: BatchView) -> BatchDecision:
        """Return the size of the next minibatch: at least 1, at most ``view.trainset_size``.

        Must be a pure function of the parameters and ``view``, so that a resumed
        or replayed run decides the same.
        """
