"""What a run is doing now, and how long its budget lasts, from the effects and events that its
journal has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from combee_dspy.events import BatchPlanned, CandidateValidated, Event, UpdateEnded
from combee_dspy.tracking._text import amount

__all__ = ["Doing", "left_of", "shares_of", "spoken"]

_TELLING = (10.0, 0.05)  # seconds, and share of the budget: before that a forecast is a guess


class Doing:
    """Counts what is under way, phase by phase.

    A journal knows what is over: each phase is shown as what it has of what it will have. Rows
    whose result was known are not bought again, so that a phase may end below its total.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._updates: dict[int, int] = {}  # sizes of the updates that are under way
        self._trained: Counter[int] = Counter()
        self._reads: Counter[tuple[int, str]] = Counter()
        self._screened: Counter[int] = Counter()
        self._scored: dict[str, dict[str, set[str]]] = {"validation": {}, "heldout": {}}
        self._validated: set[str] = set()
        self.updates = 0

    def effect(
        self, key: str, purpose: str | None, step: int, candidate: str, example: str
    ) -> None:
        """Take one effect into account."""
        if purpose == "train":
            self._trained[step] += 1
        elif purpose == "screen":
            self._screened[step] += 1
        elif purpose in self._scored:
            self._scored[purpose].setdefault(candidate, set()).add(example)
        elif key.startswith("call/"):
            part = key.split("/")[3:4]
            self._reads[
                step,
                "reads" if part == ["read"] else "merges" if part == ["merge"] else "proposals",
            ] += 1

    def event(self, step: int, event: Event) -> None:
        """Take one event into account."""
        match event:
            case BatchPlanned(size=size):
                self._updates[step] = size
            case UpdateEnded():
                self._updates.pop(step, None)
                self.updates += 1
            case CandidateValidated(candidate=candidate):
                self._validated.add(candidate)

    def __str__(self) -> str:
        return "; ".join(self._phases())

    def _phases(self) -> Iterator[str]:
        if self._scored["heldout"]:
            yield f"held-out {self._of(self._scored['heldout'], self._sizes.get('heldout', 0))}"
            return
        for step, size in sorted(self._updates.items()):
            parts = (
                [f"{min(self._trained[step], size)} of {size} rollouts"]
                if self._trained[step]
                else ["begins"]
            )
            parts += [
                f"{what} {number}"
                for (at, what), number in sorted(self._reads.items())
                if at == step
            ]
            parts += [f"screened {self._screened[step]}"] if self._screened[step] else []
            yield f"update {step}: {', '.join(parts)}"
        under_way = {
            name: examples
            for name, examples in self._scored["validation"].items()
            if name not in self._validated
        }
        if under_way:
            yield f"validation {self._of(under_way, self._sizes.get('validation', 0))}"

    def _of(self, examples: Mapping[str, set[str]], size: int) -> str:
        return f"{sum(map(len, examples.values()))} of {len(examples) * size}"


def shares_of(limits: Mapping[str, float | None], spent: Mapping[str, float]) -> dict[str, float]:
    """Return which share of each limit is used, at most 1; nothing of what nobody counts."""
    return {
        name: min(1.0, spent[name] / limit) if limit else 1.0
        for name, limit in limits.items()
        if limit is not None and name in spent
    }


def left_of(
    shares: Mapping[str, float], before: Mapping[str, float], seconds: float
) -> float | None:
    """Return the seconds until the first limit is reached at the speed so far; ``None`` before that
    can be told.

    Args:
        shares: Used now.
        before: Used when the clock began.
        seconds: Since then.
    """
    gained = {name: share - before.get(name, 0.0) for name, share in shares.items()}
    if seconds < _TELLING[0] or not gained or max(gained.values()) < _TELLING[1]:
        return None
    return min((1 - shares[name]) * seconds / share for name, share in gained.items() if share > 0)


def spoken(seconds: float) -> str:
    """Return a time as a person says it."""
    for unit, size in (("s", 1), ("min", 60)):
        if seconds < 90 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{amount(seconds / 3600)} h"
