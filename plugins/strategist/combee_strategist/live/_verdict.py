"""Whether a text may go on trial: no worse on held-out rows and on rows of earlier weeks. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import dspy

from combee_dspy.evaluation import PairedDifference, paired_difference
from combee_dspy.hashing import digest_of, row_hash
from combee_dspy.lessons import certainty
from combee_strategist.live._options import Gate

__all__ = ["GateRow", "GateRows", "choose_rows", "compare", "refusal"]

# A slice has few rows: two lost and none won are enough to refuse, one is not.
_SLICE_CLEAR = 0.875
_CONFIDENCE = 0.9  # two-sided: each end fails one time in twenty


@dataclass(frozen=True, slots=True)
class GateRow:
    """A row that teaches nothing.

    Attributes:
        example: Inputs and labels.
        slice: Of its inputs.
        at: When its label came; 0 for a row that the team gave at the start.
        trusted: Whether the team vouches for its labels.
    """

    example: dspy.Example
    slice: str
    at: float = 0.0
    trusted: bool = False

    @property
    def id(self) -> str:
        """Hash of inputs and labels."""
        return row_hash(self.example)[:16]

    @property
    def words(self) -> str:
        """All that it says."""
        return " ".join(map(str, self.example.toDict().values()))


@dataclass(frozen=True, slots=True)
class GateRows:
    """The rows that a challenger must pass.

    Attributes:
        heldout: Of the latest days.
        retain: Of earlier weeks.
        dated: How many earlier rows are set aside, since their slice has drifted.
    """

    heldout: tuple[GateRow, ...]
    retain: tuple[GateRow, ...]
    dated: int = 0

    @property
    def all(self) -> tuple[GateRow, ...]:
        """Both sets."""
        return (*self.heldout, *self.retain)

    def without(self, rows: Collection[str]) -> GateRows:
        """Return the rows but those of these ids, which count as dated."""
        heldout, retain = (
            tuple(row for row in part if row.id not in rows) for part in (self.heldout, self.retain)
        )
        return GateRows(heldout, retain, self.dated + len(rows))


def choose_rows(
    rows: Iterable[GateRow], gate: Gate, now: float, drifts: Mapping[str, float]
) -> GateRows:
    """Return the rows of a gate: the newest held-out ones, and as many earlier ones of each slice.

    Args:
        rows: All that teach nothing.
        gate: How many, and how old.
        now: The time.
        drifts: When each slice last drifted: its earlier rows say what is right no longer.
    """
    distinct = {row.id: row for row in rows}
    current = [row for row in distinct.values() if row.at >= drifts.get(row.slice, 0.0)]
    newest = sorted(current, key=lambda row: (-row.at, row.id))
    recent = [row for row in newest if row.at >= now - gate.recent * 86_400]
    heldout = recent[: gate.rows]
    chosen = {row.id for row in heldout}
    by_slice: dict[str, list[GateRow]] = defaultdict(list)
    earlier = [row for row in current if row.id not in chosen]
    for row in sorted(earlier, key=lambda row: digest_of([str(gate.seed), row.id])):
        by_slice[row.slice].append(row)
    ranked = sorted(
        (rank, name) for name, members in by_slice.items() for rank in range(len(members))
    )
    retain = tuple(by_slice[name][rank] for rank, name in ranked[: gate.retain])
    return GateRows(tuple(heldout), retain, len(distinct) - len(current))


def refusal(
    sets: Mapping[str, tuple[Sequence[GateRow], Sequence[float], Sequence[float]]], gate: Gate
) -> str:
    """Return why a text is refused, the empty text where it is not.

    On each set the lower end of the paired difference must lie above the margin, or above what so
    many rows without any change would give: few rows refuse at the first loss. In a slice, over
    both sets, it must not be clear that more rows are lost than won.

    Args:
        sets: By name: rows, scores before and scores after.
        gate: The margin, and a seed.
    """
    won: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, (rows, before, after) in sets.items():
        if not rows:
            continue
        paired = compare(before, after, gate)
        unchanged = compare([0.0] * len(rows), [0.0] * len(rows), gate)
        if paired.low < -max(gate.margin, -unchanged.low):
            return (
                f"{name}: {paired.before:.3f} before and {paired.after:.3f} after on {len(rows)}"
                f" rows, perhaps {paired.low:+.3f}"
            )
        for row, old, new in zip(rows, before, after, strict=True):
            won[row.slice][0] += new > old
            won[row.slice][1] += new < old
    for name, (wins, losses) in sorted(won.items()):
        if certainty(losses, wins) >= _SLICE_CLEAR:
            return f"slice {name}: {losses} rows lost and {wins} won"
    return ""


def compare(before: Sequence[float], after: Sequence[float], gate: Gate) -> PairedDifference:
    """Return the paired difference of two texts on the same rows."""
    return paired_difference(before, after, confidence=_CONFIDENCE, seed=gate.seed)
