"""When waiting rollouts go, and what that rule makes of a service: a simulation."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from combee_dspy.rollouts import Batching
from combee_dspy.streams import derive_seed

__all__ = ["BatchSimulation", "describe_batching", "simulate_batches"]

_JOBS = 2_000


@dataclass(frozen=True, slots=True)
class BatchSimulation:
    """What a rule did to simulated rollouts.

    Attributes:
        sizes: Of the batches, in order.
        rate: Rollouts a second.
        utilisation: Share of the service's slots that were busy, from 0 to 1.
    """

    sizes: tuple[int, ...]
    rate: float
    utilisation: float

    def histogram(self) -> list[tuple[int, float]]:
        """Return sizes of batches, and the share of batches that had them."""
        count = len(self.sizes)
        return [(size, self.sizes.count(size) / count) for size in sorted(set(self.sizes))]


def describe_batching(rule: Batching) -> str:
    """Return a rule in words."""
    if rule == Batching():
        return "each as soon as a slot is free"
    full = "the service can take all" if rule.queue == "target" else f"{rule.queue} wait"
    parts = [f"when {full}"]
    if rule.seconds is not None:
        parts.append(f"after {rule.seconds:g} s")
    if rule.variance is not None:
        parts.append(f"where the variance of the latest scores is below {rule.variance:g}")
    return ", ".join(parts)


def simulate_batches(
    seconds: Sequence[float], workers: int, slots: int, rule: Batching, seed: int = 0
) -> BatchSimulation:
    """Simulate the rule on measured rollouts.

    Every worker asks for a rollout, waits for its release and its end, and asks again; how long
    each takes is drawn from ``seconds``. Scores are not simulated, so the rule's part on their
    variance never fires.
    """
    import numpy as np

    drawn = iter(
        np.random.default_rng(derive_seed(seed, "plan", "batches"))
        .choice(seconds, _JOBS + slots)
        .tolist()
    )
    running: list[float] = []
    queue, now, sizes = deque([0.0] * workers), 0.0, list[int]()
    while sum(sizes) < _JOBS:
        free, due = slots - len(running), None
        if queue and free:
            oldest = now - queue[0]
            stalled = not running and oldest >= rule.patience
            if stalled or rule.releases(len(queue), oldest, slots):
                sizes.append(min(free, len(queue)))
                for _ in range(sizes[-1]):
                    queue.popleft()
                    heapq.heappush(running, now + max(next(drawn), 1e-6))
                continue
            due = (rule.patience if rule.seconds is None else rule.seconds) - oldest
            due = due if rule.seconds is not None or not running else None
        # A hair later than due: rounding must not make it wait for nothing for ever.
        now = min(([running[0]] if running else []) + ([] if due is None else [now + due + 1e-6]))
        while running and running[0] <= now:
            queue.append(heapq.heappop(running))
    rate = sum(sizes) / now if now else 0.0
    return BatchSimulation(tuple(sizes), rate, min(1.0, rate * fmean(seconds) / slots))
