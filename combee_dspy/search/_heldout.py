"""Pins the held-out set before a run's first rollout, and reads it after the last."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from combee_dspy.evaluation import (
    CostPerPoint,
    Heldout,
    HeldoutIdentity,
    PairedDifference,
    Receipt,
    SerialBaseline,
    heldout_identity,
    pin,
)
from combee_dspy.events import HeldoutRead, PointPriced, WarningRaised
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.hashing import digest_of
from combee_dspy.journal import Reader, journal_file
from combee_dspy.search._candidates import VALIDATION, Candidate, EffectPlace, Splits
from combee_dspy.search._effects import Effects
from combee_dspy.search._receipts import Receipts, journal_receipts

logger = logging.getLogger("combee_dspy")


def note_unheld(splits: Splits, metric: str, receipts: Receipts) -> None:
    """Leave the receipt of a run without held-out rows: no later run may hold out what it learned.

    Raises:
        HeldoutMovedError: It would learn from what its study has read.
    """
    identity = _identity([], metric, splits)
    receipts.check(identity)
    receipts.keep(Receipt("pinned", receipts.run, _now(), identity))


class HeldoutReading:
    """Pins the held-out rows, and reads them at the end. Each look counts.

    Args:
        heldout: As the user gave it.
        splits: The data.
        prints: Fingerprints of what a rollout depends on.
        effects: The way to the world.
        receipts: Where receipts are found and left.

    Raises:
        HeldoutMovedError: A study that has read them has moved them since.
        ArgumentValueError: The target is finer than what the rows can tell.
    """

    def __init__(
        self,
        heldout: Heldout,
        splits: Splits,
        prints: Mapping[str, str],
        effects: Effects,
        receipts: Receipts,
    ) -> None:
        self._effects, self._rows, self._receipts = effects, splits.heldout, receipts
        self._identity = _identity(heldout.rows, prints["metric"], splits)
        self._setting = digest_of(prints[name] for name in ("program", "lms", "adapter"))[:16]
        self._baseline = _baseline(heldout.baseline, self._identity, self._setting)
        self._margin = heldout.margin
        warnings = receipts.check(self._identity)
        pinned = pin(heldout, self._identity, self._looks(), self._setting)
        self._pin = dataclasses.replace(pinned, warnings=(*pinned.warnings, *warnings))
        logger.info(self._pin.summary())
        for text in self._pin.warnings:
            effects.emit(WarningRaised(text))
        receipts.keep(self._pin.receipt("pinned", receipts.run, _now()))

    def _looks(self) -> list[Receipt]:
        """Return all looks but the serial baseline's: to compare with it, its rows must be read."""
        _, serial = self._baseline or (None, None)
        return [
            receipt
            for receipt in self._receipts.looks()
            if serial is None or receipt.run != serial.run
        ]

    async def read(
        self, before: Candidate, after: Candidate, *, seed: int, models: Mapping[str, str]
    ) -> tuple[PairedDifference, Receipt]:
        """Run the student and the result on every held-out row.

        A reading of the same two programs that this run has is returned. The receipt names the
        seed, and ``models`` by role.

        Raises:
            HeldoutMovedError: A row was edited in place, or another run has read other rows
                meanwhile.
            BudgetReached: There is no time for it.
        """
        run, programs = self._receipts.run, (before.id, after.id)
        for receipt in self._receipts.own:
            if (
                receipt.stage == "read"
                and receipt.programs == programs
                and receipt.difference is not None
            ):
                return receipt.difference, receipt
        self._effects.purse.check_time()
        self._pin.check_same()
        await self._effects.log.written()
        # Others may have looked since it was pinned.
        self._receipts.check(self._identity)
        self._pin = self._pin.after(self._looks())
        self._receipts.keep(self._pin.receipt("begun", run, _now(), programs))
        scores = await asyncio.gather(*(self._scores(candidate) for candidate in (before, after)))
        self._pin.check_same()
        receipt = self._pin.read(run, _now(), programs, *scores, seed=seed, models=models)
        self._receipts.keep(receipt)
        difference = receipt.difference
        if difference is None:
            raise RuntimeError("a reading left no difference")
        self._effects.emit(
            HeldoutRead(
                before=difference.before,
                after=difference.after,
                difference=difference.difference,
                low=difference.low,
                high=difference.high,
                n=difference.n,
                look=receipt.looks + 1,
            )
        )
        return difference, receipt

    def per_point(self, receipt: Receipt, after: float, point: float) -> CostPerPoint | None:
        """Return what each point above the serial baseline has cost, and write it to the journal.

        ``None`` without a baseline, or where it was scored otherwise.

        Args:
            receipt: What this run has read.
            after: Held-out score of the result.
            point: How much of a score one point is.
        """
        if self._baseline is None:
            return None
        baseline, serial = self._baseline
        log = self._effects.log
        if serial is not None and (count := receipt.rescored(serial)):
            text = (
                f"The serial baseline's metric scored {count} rows of the untouched program"
                " otherwise"
            )
            log.emit(WarningRaised(f"{text}: no cost per point is stated."))
            return None
        same = serial is not None and serial.models == receipt.models
        versus = receipt.against(serial) if serial is not None and same else None
        with Reader(log.journal.path) as reader:
            spent = _of_run(reader, log.number, after)
        cost = CostPerPoint.of(
            baseline, after, spent, point=point, versus=versus, margin=self._margin
        )
        log.emit(PointPriced(**dataclasses.asdict(cost), text=str(cost)))
        return cost

    async def _scores(self, candidate: Candidate) -> list[float]:
        place = EffectPlace("heldout")
        wanted = [
            self._effects.rollout(candidate, row, place, lane=VALIDATION) for row in self._rows
        ]
        return [rollout.score for rollout in await asyncio.gather(*wanted)]


def _baseline(
    baseline: SerialBaseline | Path | None, identity: HeldoutIdentity, setting: str
) -> tuple[SerialBaseline, Receipt | None] | None:
    """Return the serial baseline's figures, and its receipt where a journal has them.

    Of a journal it is the last run that read the same rows by a comparable metric.
    """
    if not isinstance(baseline, Path):
        return None if baseline is None else (baseline, None)
    with Reader(journal_file(baseline)) as reader:
        for run, receipt in reversed(journal_receipts(reader)):
            same = receipt.heldout.content == identity.content
            # By another metric's code, whether it scores the same shows on the untouched program
            # alone.
            comparable = receipt.heldout.metric == identity.metric or receipt.setting == setting
            if same and comparable and receipt.stage == "read" and receipt.difference is not None:
                return _of_run(reader, run, receipt.difference.after), receipt
    raise ArgumentValueError(
        "Heldout.baseline",
        str(baseline),
        "holds no run that has read these held-out rows by this metric",
        "Give the log_dir of a serial run on the same split, or SerialBaseline(score=…).",
    )


def _of_run(reader: Reader, run: int, score: float) -> SerialBaseline:
    # Loaded where there is a baseline only.
    from combee_dspy.tracking._spending import spent_of

    return SerialBaseline(score, **spent_of(reader, run))


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")


def _identity(heldout: Sequence[Any], metric: str, splits: Splits) -> HeldoutIdentity:
    train, validation = ([row.hash for row in rows] for rows in (splits.train, splits.validation))
    return heldout_identity(heldout, metric, train=train, validation=validation)
