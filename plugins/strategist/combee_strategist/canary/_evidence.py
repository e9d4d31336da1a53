"""What the journals of all servers say of a trial; each row is read once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from combee_dspy.events import PairScored
from combee_dspy.journal import Reader, RunHistory
from combee_strategist.canary._events import ChangedJournals
from combee_strategist.canary._registry import Version

__all__ = ["TrialEvidence", "serves"]

_ENDS = "SELECT (SELECT max(id) FROM event), (SELECT max(id) FROM effect)"
_SHADOWS = (
    "SELECT min(started), max(started) FROM effect WHERE id > ? AND id <= ? AND candidate = ?"
    " AND purpose = 'shadow' AND error IS NULL"
)


@dataclass(slots=True)
class _Span:
    """The first and the last of some moments, in Unix time."""

    first: float | None = None
    last: float | None = None

    def add(self, *times: float | None) -> None:
        known = [at for at in (self.first, self.last, *times) if at is not None]
        self.first, self.last = min(known, default=None), max(known, default=None)

    @property
    def hours(self) -> float:
        if self.first is None or self.last is None:
            return 0.0
        return (self.last - self.first) / 3600


@dataclass(slots=True)
class _Trial:
    """What was read of a trial, and how far, by journal: events and effects."""

    journals: ChangedJournals
    read: dict[Path, tuple[int, int]] = field(default_factory=dict)
    differences: dict[str, float] = field(default_factory=dict)
    pairs: _Span = field(default_factory=_Span)
    shadows: _Span = field(default_factory=_Span)


class TrialEvidence:
    """What the journals of all servers say of a trial; a look reads what came since the last one.

    For one thread.

    Args:
        folder: Where the journals lie.
        name: The program's name in the registry.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._key = (0, 0, "")
        self._trial = _Trial(ChangedJournals(folder))

    def look(self, production: int, challenger: Version) -> None:
        """Read what is new of a trial; of another one than before, everything."""
        key = (production, challenger.number, challenger.sha256)
        if key != self._key:
            self._key, self._trial = key, _Trial(ChangedJournals(self._folder))
        for reader in self._trial.journals.open():
            if serves(reader, self._name):
                self._read(reader)

    @property
    def differences(self) -> Iterable[float]:
        """Challenger minus incumbent, of each request that both answered and that was scored."""
        return self._trial.differences.values()

    @property
    def pair_hours(self) -> float:
        """Hours from the first of these requests to the last."""
        return self._trial.pairs.hours

    @property
    def shadow_hours(self) -> float:
        """Hours from the first shadow to the last, labelled or not."""
        return self._trial.shadows.hours

    def _read(self, reader: Reader) -> None:
        trial, (production, number, sha256) = self._trial, self._key
        events, effects = trial.read.get(reader.path, (0, 0))
        ends = tuple(end or 0 for end in reader.rows(_ENDS)[0])
        for entry in RunHistory(reader).entries(PairScored, after=events, upto=ends[0]):
            pair = entry.event
            if (pair.incumbent, pair.sha256) == (production, sha256):
                trial.differences.setdefault(pair.request, pair.after - pair.before)
                trial.pairs.add(pair.at)
        trial.shadows.add(*reader.rows(_SHADOWS, (effects, ends[1], f"v{number}"))[0])
        trial.read[reader.path] = (ends[0], ends[1])


def serves(reader: Reader, name: str) -> bool:
    """Return whether a journal is of a server of this program."""
    return bool(reader.rows("SELECT id FROM run WHERE name = ?", (name,)))
