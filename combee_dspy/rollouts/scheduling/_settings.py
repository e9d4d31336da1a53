"""How a scheduler decides, in one place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import get_args

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.rollouts.scheduling._flush import AtOnce, FlushRule
from combee_dspy.rollouts.scheduling._place import LANES
from combee_dspy.rollouts.scheduling._preemption import Preemption

__all__ = ["SHARES", "Scheduling"]

SHARES: Mapping[str, float] = {"reflection": 0.25, "screening": 0.1, "rollout": 0.1, "validation": 0.05}
"""Default share of the slots of each lane that has work. Speculation has none: it gets what nobody else wants."""


@dataclass(frozen=True, slots=True)
class Scheduling:
    """How a scheduler decides.

    Attributes:
        order: Lanes, the most urgent first.
        shares: Share of the slots that a lane with waiting work gets however much more urgent work
            there is, by lane, summing to 1 at most. A lane that is not named has none.
        flush: When what waits is released.
        preempt: What happens when a more urgent task finds no free slot: ``"drain"`` lets what runs finish
            and what waits wait; ``"drop"`` cancels waiting tasks of the lane ``"speculative"``;
            ``"rollback"`` takes a less urgent task back from the inner session, where that
            can still be cancelled, and queues it again.
        window: How many places of a lane may be reordered to keep tasks of one prefix and length
            together; a task is overtaken fewer times than this within its lane. 1 for strict order.
        tokens: Tokens of one released batch, all of one length class; ``None`` for no such bound.
            Useful with a flush rule that waits: what does not fit stays for the next batch.
        patience: Seconds without a submission, and with nothing in flight, after which
            tasks that a flush rule or a replay holds back go all the same, so that no run hangs.
    """

    order: tuple[str, ...] = LANES
    shares: Mapping[str, float] = field(default_factory=lambda: dict(SHARES))
    flush: FlushRule = field(default_factory=AtOnce)
    preempt: Preemption = "drain"
    window: int = 256
    tokens: int | None = None
    patience: float = 1.0

    def validate(self) -> None:
        """Check the fields.

        Raises:
            ArgumentTypeError: A field has a type that cannot be used.
            ArgumentValueError: A field is out of its range.
        """
        if not self.order or len(set(self.order)) != len(self.order):
            raise ArgumentValueError("order", self.order, "is empty or repeats a lane", "Name each lane once.")
        unknown = sorted(set(self.shares) - set(self.order))
        # Defaults speak of the default lanes only; an order of one's own needs shares of its own where it has others.
        if unknown and dict(self.shares) != dict(SHARES):
            raise ArgumentValueError("shares", unknown, "names lanes that the order lacks", f"Lanes: {self.order}.")
        if any(not 0.0 <= share <= 1.0 for share in self.shares.values()) or sum(self.shares.values()) > 1.0 + 1e-9:
            remedy = "Give shares from 0 that sum to 1 at most."
            raise ArgumentValueError("shares", dict(self.shares), "cannot all be kept", remedy)
        if not isinstance(self.flush, FlushRule):
            raise ArgumentTypeError("flush", self.flush, "is no flush rule", "Give one, such as waited(0.2).")
        if self.preempt not in get_args(Preemption):
            raise ArgumentValueError("preempt", self.preempt, "is none", f"Give one of {get_args(Preemption)}.")
        if self.window < 1:
            raise ArgumentValueError("window", self.window, "is below 1", "Give 1 for strict order, or more.")
        if self.tokens is not None and self.tokens < 1:
            raise ArgumentValueError("tokens", self.tokens, "is below 1", "Give tokens a batch, or None.")
        if not self.patience >= 0:
            raise ArgumentValueError("patience", self.patience, "is negative", "Give seconds, such as 1.0.")
