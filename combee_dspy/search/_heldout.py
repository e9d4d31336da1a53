"""The held-out set of a run: pinned before the first rollout, read once after the last."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from combee_dspy.evaluation import (
    CostPerPoint,
    Heldout,
    HeldoutIdentity,
    PairedDifference,
    Receipt,
    SerialBaseline,
    check_unmoved,
    check_unread,
    heldout_identity,
    pin,
)
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.journal import Reader, RunLog, journal_file
from combee_dspy.search._candidates import Candidate, Place, Splits
from combee_dspy.search._effects import VALIDATION, Effects
from combee_dspy.search._receipts import Receipts

logger = logging.getLogger("combee_dspy")

__all__ = ["HeldoutReading", "cut_readings", "earlier_receipts", "note_unheld"]


def earlier_receipts(reader: Reader) -> list[tuple[int, Receipt]]:
    """Return the receipts in a journal, which is one study, with the number of their run, oldest first."""
    rows = reader.rows("SELECT run, data FROM event WHERE kind = 'receipt' ORDER BY id")
    return [(row["run"], Receipt.from_json(row["data"])) for row in rows]


def cut_readings(reader: Reader, run: int) -> set[str]:
    """Return when readings of a run began that ended for lack of time, before there was a score."""
    rows = reader.rows("SELECT data ->> '$.at' FROM event WHERE run = ? AND kind = 'unread'", (run,))
    return {row[0] for row in rows}


def note_unheld(
    splits: Splits, metric: str, log: RunLog, receipts: Sequence[tuple[int, Receipt]], elsewhere: Receipts | None
) -> None:
    """Leave the receipt of a run that holds nothing out: what it learned from, no later run may hold out.

    Raises:
        HeldoutMovedError: It would learn from what its study has read.
    """
    identity = _identity([], metric, splits)
    others = [receipt for run, receipt in receipts if run != log.number]
    check_unmoved([*others, *(elsewhere.earlier(identity) if elsewhere is not None else ())], identity)
    if log.number not in {run for run, _ in receipts}:
        _keep(log, elsewhere, Receipt("pinned", f"run {log.number}", _now(), identity))


def _keep(log: RunLog, elsewhere: Receipts | None, receipt: Receipt) -> None:
    if elsewhere is not None:
        elsewhere.keep(receipt)
    log.emit("receipt", receipt.to_dict())


class HeldoutReading:
    """Pins the held-out rows, and reads them once. Receipts are events of the run's journal.

    Args:
        heldout: As the user gave it.
        splits: The data.
        metric: The metric's identity.
        effects: The way to the world: a run that has begun to read buys nothing more for its search.
        receipts: Those in the journal, with the number of their run.
        elsewhere: Where a run whose journal goes with it keeps them as well; ``None`` for nowhere.
        cut: When readings of this run began that were cut off before there was a score: these bind nobody.

    Raises:
        HeldoutMovedError: A study that has read them has moved them since.
        ArgumentValueError: The target is finer than what the rows can tell.
    """

    def __init__(
        self,
        heldout: Heldout,
        splits: Splits,
        metric: str,
        effects: Effects,
        receipts: Sequence[tuple[int, Receipt]],
        elsewhere: Receipts | None,
        cut: Collection[str] = (),
    ) -> None:
        self._effects, self._rows, number = effects, splits.heldout, effects.log.number
        self._elsewhere = elsewhere
        self._run = f"run {number}"
        self._own = [
            receipt
            for run, receipt in receipts
            if run == number and not (receipt.stage == "begun" and receipt.at in cut)
        ]
        self._began = ""
        others = [receipt for run, receipt in receipts if run != number]
        identity = _identity(heldout.rows, metric, splits)
        self._pin = pin(heldout, identity, [*others, *(elsewhere.earlier(identity) if elsewhere is not None else ())])
        logger.info(self._pin.summary())
        for text in self._pin.warnings:
            effects.log.emit("warning", {"text": text})
        self._keep(self._pin.pinned(self._run, _now()))
        self._baseline, self._margin = _baseline(heldout.baseline, identity), heldout.margin
        if begun := [one.at for one in self._own if one.stage == "begun"]:
            remedy = "Give it the budget it had, or another log_dir."
            effects.sealed = f"this run read it at {begun[-1]} and would go on now. {remedy}"

    async def read(
        self, before: Candidate, after: Candidate, *, seed: int, models: Mapping[str, str]
    ) -> tuple[PairedDifference, Receipt]:
        """Run the student and the result on every held-out row, once; ``models`` by role and the seed are noted.

        Raises:
            HeldoutReadError: This run has read them with other programs.
            HeldoutMovedError: A row was edited in place.
            BudgetReached: There is no time for it.
        """
        programs = (before.id, after.id)
        check_unread(self._own, self._run, programs)
        for receipt in self._own:
            if receipt.stage == "read" and receipt.difference is not None:
                return receipt.difference, receipt
        self._effects.purse.in_time()
        self._pin.check_same()
        self._began = _now()
        self._keep(self._pin.begun(self._run, self._began, programs))
        scores = await asyncio.gather(*(self._scores(one) for one in (before, after)))
        self._pin.check_same()
        receipt = self._pin.read(self._run, _now(), programs, *scores, seed=seed, models=models)
        self._keep(receipt)
        found = receipt.difference
        if found is None:
            raise RuntimeError("a reading left no difference")
        data = {name: getattr(found, name) for name in ("before", "after", "difference", "low", "high", "n")}
        self._effects.log.emit("heldout", data, single=True)
        return found, receipt

    def cut_off(self) -> None:
        """Note that a reading was cut off before there was a score."""
        if self._began:
            self._effects.log.emit("unread", {"at": self._began})

    def per_point(self, receipt: Receipt, after: float, point: float) -> CostPerPoint | None:
        """Return what each point above the serial baseline has cost, and leave it in the journal; ``None`` for none.

        Args:
            receipt: What this run has read.
            after: Held-out score of the result.
            point: How much of a score one point is.
        """
        if self._baseline is None:
            return None
        baseline, serial = self._baseline
        log = self._effects.log
        same = serial is not None and serial.models == receipt.models
        versus = receipt.against(serial) if serial is not None and same else None
        with Reader(log.journal.path) as reader:
            spent = _of_run(reader, log.number, after)
        found = CostPerPoint.of(baseline, after, spent, point=point, versus=versus, margin=self._margin)
        log.emit("per_point", {**dataclasses.asdict(found), "text": str(found)})
        return found

    async def _scores(self, candidate: Candidate) -> list[float]:
        place = Place("heldout")
        wanted = [self._effects.rollout(candidate, row, place, lane=VALIDATION) for row in self._rows]
        return [one.score for one in await asyncio.gather(*wanted)]

    def _keep(self, receipt: Receipt) -> None:
        if not any(one.stage == receipt.stage and one.programs == receipt.programs for one in self._own):
            _keep(self._effects.log, self._elsewhere, receipt)


def _baseline(
    given: SerialBaseline | Path | None, identity: HeldoutIdentity
) -> tuple[SerialBaseline, Receipt | None] | None:
    """Return a serial baseline: figures as given, or of the last run of a journal that read the same rows, and how."""
    if not isinstance(given, Path):
        return None if given is None else (given, None)
    with Reader(journal_file(given)) as reader:
        for run, receipt in reversed(earlier_receipts(reader)):
            same = (receipt.heldout.content, receipt.heldout.metric) == (identity.content, identity.metric)
            if same and receipt.stage == "read" and receipt.difference is not None:
                return _of_run(reader, run, receipt.difference.after), receipt
    raise ArgumentValueError(
        "Heldout.baseline", str(given), "holds no run that has read these held-out rows by this metric",
        "Give the log_dir of a serial run on the same split, or SerialBaseline(score=…).",
    )  # fmt: skip


def _of_run(reader: Reader, run: int, score: float) -> SerialBaseline:
    from combee_dspy.tracking._spending import spent_of  # a reader, which a run without a baseline does not need

    return SerialBaseline(score, **spent_of(reader, run))


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


def _identity(heldout: Sequence[Any], metric: str, splits: Splits) -> HeldoutIdentity:
    train, validation = ([row.hash for row in rows] for rows in (splits.train, splits.validation))
    return heldout_identity(heldout, metric, train=train, validation=validation)
