"""What a scan over many reflections came to beside what its plan says, and how both grow. Pure."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from combee_dspy.lms import LatencyLaw
from combee_dspy.lms.simulated import CallRecord
from combee_dspy.streams import derive

__all__ = ["MEMORY_LIMIT_MIB", "ScaleRow", "Slope", "Step", "predicted_seconds", "slope_of", "steps_of"]

MEMORY_LIMIT_MIB = 1024.0
"""The most memory that a scan of 10,000 reflections may take, DSPy's import included."""

_DRAWS = 50
_FEWEST = 3
_SHORTEN = "ShortenLessons"


@dataclass(frozen=True, slots=True)
class Step:
    """Calls that were made at once.

    Attributes:
        asks: What they ask: the signature's name.
        calls: How many.
        tokens: Mean tokens that one of them wrote.
    """

    asks: str
    calls: int
    tokens: float


@dataclass(frozen=True, slots=True)
class Slope:
    """How a figure grows with the number of reflections: its exponent, from a line through the logarithms.

    Attributes:
        value: 1 where it grows in proportion, 0 where it does not grow.
        low: Lower end of the 95 % t interval.
        high: Upper end.
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class ScaleRow:
    """One scan.

    Attributes:
        aggregator: Its name.
        reflections: n.
        planned: LM calls per level, as planned before the scan.
        steps: What was called, one step after the other.
        simulated_seconds: From the scan's first request to its last answer, on the service's clock;
            ``None`` where nothing waits.
        predicted_seconds: What the steps take on such a service (see :func:`predicted_seconds`); ``None`` likewise.
        seconds: Wall seconds of the scan: planning, waiting, parsing, joining.
        cpu_seconds: CPU seconds of the client meanwhile.
        retention_seconds: Wall seconds to measure what was kept.
        retention_cpu_seconds: CPU seconds of that.
        tokens: Prompt and completion tokens of the scan by role.
        base_mib: Memory that the process had taken before the scan: imports and reflections.
        peak_mib: The most that it held, retention and edit included.
        lessons: Lessons of the result.
        covered: Share of the reflections that the result covers, as measured from texts.
        failed: Nodes that failed.
        refused: Why the edit was refused; ``None`` where it was made.
        notes: What was cut or given up on the way.
    """

    aggregator: str
    reflections: int
    planned: tuple[int, ...]
    steps: tuple[Step, ...]
    simulated_seconds: float | None
    predicted_seconds: float | None
    seconds: float
    cpu_seconds: float
    retention_seconds: float
    retention_cpu_seconds: float
    tokens: dict[str, tuple[int, int]]
    base_mib: float
    peak_mib: float
    lessons: int
    covered: float | None
    failed: int
    refused: str | None
    notes: tuple[str, ...] = ()

    @property
    def depth(self) -> int:
        """Levels of calls that read or merge; a joined list that is shortened afterwards counts apart."""
        return sum(step.asks != _SHORTEN for step in self.steps)

    @property
    def planned_depth(self) -> int:
        """Levels that were planned to make calls."""
        return sum(calls > 0 for calls in self.planned)

    @property
    def calls(self) -> int:
        """LM calls of the scan."""
        return sum(step.calls for step in self.steps)

    @property
    def holds(self) -> bool:
        """Whether depth, memory and outcome are as they should be."""
        fits = self.depth <= self.planned_depth and self.peak_mib < MEMORY_LIMIT_MIB
        return fits and not self.failed and self.refused is None


def steps_of(batches: Sequence[Sequence[Any]], calls: Sequence[CallRecord]) -> tuple[tuple[Step, ...], int]:
    """Return the steps of a scan, and how many of the service's calls are theirs.

    Args:
        batches: Signature and number of calls of each step, in order.
        calls: What the service served, the scan's own calls first.
    """
    ordered = sorted(calls, key=lambda call: call.arrived)
    steps, first = [], 0
    for asks, count in batches:
        served = ordered[first : first + count]
        first += count
        mean = sum(call.completion_tokens for call in served) / len(served) if served else 0.0
        if count:
            steps.append(Step(str(asks), int(count), mean))
    return tuple(steps), first


def predicted_seconds(steps: Sequence[Step], slots: int, law: LatencyLaw, seed: int) -> float:
    """Return the expected seconds of steps that wait for each other, each of calls made at once.

    The longest of so many draws of the latency law where all calls of a step
    have a slot; else the calls take slots in turn as they come free. Fifty
    draws, of the law alone: what the service itself drew is not used.

    Args:
        steps: What is called; calls of a step write its mean tokens.
        slots: Calls served at once.
        law: The service's latency law.
        seed: Where the draws come from.
    """
    total = 0.0
    for position, step in enumerate(steps):
        median = law.ttft + step.tokens / law.tokens_per_second
        for draw in range(_DRAWS):
            stream = derive(seed, "scale prediction", position, draw)
            free = [0.0] * min(slots, step.calls)
            for _ in range(step.calls):
                heapq.heapreplace(free, free[0] + median * stream.lognormvariate(0.0, law.sigma))
            total += max(free) / _DRAWS
    return total


def slope_of(points: Iterable[tuple[float, float | None]]) -> Slope | None:
    """Return the exponent of y ∝ n^slope, by least squares on the logarithms.

    Args:
        points: (n, y); those where y is ``None`` or not above 0 are left out.

    Returns:
        The exponent, or ``None`` where fewer than three points are left.
    """
    from scipy.stats import linregress, t

    kept = [(math.log(n), math.log(y)) for n, y in points if y is not None and y > 0]
    if len(kept) < _FEWEST:
        return None
    fit = linregress([x for x, _ in kept], [y for _, y in kept])
    half = float(t.ppf(0.975, len(kept) - 2)) * float(fit.stderr)
    return Slope(float(fit.slope), float(fit.slope) - half, float(fit.slope) + half)
