"""What an executor carries out, and what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import dspy

from combee_dspy.costs import Tariff
from combee_dspy.records import CallUsage, FailedCall, Role, Rollout

Metric = Callable[..., Any]
"""GEPA's metric: ``(gold, pred, trace, pred_name, pred_trace)`` to a score, or a
``dspy.Prediction`` with ``score``, ``feedback`` and ``objective_scores``. Where it is a
coroutine function it is awaited: on the loop of ``Asyncio``, elsewhere in the worker thread."""


@dataclass(frozen=True, slots=True)
class RolloutJob:
    """One rollout to be carried out.

    Attributes:
        program: Shared with other jobs, not changed.
        example_id: The example's row hash.
        failure_score: The score of a rollout that failed.
        tariff: What its LM calls are charged by.
        sees_trace: Whether the metric takes the program's trace (see
            :func:`combee_dspy.rollouts.takes_trace`).
        role: Whom the program's LM calls are made for: ``"serving"`` where somebody wants the
            answer.
        seconds: How long an attempt may take, waits for a service that is full left out; ``None``
            for no limit.
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
        """Its kind, whose seconds compare."""
        return "rollout"


@dataclass(frozen=True, slots=True)
class CallJob:
    """One LM call of a strategy.

    Attributes:
        lm: Who is asked; ``None`` for DSPy's setting.
        adapter: How the prompt is written and the answer read; ``None`` for DSPy's setting.
        temperature: Where it is not the LM's own.
        tariff: What it is charged by.
        seconds: How long an attempt may take, waits for a service that is full left out; an hour by
            default, ``None`` for no limit.
    """

    signature: type[dspy.Signature]
    inputs: Mapping[str, Any]
    lm: dspy.BaseLM | None = None
    adapter: dspy.Adapter | None = None
    role: Role = "proposer"
    temperature: float | None = None
    tariff: Tariff = field(default_factory=Tariff)
    seconds: float | None = 3600.0

    @property
    def lane(self) -> str:
        """Its kind, whose seconds compare."""
        return self.signature.__name__


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an LM call.

    Attributes:
        outcome: The prediction, or why there is none.
        usage: Its LM calls by role and model, attempts that were repeated included.
        seconds: Wall-clock seconds of the last attempt.
        queue_seconds: From its submission to the start of that attempt.
    """

    outcome: dspy.Prediction | FailedCall
    usage: tuple[CallUsage, ...] = ()
    seconds: float = 0.0
    queue_seconds: float = 0.0


class InfrastructureFaultError(Exception):
    """An LM call, or what a program runs in, failed for a reason that says nothing about the
    program.

    A program or a metric may raise it itself; the rollout is then tried again where that may help,
    and never scored.

    Attributes:
        retryable: Whether trying again may help.
        rejected: Whether a service asked for fewer requests: no attempt, only a wait.
        outage: Whether what failed is known to be the service, which is waited for. Else a few
            attempts are made.
        retry_after: Seconds that it asked to wait, where it named some.
        usage: What the attempt has cost.
        rollout: The failed rollout, scored, for when trying again did not help;
            ``None`` where the service is known to be at fault, so that no score is fair.
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
    """A rollout, the metric's feedback on one, or an LM call took longer than it may.

    Attributes:
        usage: What it has cost.
    """

    def __init__(self, seconds: float, usage: tuple[CallUsage, ...] = ()) -> None:
        super().__init__(
            f"it took longer than {seconds:g} seconds. Validation(rollout_seconds=…) sets that"
            " limit"
        )
        self.usage = usage


def is_late(rollout: Rollout) -> bool:
    """Return whether a rollout has failed because it took longer than it may."""
    return (rollout.error or "").startswith(f"{RolloutTimeoutError.__name__}:")


class AbandonedError(asyncio.CancelledError):
    """An effect was cancelled while it was under way.

    Attributes:
        usage: What it has cost by then. A call in flight counts as one that failed.
    """

    def __init__(self, usage: tuple[CallUsage, ...]) -> None:
        super().__init__()
        self.usage = usage
