"""Bounds on a batch size, as pure functions of what is known. What was not measured limits nothing."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from combee_dspy.controllers._base import BatchView
from combee_dspy.records import Clamp

__all__ = ["Bound", "apply", "budget", "capacity", "context", "trainset", "updates", "variance"]

_STANDARD_ERROR = 0.05
_PAPER_COPIES = 2
_FEW = 3  # dspy.GEPA's minibatch: less than that compares single examples.


@dataclass(frozen=True, slots=True)
class Bound:
    """The largest size that one consideration allows.

    Attributes:
        name: Which consideration; the name of the clamp.
        limit: Examples; below 1 counts as 1.
        reason: One sentence with the figures it came from.
    """

    name: str
    limit: int
    reason: str


def apply(size: int, bounds: Iterable[Bound | None]) -> tuple[int, tuple[Clamp, ...]]:
    """Bring a size under every bound, in order; return it with one clamp per bound that changed it."""
    clamps: list[Clamp] = []
    for bound in bounds:
        if bound is not None and size > max(1, bound.limit):
            clamps.append(Clamp(bound.name, size, max(1, bound.limit), bound.reason))
            size = max(1, bound.limit)
    return size, tuple(clamps)


def trainset(view: BatchView) -> Bound:
    """Bound by N: a batch holds each example at most once."""
    return Bound("trainset", view.trainset_size, f"the trainset holds {view.trainset_size} examples")


def updates(view: BatchView, least: int) -> Bound:
    """Bound by N / ``least``, so that an epoch keeps several updates."""
    limit = view.trainset_size // least
    return Bound("epoch-updates", limit, f"{least} updates an epoch of {view.trainset_size} examples")


def capacity(view: BatchView, waves: int) -> Bound:
    """Bound by what runs at once: beyond a few full waves an update only gets longer.

    What runs at once is the service's measured capacity where that is below the workers.
    """
    at_once, source = max(1, view.workers), f"{max(1, view.workers)} workers"
    if view.capacity is not None and view.capacity < at_once:
        at_once = max(1, view.capacity)
        source = f"the service serves {at_once} requests at once"
    return Bound("capacity", at_once * waves, f"{source}, {waves} full waves of rollouts at most")


def context(view: BatchView) -> Bound | None:
    """Bound by what the calls of a two-level scan can read: more would need a third level, and its time.

    p copies of each reflection (Combee §3.2) of ``record_tokens`` tokens go to shards. Where those are dealt by a
    ``fan_in``, one holds m ≥ 2 reflections, as many as that and ``call_tokens`` allow, and n ≤ merge_fan_in·m / p
    with ⌊√n⌋ ≤ merge_fan_in leaves no more lists than one call merges; where code joins the lists, nothing is
    bound. Otherwise the shards are the paper's: k = ⌊√n⌋ (§3.1) of about 2·√n reflections, which fit while
    n ≤ (call_tokens / (2·record_tokens))².
    """
    if view.call_tokens is None or view.record_tokens is None or not view.record_tokens > 0:
        return None
    if view.fan_in is None:
        root = view.call_tokens / (_PAPER_COPIES * view.record_tokens)
        # Beyond N every batch fits, and squaring could overflow.
        limit = view.trainset_size if root > view.trainset_size else int(max(0.0, root) ** 2)
    elif view.merge_fan_in is None:
        return None
    else:
        held = max(2, int(min(float(view.fan_in), view.call_tokens / view.record_tokens)))
        limit = min(view.merge_fan_in * held // view.copies, (view.merge_fan_in + 1) ** 2 - 1)
    reason = (
        f"two levels of calls that hold {view.call_tokens} tokens each "
        f"take in {max(1, limit)} reflections of {view.record_tokens:.0f} tokens"
    )
    return Bound("context", limit, reason)


def variance(view: BatchView, least: int) -> Bound | None:
    """Bound by what tells the mean score to a standard error of 0.05: variance / 0.05², never below ``least``."""
    found = view.score_variance
    if found is None or not math.isfinite(found) or found <= 0:
        return None
    needed = math.ceil(round(found / _STANDARD_ERROR**2, 9))
    reason = f"{needed} scores of variance {found:.3g} give their mean to a standard error of {_STANDARD_ERROR}"
    return Bound("variance", max(least, needed), reason)


def budget(view: BatchView) -> Bound | None:
    """Bound by what the budget leaves.

    An update of n examples with c children costs n rollouts of parents, c·min(n, s) of the children's checks
    with a screen of s examples, and a validation of each child that passes: n ≤ (remaining − v·validation) /
    (1 + c), or where that is above s, n ≤ remaining − v·validation − c·s. v is the validations that it may come
    to, or as many as what remains can pay for beside three examples: more would shrink the last batches to
    single examples. At least 1, since the budget stops a run and not the controller.
    """
    if view.remaining_rollouts is None:
        return None
    each, most = 1 + view.children, max(1, view.children)
    few = each * min(_FEW, view.trainset_size)
    affordable = (view.remaining_rollouts - few) // view.validation_size if view.validation_size > 0 else most
    validations = max(1, min(most, affordable))
    left = view.remaining_rollouts - validations * view.validation_size
    limit = left // each
    if view.screen is not None and limit >= view.screen:
        limit = left - view.children * view.screen
    reason = (
        f"{view.remaining_rollouts} rollouts are left: {validations} × {view.validation_size} for validation, "
        f"the rest for a parent and {view.children} children"
    )
    return Bound("budget", limit, reason)
