"""Says what a scheduler has decided: events for the run's hooks, lines for its record."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TextIO

from combee_dspy.events import Event, ScheduleDecided
from combee_dspy.rollouts.scheduling._record import Recorded, Released, head

__all__ = ["Announcer", "Decided"]

logger = logging.getLogger("combee_dspy")


@dataclass(frozen=True, slots=True)
class Decided:
    """A decision that is no release.

    Attributes:
        decision: ``"concurrency"`` or ``"preemption"``.
        values: What was decided; JSON values.
        iteration: The run's iteration.
    """

    decision: str
    values: dict[str, Any]
    iteration: int = 0


class Announcer:
    """Turns decisions into events and lines of a record. Called by one thread at a time.

    Refills of slots that came free, one task each, are told together: one
    event for all releases of one reason and iteration since the last time; and
    so are all changes of the limit.

    Args:
        emit: Hears the events; ``None`` for no one.
        record: The file to write, which is replaced; ``None`` for none.

    Raises:
        OSError: The file cannot be opened.
    """

    def __init__(self, emit: Callable[[Event], None] | None, record: str | PathLike[str] | None) -> None:
        self._emit = emit
        self._file: TextIO | None = None
        self._serial = 0
        self._ending: BaseException | None = None
        self.wanted = emit is not None or record is not None
        if record is not None:
            self._file = Path(record).open("w", encoding="utf-8")  # noqa: SIM115 - as long as the run
            self._file.write(head())

    def tell(self, notes: list[Any]) -> None:
        """Tell decisions, in order. Never raises: see :meth:`raise_ending`."""
        self._write(note for note in notes if isinstance(note, (Recorded, Released)))
        if self._emit is None:
            return
        for event in self._events([note for note in notes if not isinstance(note, Recorded)]):
            try:
                self._emit(event)
            except Exception:
                logger.warning("A decision of the scheduler could not be told", exc_info=True)
            except BaseException as ending:  # noqa: BLE001 - what ends a run is raised in the run's thread, not in ours
                self._ending = self._ending or ending

    def _write(self, lines: Iterable[Recorded | Released]) -> None:
        if self._file is None:
            return
        try:
            self._file.writelines(one.line() for one in lines)
            self._file.flush()
        except OSError as error:
            logger.warning("The schedule is recorded no further: %s", error)
            self._file = None

    def _events(self, notes: list[Any]) -> Iterable[ScheduleDecided]:
        changes = [note for note in notes if isinstance(note, Decided) and note.decision == "concurrency"]
        if changes:
            values = {**changes[-1].values, "before": changes[0].values["before"], "changes": len(changes)}
            yield self._event(changes[-1].iteration, "concurrency", values)
        group: list[Released] = []
        for note in notes:
            if isinstance(note, Decided) and note.decision == "concurrency":
                continue
            if group and not (isinstance(note, Released) and _together(group[-1], note)):
                yield self._flush(group)
                group = []
            if isinstance(note, Released):
                group.append(note)
            else:
                yield self._event(note.iteration, note.decision, note.values)
        if group:
            yield self._flush(group)

    def _flush(self, group: list[Released]) -> ScheduleDecided:
        first = group[0]
        lanes = Counter(lane for one in group for lane, _ in one.tasks)
        values = {
            "reason": first.reason,
            "batches": len(group),
            "first_batch": first.batch,
            "last_batch": group[-1].batch,
            "tasks": lanes.total(),
            "lanes": dict(lanes),
            "queued": first.queued,
            "limit": group[-1].limit,
        }
        return self._event(first.iteration, "flush", values)

    def _event(self, iteration: int, decision: str, values: dict[str, Any]) -> ScheduleDecided:
        self._serial += 1
        return ScheduleDecided(
            iteration=iteration, schedule_id=f"schedule-{self._serial:06d}", decision=decision, values=values
        )

    def raise_ending(self) -> None:
        """Raise what a hook raised to end the run, once.

        Raises:
            BaseException: That; no ``Exception``, which is logged.
        """
        ending, self._ending = self._ending, None
        if ending is not None:
            raise ending

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _together(one: Released, other: Released) -> bool:
    return (one.reason, one.iteration) == (other.reason, other.iteration) and (
        one.batch == other.batch or len(other.tasks) == 1
    )
