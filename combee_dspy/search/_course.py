"""The course of a run: search, choose, read the held-out set, report, each within its time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import dspy

from combee_dspy._private import detailed_results
from combee_dspy.costs import serving, totals
from combee_dspy.evaluation import CalibrationResult, CostPerPoint, Receipt, perfect_score_of
from combee_dspy.events import ProgramReturned, RunStopped, WarningRaised
from combee_dspy.report import CombeeReport
from combee_dspy.search._candidates import Member
from combee_dspy.search._describe import bare_state, models_by_role, specs
from combee_dspy.search._effects import Effects
from combee_dspy.search._ending import describe_untraced
from combee_dspy.search._run import Run
from combee_dspy.search._time_budget import BudgetReached
from combee_dspy.tracking import page_file


@dataclass(frozen=True, slots=True)
class _Reading:
    """The held-out figures; ``unread`` is the reason why there are none, where time was short."""

    receipt: Receipt | None = None
    per_point: CostPerPoint | None = None
    unread: str = ""


async def find_program(run: Run) -> tuple[dspy.Module, CombeeReport]:
    """Search, and return the program with its report attached."""
    for text in (*run.task.splits.warnings, *run.pool.warnings):
        run.log.emit(WarningRaised(text))
    run.log.emit(run.task.seed.proposed((), "seed"))
    run.loop.student.promise()
    clock = Clock(run.effects)
    with run.pool.gepa.experiment:  # W&B gets the last tests, too
        try:
            await clock.hold(partial(run.preflight.run, run.loop.run))
        except BudgetReached as reached:
            await run.loop.cut_off(str(reached))
        run.log.emit(RunStopped(run.loop.reason))
        calibrated = run.loop.judging.result()
        try:
            chosen = await clock.hold(run.loop.keeper.result)
            await run.loop.ending.note_end(run.loop.committed, run.loop.reason)
        except BudgetReached:
            chosen = run.pool.best
    reading = await _read_heldout(run, clock, chosen)
    report = _make_report(run, chosen, calibrated, reading)
    purse = run.effects.purse
    for text in (*report.warnings, *purse.passed(), *purse.doubts()):
        if text not in run.effects.warnings:
            run.log.emit(WarningRaised(text))
    return _build(run, chosen, report), report


def _build(run: Run, chosen: Member, report: CombeeReport) -> dspy.Module:
    """Return the program of a candidate, with all that DSPy's users read of it."""
    settings, build = run.task.settings, partial(run.task.settings.artifact.build, run.task.student)
    program = serving(build(chosen.candidate.texts))
    program._compiled = True
    if settings.privacy.texts != "hashes" and (state := bare_state(program)) is not None:
        run.log.emit(ProgramReturned(run.effects.texts.scrubbed(state)))
    program.combee_report = report
    if settings.track_stats:
        builder: Any = SimpleNamespace(build_program=build)  # all that DSPy reads of its adapter
        program.detailed_results = detailed_results(
            run.pool.gepa.state, builder, settings.log_dir, settings.seed
        )
    return program


async def _read_heldout(run: Run, clock: Clock, chosen: Member) -> _Reading:
    """Run student and result on the held-out set, if there is one and time for it."""
    if run.reading is None:
        return _Reading()
    settings = run.task.settings
    run.effects.purse.reserve = 0.0
    read = partial(
        run.reading.read,
        run.task.seed,
        chosen.candidate,
        seed=settings.seed,
        models=models_by_role(settings),
    )
    try:
        difference, receipt = await clock.hold(read)
    except BudgetReached as reached:
        unread = f"The held-out set was not read to its end, for lack of time: {reached}."
        return _Reading(unread=unread)
    scores = [score for member in run.pool.members for score in member.scores.values()]
    point = perfect_score_of(settings.perfect_score, scores) / 100
    return _Reading(receipt, run.reading.per_point(receipt, difference.after, point))


def _make_report(
    run: Run, chosen: Member, calibrated: CalibrationResult | None, reading: _Reading
) -> CombeeReport:
    task, settings, splits = run.task, run.task.settings, run.task.splits
    failures, journal = run.log.failures(), run.log.journal.path
    page = page_file(journal, run.log.number, task.name)
    on_disk = settings.log_dir is not None
    warnings = [
        *splits.warnings,
        *run.pool.warnings,
        *run.loop.judging.failures.warnings(failures),
        *(() if reading.receipt is None else reading.receipt.warnings),
        *([reading.unread] if reading.unread else []),
        *_doubts(run, calibrated),
    ]
    return CombeeReport(
        reason=run.loop.reason,
        seed_score=(run.pool.members[0] if chosen.index else chosen).mean,
        best_score=chosen.mean,
        rollouts=run.log.rollouts(),
        recorded=run.log.rollouts("recorded"),
        traces="" if splits.traces is None else str(splits.traces),
        validated=bool(splits.validation),
        updates=run.loop.committed,
        seconds=run.effects.purse.seconds,
        costs=totals(run.log.usage()),
        failures=failures,
        heldout=None if reading.receipt is None else reading.receipt.difference,
        unread=reading.unread,
        receipt=reading.receipt,
        per_point=reading.per_point,
        looks_recorded=run.receipts.place,
        calibration=calibrated,
        texts=dict(chosen.candidate.texts),
        digests=dict(splits.digests),
        decisions=tuple(run.loop.batches.decisions),
        specs=specs(settings),
        models=models_by_role(settings),
        seed=settings.seed,
        warnings=tuple(dict.fromkeys(warnings)),
        journal=str(journal) if on_disk else "",
        page=str(page) if on_disk else "",
    )


def _doubts(run: Run, calibrated: CalibrationResult | None) -> list[str]:
    """Return what the search itself makes unfit for claims, in sentences."""
    doubts = []
    if untraced := run.loop.ending.untraced(run.loop.committed):
        doubts.append(describe_untraced(untraced))
    if len(run.pool.members) == 1 and not run.loop.keeper.proposed:
        doubts.append(
            f"No new text was ever proposed, so this run supports no claim: {run.loop.reason}."
        )
    elif len(run.pool.members) == 1 and run.task.is_trunk:
        doubts.append(
            "No new text was validated, so nothing was compared and the student is returned:"
            f" {run.loop.reason}. Give a larger budget, or a smaller valset."
        )
    if calibrated is not None and not calibrated.passed:
        doubts.append(
            "The judge is not shown to agree with its reference, so this run supports no"
            f" claim: {calibrated.reason}."
        )
    return doubts


T = TypeVar("T")

# Seconds after the end of the time: then effects in flight are abandoned, and then their waiters.
_GRACE, _SETTLED = 0.8, 1.0
_LOOK = 0.5  # seconds after which to look again how much is left: a reserve may be set meanwhile


@dataclass(eq=False)
class Clock:
    """Holds a search, and then its reading of the held-out set, to the seconds of the budget.

    Once they are over no effect begins. Effects in flight have most of a second to end; then they
    are abandoned. Lives on the search's loop.
    """

    effects: Effects

    def __post_init__(self) -> None:
        self._purse = self.effects.purse

    async def hold(self, work: Callable[[], Awaitable[T]]) -> T:
        """Do some work, and wait for all its effects.

        Raises:
            BudgetReached: Its time was over before it had a result.
        """
        left = self._purse.left
        if left is None or left <= self._purse.reserve:
            # Where the time was over before, results are read from the journal: however long that
            # takes.
            self.effects.buyer.over = "" if left is None else self._purse.time_is_over()
            result = await work()
            await self.effects.drain()
            return result
        self.effects.buyer.over = ""
        limit = asyncio.timeout(None)
        watcher = asyncio.ensure_future(self._watch(limit))
        try:
            async with limit:
                result = await work()
                await self.effects.drain()
                return result
        except BudgetReached:
            await self.effects.drain(self._since_over(_GRACE))
            raise
        except TimeoutError:
            if not limit.expired():
                raise
            raise BudgetReached(self.effects.buyer.over) from None
        finally:
            watcher.cancel()

    async def _watch(self, limit: asyncio.Timeout) -> None:
        while (left := self._since_over(0.0)) > 0:
            await asyncio.sleep(min(left, _LOOK))
        self.effects.buyer.over = self._purse.time_is_over()
        await self.effects.drain(max(0.0, self._since_over(_GRACE)))
        await asyncio.sleep(max(0.0, self._since_over(_SETTLED)))
        limit.reschedule(asyncio.get_running_loop().time())

    def _since_over(self, seconds: float) -> float:
        """Return how long it takes until the time has been over for so many seconds."""
        left = self._purse.left
        return 0.0 if left is None else left - self._purse.reserve + seconds
