"""Checks for batch controllers: what is known in, a size out."""

from __future__ import annotations

import random
from typing import Any

from combee_dspy.controllers import BatchController, BatchView
from combee_dspy.records import BatchDecision, Clamp, Measurement
from combee_dspy.streams import derive
from combee_dspy.testing._kit import attempt, expect, expect_pure


def _views() -> list[BatchView]:
    edges = [
        BatchView(update=0, trainset_size=1),
        BatchView(update=0, trainset_size=7, remaining_rollouts=0, validation_size=5),
        BatchView(update=0, trainset_size=100_000, workers=256),
        BatchView(
            update=4,
            trainset_size=50,
            seen=60,
            planned=(8,) * 4,
            measurements=(Measurement(8, 0.0),) * 4,
        ),
        BatchView(
            update=2,
            trainset_size=50,
            seen=16,
            planned=(8,) * 2,
            measurements=(Measurement(8, 2.0),) * 2,
        ),
    ]
    return [*edges, *(_view(derive(0, "controller-views", number)) for number in range(60))]


def _view(stream: random.Random) -> BatchView:
    size = stream.choice([1, 2, 5, 6, 12, 17, 40, 240, 1000, 9999])
    finished = stream.randrange(8)
    sizes = [stream.randint(1, max(1, size // 2)) for _ in range(finished)]
    slope = stream.uniform(-0.2, 1.2)
    return BatchView(
        update=finished,
        trainset_size=size,
        seen=sum(sizes),
        planned=tuple(sizes),
        measurements=tuple(
            Measurement(bs, 5 * bs**slope * stream.uniform(0.8, 1.2)) for bs in sizes
        ),
        workers=stream.choice([1, 8, 64]),
        capacity=stream.choice([None, 1, 16, 256]),
        remaining_rollouts=stream.choice([None, 0, 1, 30, 500, 10_000]),
        validation_size=stream.choice([0, 10, 60]),
        children=stream.choice([1, 3]),
        score_variance=stream.choice([None, 0.0, 0.01, 0.25]),
    )


def _plan(strategy: BatchController, view: BatchView) -> Any:
    mend = "any view that a run can meet needs a size; what is None is not known"
    return attempt(lambda: strategy.plan(view), f"`plan` returns for {view}", mend)


def check_sizes_are_within_trainset_and_budget(strategy: BatchController) -> None:
    """At least one example; at most all of them, and what the budget leaves."""
    for view in _views():
        decision = _plan(strategy, view)
        right = isinstance(decision, BatchDecision)
        expect(
            right,
            "a `BatchDecision`",
            f"{type(decision).__name__}",
            'return BatchDecision(size, "why")',
        )
        size, left = decision.size, view.remaining_rollouts
        most = view.trainset_size if left is None else max(1, min(left, view.trainset_size))
        right = isinstance(size, int) and not isinstance(size, bool) and 1 <= size <= most
        mend = "clip to view.trainset_size and view.remaining_rollouts, and round down"
        expect(right, f"an integer from 1 to {most}", f"size {size!r} for {view}", mend)


def check_says_why(strategy: BatchController) -> None:
    """A size without a reason cannot be argued with."""
    for view in _views():
        decision = _plan(strategy, view)
        reason = isinstance(decision.reason, str) and decision.reason.strip()
        expect(reason, "a reason in one sentence", f"{decision.reason!r} for {view}")
        clamps = decision.clamps
        right = isinstance(clamps, tuple) and all(
            isinstance(c, Clamp) and c.before != c.after and c.name and c.reason for c in clamps
        )
        wanted = "clamps as a tuple of `Clamp`s that each changed the size and say why"
        expect(
            right,
            wanted,
            f"{clamps!r:.300} for {view}",
            "record a bound only where it changed the size",
        )


def check_is_a_pure_function_of_the_view(strategy: BatchController) -> None:
    """A resumed or replayed run must decide the same."""
    expect_pure(strategy, _plan, _views())
