"""A run again: what depended on time is taken from the record of an earlier run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from combee_dspy.controllers import BatchController, BatchView
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import BatchDecision, Clamp, PowerLawFit
from combee_dspy.rollouts.scheduling import Recorded, ScheduleRecord

__all__ = ["SCHEDULE", "Decisions", "decision_of", "read_schedule", "schedule_file"]

SCHEDULE = "schedule"
"""Stem of the files in a run's ``log_dir`` that hold its schedule, one per process."""

_BATCH, _GUESS, _STOP = "batch", "guess", "stop"
_REMEDY = "Give the log_dir of an earlier run, or its schedule file."


class Decisions:
    """What a run decides by the clock, the service or the bill.

    That is how large a minibatch is or may be, when the run ends, and whether a limit on cost was reached there.

    Each decision is noted for the record. With a record, the decision is the one found there, and nobody is asked;
    where the record has none any more, the run decides by itself. Used by the thread that runs the loop.

    Args:
        note: Keeps a decision.
        record: What to follow; ``None`` for nothing.
    """

    def __init__(self, note: Callable[[Recorded], None], record: ScheduleRecord | None = None) -> None:
        self._note = note
        found = () if record is None else record.decisions
        # The last word counts: a run that was killed and resumed has decided some of it twice.
        self._found = {
            kind: {one.iteration: decision_of(one.values) for one in found if one.decision == kind}
            for kind in (_BATCH, _GUESS)
        }
        # An end that the run was resumed beyond is none; where sizes are not planned nothing tells of that.
        last = next((one for one in reversed(found) if one.decision in (_BATCH, _STOP)), None)
        self._stop = last if last is not None and last.decision == _STOP else None
        self._told = False

    def planned(self, controller: BatchController) -> BatchController:
        """Return a controller whose decisions are noted, and taken from the record where it has them."""
        return _Planned(controller, _BATCH, self._found[_BATCH], self._note)

    def guessed(self, controller: BatchController) -> BatchController:
        """Return the same for what is only expected of the controller: what is begun on that is paid for."""
        return _Planned(controller, _GUESS, self._found[_GUESS], self._note)

    def stop(self, iteration: int, ask: Callable[[], str | None]) -> str | None:
        """Return why the run ends here by time, cost or anything else that its settings do not tell, or ``None``.

        Args:
            iteration: Iterations finished.
            ask: Asks the rule.
        """
        if self._stop is None:
            return ask()
        return str(self._stop.values.get("reason", "")) if iteration >= self._stop.iteration else None

    def cost_reached(self, iteration: int, ask: Callable[[], bool]) -> bool:
        """Return whether a limit on cost is reached where the run ends.

        Args:
            iteration: Iterations finished.
            ask: Asks the rule.
        """
        if self._stop is None or iteration < self._stop.iteration:
            return ask()
        return self._stop.values.get("cost_reached") is True

    def stopped(self, iteration: int, reason: str, *, cost_reached: bool = False) -> None:
        """Note where the run has ended, once, and whether that left its finalists without a further draw."""
        if not self._told:
            self._told = True
            self._note(Recorded(_STOP, iteration, {"reason": reason, "cost_reached": cost_reached}))


class _Planned(BatchController):
    """See :meth:`Decisions.planned`."""

    name: ClassVar[str] = "recorded"

    def __init__(
        self,
        controller: BatchController,
        decided: str,
        known: Mapping[int, BatchDecision],
        note: Callable[[Recorded], None],
    ) -> None:
        self.controller = controller
        self.decided = decided
        self.known = known
        self.note = note

    def plan(self, view: BatchView) -> BatchDecision:
        """Return the recorded decision, else the controller's."""
        decision = self.known.get(view.iteration) or self.controller.plan(view)
        self.note(Recorded(self.decided, view.iteration, asdict(decision)))
        return decision


def decision_of(data: Mapping[str, Any]) -> BatchDecision:
    """Return a batch decision from plain data.

    Raises:
        ArgumentValueError: The data is no decision.
    """
    try:
        size, reason = data["size"], data["reason"]
        fit = PowerLawFit(**data["fit"]) if data.get("fit") else None
        clamps = tuple(Clamp(**clamp) for clamp in data.get("clamps", ()))
    except (KeyError, TypeError) as error:
        raise ArgumentValueError("replay", dict(data), "holds a batch decision that cannot be read", _REMEDY) from error
    if type(size) is not int or size < 1 or not isinstance(reason, str):
        raise ArgumentValueError("replay", dict(data), "holds a batch decision that cannot be used", _REMEDY)
    return BatchDecision(size, reason, fit, clamps)


def read_schedule(where: str | os.PathLike[str], log_dir: str | os.PathLike[str] | None) -> ScheduleRecord:
    """Read what a run has recorded.

    Args:
        where: Its ``log_dir``, or one of its schedule files.
        log_dir: Where the run that follows it is to be recorded.

    Raises:
        ArgumentValueError: There is no schedule, it cannot be read, or the run would write where it reads.
    """
    path = Path(where)
    if log_dir is not None and path.is_dir() and Path(log_dir).resolve() == path.resolve():
        remedy = "Give another log_dir, or none: with this one the run would be resumed."
        raise ArgumentValueError("replay", str(where), "is the log_dir of this run too", remedy)
    files = sorted(path.glob(f"{SCHEDULE}-*.jsonl")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise ArgumentValueError("replay", str(where), "holds no schedule", _REMEDY)
    record = ScheduleRecord()
    for file in files:
        record = record + ScheduleRecord.read(file)
    return record


def schedule_file(folder: Path) -> Path:
    """Return the file for this process's schedule; those of earlier processes are kept. Makes the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 1
    while (path := folder / f"{SCHEDULE}-{number:03d}.jsonl").exists():
        number += 1
    return path
