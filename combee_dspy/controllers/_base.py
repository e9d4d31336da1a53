"""The batch controller's contract, and the bounds on a size. Pure."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from combee_dspy.records import BatchDecision, Clamp, Measurement
from combee_dspy.strategies import Strategy

_STANDARD_ERROR = 0.05
_FEW = 3  # dspy.GEPA's minibatch: less than that compares single examples.


@dataclass(frozen=True, slots=True)
class BatchView:
    """What is known when the next minibatch is planned.

    Attributes:
        update: The update to plan, from 0.
        trainset_size: N, examples in the trainset.
        seen: Examples drawn so far; the first epoch ends at ``trainset_size``.
        measurements: Delay of every finished update, in order.
        planned: Sizes planned so far, in order. An update that was skipped, for want of a mistake
            to learn from, or is still on its way, was planned and is not measured.
        workers: Rollouts that may run at once.
        capacity: The most effects the service was seen to take at once; ``None`` before it showed a
            bound. It never falls: a limit that backs off for a while, or by this machine's own
            bound, must not shrink batches.
        queued: Effects that wait for a slot.
        prompt_tokens: Mean prompt tokens of a rollout so far, if any.
        gpus: GPUs of the user's own behind the task LM, by ``Costs(gpus=…)``; ``None`` for a
            service of others.
        remaining_rollouts: What the budget leaves, if it is in rollouts.
        validation_size: Rollouts that a full validation takes.
        children: Children checked on each minibatch; 0 where they are not. Each of them may be
            validated.
        screen: Examples of its minibatch that a child runs on at most; ``None`` for all.
        score_variance: Variance of the parents' scores so far, if any.
        turns: Components that updates teach in turns, each update one; 1 where each teaches all.
    """

    update: int
    trainset_size: int
    seen: int = 0
    measurements: tuple[Measurement, ...] = ()
    planned: tuple[int, ...] = ()
    workers: int = 1
    capacity: int | None = None
    queued: int = 0
    prompt_tokens: float | None = None
    gpus: float | None = None
    remaining_rollouts: int | None = None
    validation_size: int = 0
    children: int = 1
    screen: int | None = None
    score_variance: float | None = None
    turns: int = 1


class BatchController(Strategy):
    """Chooses the size of each minibatch (Combee §3.3)."""

    kind: ClassVar[str] = "controller"

    @abstractmethod
    def plan(self, view: BatchView) -> BatchDecision:
        """Return the size of the next minibatch: at least 1, at most ``view.trainset_size``.

        Must be a pure function of the parameters and ``view``, so that a resumed or replayed run
        decides the same.
        """


@dataclass(frozen=True, slots=True)
class Bound:
    """The largest size that one consideration allows, in examples; below 1 counts as 1."""

    name: str
    limit: int
    reason: str


def clamp(size: int, bounds: Iterable[Bound | None]) -> tuple[int, tuple[Clamp, ...]]:
    """Bring a size under every bound, in order; return it with each clamp that changed it."""
    clamps: list[Clamp] = []
    for bound in bounds:
        if bound is not None and size > max(1, bound.limit):
            clamps.append(Clamp(bound.name, size, max(1, bound.limit), bound.reason))
            size = max(1, bound.limit)
    return size, tuple(clamps)


def trainset_bound(view: BatchView) -> Bound:
    """Bound by N: a batch holds each example at most once."""
    return Bound(
        "trainset", view.trainset_size, f"the trainset holds {view.trainset_size} examples"
    )


def updates_bound(view: BatchView, least: int) -> Bound:
    """Bound by N / ``least``, so that an epoch keeps several updates."""
    limit = view.trainset_size // least
    return Bound(
        "epoch-updates", limit, f"{least} updates an epoch of {view.trainset_size} examples"
    )


def capacity_bound(view: BatchView, waves: int) -> Bound:
    """Bound by what runs at once: beyond a few full waves an update only gets longer.

    What runs at once is the service's measured capacity where that is below the workers.
    """
    at_once, source = max(1, view.workers), f"{max(1, view.workers)} workers"
    if view.capacity is not None and view.capacity < at_once:
        at_once = max(1, view.capacity)
        source = f"the service serves {at_once} requests at once"
    return Bound("capacity", at_once * waves, f"{source}, {waves} full waves of rollouts at most")


def variance_bound(view: BatchView, least: int) -> Bound | None:
    """Bound by what tells the mean score to a standard error of 0.05: variance / 0.05².

    Never below ``least``.
    """
    variance = view.score_variance
    if variance is None or not math.isfinite(variance) or variance <= 0:
        return None
    needed = math.ceil(round(variance / _STANDARD_ERROR**2, 9))
    reason = (
        f"{needed} scores of variance {variance:.3g} give their mean to a standard error of"
        f" {_STANDARD_ERROR}"
    )
    return Bound("variance", max(least, needed), reason)


def turns_bound(view: BatchView) -> Bound | None:
    """Bound by an equal share of the budget for each component that has had no turn yet.

    A share pays the validation of its update, too. Where that leaves fewer examples than half a
    validation, a trunk validates no such text: the shares are below that, and one validation is
    left beside them. Never below three examples.
    """
    waiting = view.turns - view.update
    if waiting < 2 or view.remaining_rollouts is None:
        return None
    remaining, validation = view.remaining_rollouts, view.validation_size
    share = remaining // waiting - validation
    if 2 * share < validation:
        share = min((remaining - validation) // waiting, (validation - 1) // 2)
    reason = (
        f"{view.remaining_rollouts} rollouts are left for {waiting} components that no update has"
        " taught"
    )
    return Bound("turns", max(share, _FEW), reason)


def budget_bound(view: BatchView) -> Bound | None:
    """Bound by what the budget leaves.

    An update of n examples whose c children are checked costs n rollouts of parents, c·min(n, s) of
    the children's checks with a screen of s examples, and a validation of each child that passes: n
    ≤ (remaining − c·validation) / (1 + c), or where that is above s, n ≤ remaining − c·(validation
    + s). c is ``view.children``, or as many as what remains can pay for with three examples, since
    an update makes no more children than it can afford: more would shrink the last batches to
    single examples. Where children are not checked, the sum has one validation and no check.
    At least 1, since the budget stops a run and not the controller.
    """
    if view.remaining_rollouts is None:
        return None
    few, check = min(_FEW, view.trainset_size), 1 if view.children else 0
    child = view.validation_size + check * (few if view.screen is None else min(few, view.screen))
    affordable = (view.remaining_rollouts - few) // max(1, child)
    children = max(1, min(view.children, affordable))
    left, each = view.remaining_rollouts - children * view.validation_size, 1 + check * children
    limit = left // each
    if view.screen is not None and limit >= view.screen:
        limit = left - check * children * view.screen
    reason = (
        f"{view.remaining_rollouts} rollouts are left: {children} × {view.validation_size} for"
        f" validation, the rest for a parent and {check * children} children"
    )
    return Bound("budget", limit, reason)
