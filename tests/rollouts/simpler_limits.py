"""What simpler limits than the adaptive one would do: ``python -m tests.rollouts.simpler_limits``.

2,000 tasks of 5 s on scripted services, by the clock of ``test_adaptive``: no language model. Each
cell has seconds, calls in flight, and 429s; means of five seeds.
"""

from __future__ import annotations

import math
import sys
from statistics import mean
from typing import Any

from combee_dspy.rollouts import Adaptive
from combee_dspy.rollouts._chance import Chance, Finding
from combee_dspy.rollouts._limits import Dispatch, Limit, Outcome
from tests.rollouts.test_adaptive import World

NEVER = 10**9


class Aimd(Limit):
    """Slow start; 429s halve the limit once a round trip; each round trip without adds one."""

    def __init__(self, start: int, ceiling: int) -> None:
        super().__init__(start)
        self.ceiling, self.floor = ceiling, 1
        self.flying = self.left = self.ends = 0
        self.starting = True

    def started(self, lane: str, now: float) -> Dispatch:
        self.flying += 1
        return super().started(lane, now)

    def rejected(self, retry_after: float | None, now: float, effect: int | None = None) -> None:
        if 0 < (retry_after or 0) < math.inf:
            self.held_until = max(self.held_until, now + min(retry_after or 0, 120.0))
        if not self.left:
            self.left, self.floor, self.starting = self.current, self.current // 2, False
        self.cut()

    def cut(self) -> None:
        self.move(self.floor)

    def move(self, limit: int) -> None:
        self.current = max(1, min(limit, self.ceiling))

    def ended(self, dispatch: Dispatch, outcome: Outcome, now: float, calls: int = 1) -> None:
        full = self.flying >= self.current
        self.flying -= 1
        if self.left:
            self.left -= 1
        elif full:
            self.ends += 1
            if self.starting or self.ends >= self.current:
                self.ends = 0
                self.move(self.current + 1)


class ByOne(Aimd):
    """The same, but each 429 lowers the limit by one, to half at least."""

    def cut(self) -> None:
        self.move(max(self.floor, self.current - 1))


class NoChance(Chance):
    """Takes each refusal for that of a full service."""

    def cut(self, limit: int) -> None:
        """Open no window."""

    def refused(self) -> bool:
        return True

    def answered(self, calls: int, limit: int) -> Finding | None:
        return None


class HeedsAll(Adaptive):
    def __init__(self, start: int, ceiling: int) -> None:
        super().__init__(start, ceiling)
        self._chance = NoChance()


class HeedsNoSeconds(Adaptive):
    def _sample(self, dispatch: Dispatch, seconds: float) -> bool:
        return True


LIMITS = {
    "today": Adaptive,
    "without latency": HeedsNoSeconds,
    "without chance": HeedsAll,
    "AIMD": Aimd,
    "AIMD, by one": ByOne,
}
SERVICES: dict[str, dict[str, Any]] = {
    "37 slots, refuses": {"slots": lambda now: 37},
    "150 slots, refuses": {"slots": lambda now: 150},
    "37 slots, 18 after 150 s": {"slots": lambda now: 37 if now < 150 else 18},
    "37 slots, 80 after 150 s": {"slots": lambda now: 37 if now < 150 else 80},
    "refuses 1 in 100 by chance": {"slots": lambda now: NEVER, "chance": 0.01, "ceiling": 64},
    "refuses 5 in 100 by chance": {"slots": lambda now: NEVER, "chance": 0.05, "ceiling": 64},
    "refuses 30 in 100 by chance": {"slots": lambda now: NEVER, "chance": 0.3, "ceiling": 64},
    "37 slots, queues": {"slots": lambda now: 37, "rejects": False},
}


def main() -> None:
    write("service", *LIMITS)
    for service, arguments in SERVICES.items():
        cells = []
        for make in LIMITS.values():
            worlds = [World(**arguments, make=make, seed=seed).run() for seed in range(5)]
            seconds, flying = (mean(each) for each in zip(*map(measured, worlds), strict=True))
            refused = mean(world.rejected for world in worlds)
            cells.append(f"{seconds:,.0f} s, {flying:.0f}, {refused:,.0f}")
        write(service, *cells)


def write(*cells: str) -> None:
    sys.stdout.write(f"| {' | '.join(cells)} |\n")


def measured(world: World) -> tuple[float, float]:
    return world.now, world.mean(0.3, 0.9)


if __name__ == "__main__":
    main()
