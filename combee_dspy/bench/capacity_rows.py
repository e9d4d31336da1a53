"""What the search for a service's capacity is measured with, and what comes out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from combee_dspy.exceptions import ArgumentValueError

__all__ = ["CLIENTS", "MODES", "CapacityOptions", "CapacityRow", "Phase", "table"]

MODES = ("reject", "queue", "changing")
CLIENTS = ("plain", "pooled")

_WITHIN = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityOptions:
    """What to measure.

    Attributes:
        modes: What the service does beyond its slots (:data:`MODES`).
        clients: ``"plain"``: ``dspy.LM``; ``"pooled"``: :func:`combee_dspy.lms.pooled`.
        slots: Calls served at once.
        rollouts: Rollouts of each run, of one call each; at least 20.
        seconds: Median simulated seconds of a call; they are lognormal with sigma 0.35.
        retry_after: Simulated seconds of ``Retry-After``.
        time_scale: Wall seconds for one simulated second, above 0.
        ceiling: The most tasks in flight.
        seed: The service's seed.
    """

    modes: tuple[str, ...] = MODES
    clients: tuple[str, ...] = CLIENTS
    slots: int = 37
    rollouts: int = 1500
    seconds: float = 2.0
    retry_after: float = 1.0
    time_scale: float = 1.0
    ceiling: int = 512
    seed: int = 0

    def validate(self) -> None:
        """Check the fields.

        Raises:
            ArgumentValueError: A field is out of range.
        """
        for name, given, known in (("modes", self.modes, MODES), ("clients", self.clients, CLIENTS)):
            if not given or set(given) - set(known):
                raise ArgumentValueError(name, given, "is empty or names none", f"Known: {', '.join(known)}.")
        if self.rollouts < 20:
            raise ArgumentValueError("rollouts", self.rollouts, "is below 20", "The search needs a few round trips.")
        if self.slots < 2:
            raise ArgumentValueError("slots", self.slots, "is below 2", "Half of the slots must be at least one.")
        if not self.time_scale > 0:
            raise ArgumentValueError("time_scale", self.time_scale, "is not above 0", "Without time nothing is full.")


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of a run with one capacity, without its warm-up.

    Attributes:
        slots: Calls that the service served at once.
        in_flight: Mean of rollouts in flight, those that wait for ``Retry-After`` included.
        busy: Mean of slots in use, by the service's own count.
        rejected: Requests answered 429.
        rollouts_per_second: Rollouts that ended, a simulated second.
        ideal_per_second: What the service could have answered: slots ÷ mean seconds of a call.
    """

    slots: int
    in_flight: float
    busy: float
    rejected: int
    rollouts_per_second: float
    ideal_per_second: float

    @property
    def within(self) -> bool:
        """Whether what was in flight is within 10 % of the slots."""
        return abs(self.in_flight / self.slots - 1) <= _WITHIN


@dataclass(frozen=True, slots=True)
class CapacityRow:
    """One run.

    Attributes:
        mode: What the service did beyond its slots.
        client: How it was called.
        phases: One, or two where the capacity changed.
        failed: Rollouts that failed.
        rejected: Requests answered 429 in all, warm-up included.
        peak: Most rollouts in flight.
        seconds: Simulated seconds of the whole run.
        limits: (simulated seconds, limit, reason) of every change.
    """

    mode: str
    client: str
    phases: tuple[Phase, ...]
    failed: int
    rejected: int
    peak: int
    seconds: float
    limits: tuple[tuple[float, int, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**asdict(self), "within": [phase.within for phase in self.phases]}


def table(rows: Iterable[CapacityRow]) -> str:
    """Return a Markdown table, one line per phase."""
    lines = ["| service | client | slots | in flight | busy | within 10 % | 429s | rollouts/s | of ideal | failed |"]
    lines.append("| --- | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: |")
    lines += [
        f"| {row.mode} | {row.client} | {phase.slots} | {phase.in_flight:.1f} | {phase.busy:.1f} "
        f"| {'yes' if phase.within else 'no'} | {phase.rejected} | {phase.rollouts_per_second:.2f} "
        f"| {phase.rollouts_per_second / phase.ideal_per_second:.0%} | {row.failed} |"
        for row in rows
        for phase in row.phases
    ]
    return "\n".join(lines)
