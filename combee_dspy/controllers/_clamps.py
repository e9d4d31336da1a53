"""Bounds on a batch size, as pure functions of what is known.

A bound is returned only where it can be computed: what was not measured
limits nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from combee_dspy.controllers._base import BatchView
from combee_dspy.records import Clamp

__all__ = [
    "Bound",
    "apply",
    "budget_bound",
    "capacity_bound",
    "context_bound",
    "trainset_bound",
    "updates_bound",
    "variance_bound",
]

_COPIES = 2
_STANDARD_ERROR = 0.05


@dataclass(frozen=True, slots=True)
class Bound:
    """The largest size that one consideration allows.

    Attributes:
        name: Which consideration; the name of the clamp.
        limit: Examples, at least 1.
        reason: One sentence with the figures it came from.
    """

    name: str
    limit: int
    reason: str


def apply(size: int, bounds: Iterable[Bound | None]) -> tuple[int, tuple[Clamp, ...]]:
    """Bring a size under every bound, in order.

    Returns:
        The size, and one clamp per bound that changed it.
    """
    clamps: list[Clamp] = []
    for bound in bounds:
        if bound is not None and size > bound.limit:
            clamps.append(Clamp(bound.name, size, bound.limit, bound.reason))
            size = bound.limit
    return size, tuple(clamps)


def trainset_bound(view: BatchView) -> Bound:
    """Bound by N: a batch holds each example at most once."""
    limit = max(1, view.trainset_size)
    return Bound("trainset", limit, f"the trainset holds {view.trainset_size} examples")


def updates_bound(view: BatchView, min_updates: int) -> Bound:
    """Bound by N / ``min_updates``, so that an epoch keeps several updates."""
    limit = max(1, view.trainset_size // min_updates)
    return Bound("epoch-updates", limit, f"{min_updates} updates an epoch of {view.trainset_size} examples")


def capacity_bound(view: BatchView, waves: int) -> Bound:
    """Bound by what runs at once: beyond a few full waves an iteration only gets longer.

    What runs at once is the service's measured capacity, or the workers where
    it was not measured or is larger than they can use.
    """
    workers = max(1, view.workers)
    if view.capacity is not None and view.capacity < workers:
        at_once = max(1, view.capacity)
        source = f"the service serves {at_once} requests at once"
    else:
        at_once = workers
        source = f"{at_once} workers"
    return Bound("capacity", at_once * waves, f"{source}, {waves} full waves of rollouts at most")


def context_bound(view: BatchView) -> Bound | None:
    """Bound by what the calls of a two-level scan can read: larger batches would need a third level, and its time.

    p copies of each reflection (Combee §3.2) of ``record_tokens`` tokens go to
    shards. Where those are dealt by a ``fan_in``, one holds m ≥ 2 reflections, as
    many as that and ``call_tokens`` allow, and n ≤ merge_fan_in·m / p with
    ⌊√n⌋ ≤ merge_fan_in leaves no more lists than one call merges beside a short
    instruction; where code joins the lists, nothing is bound. Otherwise the shards are taken for the
    paper's: k = ⌊√n⌋ (§3.1) of about 2·√n reflections, which fit while
    n ≤ (call_tokens / (2·record_tokens))².
    """
    if view.call_tokens is None or view.record_tokens is None or not view.record_tokens > 0:
        return None
    if view.fan_in is None:
        most = view.call_tokens / (_COPIES * view.record_tokens)
        # Beyond this every batch fits, and squaring could overflow.
        limit = view.trainset_size if most > view.trainset_size else int(max(0.0, most) ** 2)
    elif view.merge_fan_in is None:
        return None
    else:
        held = max(2, int(min(float(view.fan_in), view.call_tokens / view.record_tokens)))
        limit = min(view.merge_fan_in * held // view.copies, (view.merge_fan_in + 1) ** 2 - 1)
    reason = (
        f"two levels of calls that hold {view.call_tokens} tokens each "
        f"take in {max(1, limit)} reflections of {view.record_tokens:.0f} tokens"
    )
    return Bound("context", max(1, limit), reason)


def variance_bound(view: BatchView, min_size: int) -> Bound | None:
    """Bound by what is needed to know the mean score within a standard error of 0.05.

    n ≤ variance / 0.05², rounded up, and never below ``min_size``: where scores
    hardly differ, more examples tell little more about a candidate.
    """
    variance = view.score_variance
    if variance is None or not math.isfinite(variance) or variance <= 0:
        return None
    needed = math.ceil(variance * round(1 / _STANDARD_ERROR**2))
    reason = f"{needed} scores of variance {variance:.3g} give their mean to a standard error of {_STANDARD_ERROR}"
    return Bound("variance", max(min_size, needed), reason)


_FEW = 3  # dspy.GEPA's minibatch: less than that compares single examples.


def budget_bound(view: BatchView) -> Bound | None:
    """Bound by what the budget leaves.

    An iteration of g minibatches of n examples with c children each costs g·n
    rollouts of parents, g·c·min(n, s) of the children's checks with a screen of s
    examples, and a validation of each child that passes:
    n ≤ (remaining − v·validation) / (g·(1 + c)), or where that is above s,
    n ≤ (remaining − v·validation − g·c·s) / g. v is the g·c validations that it may
    come to, or as many as what remains can pay for beside three examples: more would
    shrink the last batches to single examples. At least 1, since the budget stops
    a run and not the controller.
    """
    if view.remaining_rollouts is None:
        return None
    children, groups = max(0, view.children), max(1, view.groups)
    each = groups * (1 + children)
    most = groups * max(1, children)
    few = each * min(_FEW, view.trainset_size)
    affordable = (view.remaining_rollouts - few) // view.validation_size if view.validation_size > 0 else most
    validations = max(1, min(most, affordable))
    left = view.remaining_rollouts - validations * view.validation_size
    limit = left // each
    if view.screen is not None and limit > view.screen:
        limit = (left - groups * children * view.screen) // groups
    limit = max(1, limit)
    reason = (
        f"{view.remaining_rollouts} rollouts are left: {validations} × {view.validation_size} for validation, "
        f"the rest for a parent and {children} children on each of {groups} minibatches"
    )
    return Bound("budget", limit, reason)
