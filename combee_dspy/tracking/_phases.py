"""What a run is doing now, from the effects and events that its journal has."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping

from combee_dspy.events import BatchPlanned, CandidateValidated, Event, UpdateEnded

# What an effect is for, as the phases name it; NULL for what none counts.
ACTIVITY = """CASE purpose WHEN 'train' THEN 'rollouts' WHEN 'screen' THEN 'screened'
    WHEN 'validation' THEN purpose WHEN 'heldout' THEN 'held-out'
    ELSE CASE WHEN key GLOB 'call/*/read/*' THEN 'reads'
    WHEN key GLOB 'call/*/merge/*' THEN 'merges' WHEN key GLOB 'call/*' THEN 'proposals' END END"""


class Doing:
    """Counts what is under way, phase by phase.

    A journal holds what is over: each phase is shown as what it has of what it will have. Rows
    whose result is cached are not bought again, so that a phase may end below its total.

    Args:
        sizes: Rows by split.

    Attributes:
        totals: Rows that each phase runs a candidate on.
    """

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.totals = {
            "validation": sizes.get("validation", 0),
            "held-out": sizes.get("heldout", 0),
        }
        self._updates: dict[int, int] = {}  # size of its minibatch, by update that is under way
        self._counts: Counter[tuple[int, str]] = Counter()  # by update and activity
        # Examples, by activity and candidate.
        self._rows = {name: defaultdict[str, set[str]](set) for name in self.totals}
        self._validated: set[str] = set()

    def add_effect(self, step: int, activity: str | None, candidate: str, example: str) -> None:
        """Take one effect into account."""
        if activity in self._rows:
            self._rows[activity][candidate].add(example)
        elif activity:
            self._counts[step, activity] += 1

    def add_event(self, step: int, event: Event) -> None:
        """Take one event into account."""
        match event:
            case BatchPlanned(size=size):
                self._updates[step] = size
            case UpdateEnded():
                self._updates.pop(step, None)
            case CandidateValidated(candidate=candidate):
                self._validated.add(candidate)

    def __str__(self) -> str:
        """Return the phases that are under way; empty for none."""
        if heldout := self._rows["held-out"]:
            return self._of_total("held-out", heldout.values())
        phases = [
            f"update {step}: {', '.join(self._parts(step))}" for step in sorted(self._updates)
        ]
        rows = self._rows["validation"]
        if under_way := [rows[name] for name in rows if name not in self._validated]:
            phases.append(self._of_total("validation", under_way))
        return "; ".join(phases)

    def _parts(self, step: int) -> Iterator[str]:
        size = self._updates[step]
        counts = {name: count for (at, name), count in sorted(self._counts.items()) if at == step}
        rollouts = counts.pop("rollouts", 0)
        yield f"{min(rollouts, size)} of {size} rollouts" if rollouts else "begins"
        yield from (f"{name} {count}" for name, count in counts.items())

    def _of_total(self, split: str, rows: Collection[set[str]]) -> str:
        return f"{split} {sum(map(len, rows))} of {len(rows) * self.totals[split]}"
