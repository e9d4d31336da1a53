"""Whether a text may go on trial: no worse on held-out rows and on rows of earlier weeks. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import dspy

from combee_dspy.evaluation import PairedDifference, paired_difference
from combee_dspy.hashing import digest_of, row_hash
from combee_dspy.lessons import certainty
from combee_strategist.live._options import DAY, Gate

__all__ = ["GateResult", "GateRow", "choose_rows", "compare", "is_better", "refusal"]

# A slice has few rows: two lost and none won are enough to refuse, one is not.
_SLICE_CLEAR = 0.875
_GAIN_CLEAR = 0.95
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
class GateResult:
    """Scores of a row before and after a change."""

    row: GateRow
    before: float
    after: float

    @property
    def difference(self) -> float:
        """What the change gains."""
        return self.after - self.before


def choose_rows(rows: Iterable[GateRow], gate: Gate, now: float) -> dict[str, list[GateRow]]:
    """Return the newest rows as ``"held-out"``, and as many earlier ones of each slice as
    ``"retain"``.

    Args:
        rows: All that teach nothing.
        gate: How many, and how old.
        now: The time.
    """
    distinct = {row.id: row for row in rows}
    newest = sorted(distinct.values(), key=lambda row: (-row.at, row.id))
    recent = [row for row in newest if row.at >= now - gate.recent * DAY]
    heldout = {row.id: row for row in recent[: gate.rows]}
    by_slice: dict[str, list[GateRow]] = defaultdict(list)
    earlier = [row for row in newest if row.id not in heldout]
    for row in sorted(earlier, key=lambda row: digest_of([str(gate.seed), row.id])):
        by_slice[row.slice].append(row)
    ranked = sorted(
        (rank, name) for name, members in by_slice.items() for rank in range(len(members))
    )
    retain = [by_slice[name][rank] for rank, name in ranked[: gate.retain]]
    return {"held-out": list(heldout.values()), "retain": retain}


def refusal(sets: Mapping[str, Sequence[GateResult]], gate: Gate) -> str:
    """Return why a text is refused, the empty text where it is not.

    On each set the lower end of the paired difference must lie above the margin, or above what so
    many rows without any change would give: few rows refuse at the first loss. In a slice, over
    both sets, it must not be clear that more rows are lost than won.

    Args:
        sets: The results, by the name of their set.
        gate: The margin, and a seed.
    """
    for name, results in sets.items():
        if not results:
            continue
        paired = compare(results, gate)
        unchanged = paired_difference(
            [0.0] * len(results), [0.0] * len(results), confidence=_CONFIDENCE, seed=gate.seed
        )
        if paired.low < -max(gate.margin, -unchanged.low):
            return (
                f"{name}: {paired.before:.3f} before and {paired.after:.3f} after on"
                f" {len(results)} rows, perhaps {paired.low:+.3f}"
            )
    by_slice: dict[str, list[float]] = defaultdict(list)
    for result in chain.from_iterable(sets.values()):
        by_slice[result.row.slice].append(result.difference)
    for name, differences in sorted(by_slice.items()):
        wins = sum(difference > 0 for difference in differences)
        losses = sum(difference < 0 for difference in differences)
        if certainty(losses, wins) >= _SLICE_CLEAR:
            return f"slice {name}: {losses} rows lost and {wins} won"
    return ""


def is_better(results: Iterable[GateResult], *, clearly: bool) -> bool:
    """Return whether more rows are won than lost; ``clearly``: so many that chance gives no such
    gain.
    """
    differences = [result.difference for result in results]
    wins, losses = sum(gain > 0 for gain in differences), sum(gain < 0 for gain in differences)
    return wins > losses and certainty(wins, losses) >= (_GAIN_CLEAR if clearly else 0.0)


def compare(results: Sequence[GateResult], gate: Gate) -> PairedDifference:
    """Return the paired difference of two texts on the same rows."""
    before, after = ([getattr(item, side) for item in results] for side in ("before", "after"))
    return paired_difference(before, after, confidence=_CONFIDENCE, seed=gate.seed)
