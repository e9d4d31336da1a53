"""What a run says of itself at its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from combee_dspy.costs import totals
from combee_dspy.evaluation import CalibrationResult, CostPerPoint, PairedDifference, Receipt
from combee_dspy.report import CombeeReport
from combee_dspy.search._candidates import Member
from combee_dspy.search._describe import models_by_role, specs
from combee_dspy.search._ending import describe_untraced
from combee_dspy.tracking import page_file

if TYPE_CHECKING:
    from combee_dspy.search._run import Run

__all__ = ["RunEnding", "make_report"]


@dataclass(frozen=True, slots=True)
class RunEnding:
    """What a run came to.

    Attributes:
        chosen: What it returns, with the scores that decided.
        calibrated: Whether the metric agrees with its reference; ``None`` where nobody asked.
        held, receipt: The held-out figures and their receipt; ``None`` where there are none.
        per_point: What a point on the held-out set has cost, where that can be told.
        unread: Why the held-out set was not read to its end; empty where it was.
    """

    chosen: Member
    calibrated: CalibrationResult | None
    held: PairedDifference | None = None
    receipt: Receipt | None = None
    per_point: CostPerPoint | None = None
    unread: str = ""


def make_report(run: Run, ending: RunEnding) -> CombeeReport:
    """Return the report of a run that has ended."""
    task, settings, splits = run.task, run.task.settings, run.task.splits
    chosen, receipt, calibrated = ending.chosen, ending.receipt, ending.calibrated
    failures, path = run.log.failures(), run.shared.journal.path
    warnings = [
        *splits.warnings,
        *run.failures.warnings(failures),
        *(receipt.warnings if receipt is not None else ()),
        *([ending.unread] if ending.unread else []),
    ]
    if untraced := run.loop.ending.untraced(run.loop.committed):
        warnings.append(describe_untraced(untraced))
    if len(run.pool.members) == 1 and not run.keeper.proposed:
        warnings.append(
            f"No new text was ever proposed, so this run supports no claim: {run.loop.reason}."
        )
    if calibrated is not None and not calibrated.passed:
        warnings.append(
            "The judge is not shown to agree with its reference, so this run supports no"
            f" claim: {calibrated.reason}."
        )
    return CombeeReport(
        reason=run.loop.reason,
        seed_score=(run.pool.members[0] if chosen.index else chosen).mean,
        best_score=chosen.mean,
        rollouts=run.log.rollouts(),
        recorded=run.log.rollouts("recorded"),
        traces="" if splits.traces is None else str(splits.traces),
        validated=bool(splits.validation),
        updates=run.loop.committed,
        seconds=run.purse.seconds,
        costs=totals(run.log.usage()),
        failures=failures,
        heldout=ending.held,
        unread=ending.unread,
        receipt=receipt,
        per_point=ending.per_point,
        looks_recorded=run.receipts.place,
        calibration=calibrated,
        texts=dict(chosen.candidate.texts),
        digests=dict(splits.digests),
        decisions=tuple(run.loop.batches.decisions),
        specs=specs(settings),
        models=models_by_role(settings),
        seed=settings.seed,
        warnings=tuple(dict.fromkeys(warnings)),
        journal="" if settings.log_dir is None else str(path),
        page=("" if settings.log_dir is None else str(page_file(path, run.log.number, task.name))),
    )
