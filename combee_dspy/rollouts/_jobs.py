"""What an executor runs, a rollout or an LM call, and what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import dspy

from combee_dspy.costs import Tariff
from combee_dspy.json_texts import sound_values
from combee_dspy.records import CallUsage, FailedCall, Metric, Role, Rollout


@dataclass(frozen=True, slots=True)
class RolloutJob:
    """One rollout to run.

    Attributes:
        program: Shared with other jobs, not changed.
        example_id: The example's row hash.
        failure_score: The score of a rollout that failed.
        tariff: Prices of its LM calls.
        sees_trace: Whether the metric takes the program's trace (see
            :func:`combee_dspy.rollouts.takes_trace`).
        role: The role of the program's LM calls: ``"serving"`` where a user gets the answer.
        seconds: Longest time of one attempt, without waits for a full service; ``None`` for no
            limit.
    """

    program: dspy.Module
    example: dspy.Example
    example_id: str
    metric: Metric
    failure_score: float = 0.0
    tariff: Tariff = field(default_factory=Tariff)
    sees_trace: bool = False
    role: Role = "task"
    seconds: float | None = None

    @property
    def lane(self) -> str:
        """Its kind: seconds are compared within a kind only."""
        return "rollout"


@dataclass(frozen=True, slots=True)
class CallJob:
    """One LM call of a strategy.

    Attributes:
        lm: The LM; ``None`` for DSPy's setting.
        adapter: Writes the prompt and reads the answer; ``None`` for DSPy's setting.
        temperature: ``None`` for the LM's own.
        tariff: Prices of the call.
        seconds: Longest time of one attempt, without waits for a full service; an hour by default,
            ``None`` for no limit.
    """

    signature: type[dspy.Signature]
    inputs: Mapping[str, object]
    lm: dspy.BaseLM | None = None
    adapter: dspy.Adapter | None = None
    role: Role = "proposer"
    temperature: float | None = None
    tariff: Tariff = field(default_factory=Tariff)
    seconds: float | None = 3600.0

    def __post_init__(self) -> None:
        # No service takes half a character: in one row, it would fail whoever reads that row.
        object.__setattr__(self, "inputs", sound_values(self.inputs))

    @property
    def lane(self) -> str:
        """Its kind: seconds are compared within a kind only."""
        return self.signature.__name__


@dataclass(frozen=True, slots=True)
class Answer:
    """The result of an LM call.

    Attributes:
        outcome: The prediction, or why there is none.
        usage: Its LM calls by role and model, repeated attempts included.
        seconds: Seconds of the last attempt.
        queue_seconds: Seconds from its submission until its last attempt began.
    """

    outcome: dspy.Prediction | FailedCall
    usage: tuple[CallUsage, ...] = ()
    seconds: float = 0.0
    queue_seconds: float = 0.0


class InfrastructureFaultError(Exception):
    """An attempt failed for a reason that says nothing about the program.

    A program or a metric may raise it: the rollout is then repeated where that may help, and never
    scored.

    Attributes:
        retryable: Whether another attempt may help.
        rejected: Whether the service asked for fewer requests: the attempt is not counted.
        outage: Whether the service is known to have failed, and is waited for. Otherwise a few
            attempts are made.
        retry_after: Seconds that the service asks to wait; ``None`` where it names none.
        usage: LM calls of the attempt.
        rollout: The failed rollout with its score, to be used when no attempt helps; ``None`` where
            the service is at fault, so that no score is fair.
    """

    def __init__(
        self,
        reason: str,
        *,
        retryable: bool,
        rejected: bool = False,
        outage: bool = False,
        retry_after: float | None = None,
        usage: tuple[CallUsage, ...] = (),
        rollout: Rollout | None = None,
    ) -> None:
        super().__init__(reason)
        self.retryable = retryable
        self.rejected = rejected
        self.outage = outage
        self.retry_after = retry_after
        self.usage = usage
        self.rollout = rollout


class RolloutTimeoutError(TimeoutError):
    """A rollout, the metric's feedback on one, or an LM call took too long.

    Attributes:
        usage: Its LM calls by then.
    """

    def __init__(self, seconds: float, usage: tuple[CallUsage, ...] = ()) -> None:
        super().__init__(
            f"it took longer than {seconds:g} seconds. Validation(rollout_seconds=…) sets that"
            " limit"
        )
        self.usage = usage


def is_late(rollout: Rollout) -> bool:
    """Return whether a rollout has failed because it took too long."""
    return (rollout.error or "").startswith(f"{RolloutTimeoutError.__name__}:")


class AbandonedError(asyncio.CancelledError):
    """An effect was cancelled while it ran.

    Attributes:
        usage: Its LM calls by then. A call in flight counts as one that failed.
    """

    def __init__(self, usage: tuple[CallUsage, ...]) -> None:
        super().__init__()
        self.usage = usage
