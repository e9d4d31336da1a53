"""One run: its parts, wired, and what it does from the probe to the report."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import dspy

from combee_dspy._private import detailed_results, make_adapter
from combee_dspy.costs import serving
from combee_dspy.evaluation import (
    evaluator_lms,
    perfect_score_of,
)
from combee_dspy.events import ProgramReturned, RunStopped, WarningRaised
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.journal import Reader, RunLog
from combee_dspy.lms import probe
from combee_dspy.lms.redact import forms_of, mask, secret_variables, secrets_of
from combee_dspy.report import CombeeReport
from combee_dspy.rollouts import lms_of, patient
from combee_dspy.search._books import Books, ServedBooks
from combee_dspy.search._budget import BudgetReached, Purse
from combee_dspy.search._candidates import Compilation, EffectPlace, SharedParts
from combee_dspy.search._clock import Clock
from combee_dspy.search._contexts import Contexts
from combee_dspy.search._custom import CustomProposer
from combee_dspy.search._describe import bare_state, lms_by_role, models_by_role
from combee_dspy.search._earlier import (
    earlier_costs,
    earlier_seconds,
    longest_call,
    lost_effects,
    replayed_decisions,
)
from combee_dspy.search._effects import Effects
from combee_dspy.search._failures import Failures
from combee_dspy.search._gepa import Gepa
from combee_dspy.search._growing import Growing
from combee_dspy.search._heldout import HeldoutReading, note_unheld
from combee_dspy.search._judging import Judging
from combee_dspy.search._loop import Loop
from combee_dspy.search._pareto import Pareto
from combee_dspy.search._pool import CandidatePool
from combee_dspy.search._privacy import Texts
from combee_dspy.search._propose import Proposer
from combee_dspy.search._receipts import Receipts
from combee_dspy.search._reporting import RunEnding, make_report
from combee_dspy.search._update import UpdateLearner
from combee_dspy.stopping import require_countable

__all__ = ["Run"]

_NO_LM = (
    "Run dspy.configure(lm=dspy.LM(…)), or program.set_lm(…). A program that brings its own:"
    " Validation(probe=False)."
)


class Run:
    """One run's parts, wired. Made once, used once."""

    def __init__(
        self, task: Compilation, shared: SharedParts, log: RunLog, prints: Mapping[str, str]
    ) -> None:
        settings, splits = task.settings, task.splits
        if task.heldout is not None and task.limits.seconds is not None:
            # A reading needs it, and loading it takes a second that would be the search's.
            importlib.import_module("scipy.stats")
        self.task, self.shared, self.log = task, shared, log
        with Reader(shared.journal.path) as reader:
            seconds, earlier = (
                earlier_seconds(reader, log.number),
                earlier_costs(reader, log.number),
            )
            lost = lost_effects(reader, log.number, longest_call(task))
        self.purse = Purse(
            task.limits, earlier, lost, seconds, charged=settings.search.replay is None
        )
        lms = {role: patient(lm) for role, lm in lms_by_role(settings).items()}
        own = [getattr(predictor, "lm", None) for predictor in task.student.predictors()]
        every_lm = [*lms.values(), dspy.settings.lm, *own, *evaluator_lms(settings.metric)]
        keys = {key for lm in every_lm if lm is not None for key in secrets_of(lm)}
        secrets = forms_of({*keys, *secret_variables()})
        self.effects = Effects(
            task,
            shared,
            log,
            self.purse,
            lms=lms,
            decided=replayed_decisions(settings.search.replay, task.name),
            texts=Texts(settings.privacy, partial(mask, secrets=secrets)),
        )
        self.gepa = Gepa(task, self.effects.programs)
        self.pool = CandidatePool(task, self.effects, self.gepa)
        self.failures = Failures(self.effects, settings.validation)
        self.books = Books(
            settings.artifact,
            task.seed,
            task.components,
            settings.search.build_weigher(),
            self.log.emit,
            settings.guards.removed,
        )
        contexts = Contexts(task, self.effects, self.pool, self.books)
        self.keeper = _make_keeper(contexts, self.gepa)
        self.judging = Judging(task, self.effects, self.failures)
        self.loop: Loop[Any, Any] = Loop(
            task,
            self.effects,
            UpdateLearner(task, self.effects, self.failures, contexts),
            self.keeper,
            self.pool,
            self.gepa,
            self.failures,
            self.judging,
            self.books,
        )
        self.receipts = Receipts(task.heldout, log, settings.log_dir)
        self.reading = None
        if task.heldout is None:
            # What this run learns from, no later run of the study may hold out.
            note_unheld(splits, prints["metric"], self.receipts)
        else:
            self.reading = HeldoutReading(task.heldout, splits, prints, self.effects, self.receipts)

    async def compiled(self) -> tuple[dspy.Module, CombeeReport]:
        """Run the search and return the program with its report attached."""
        settings, task, seed = self.task.settings, self.task, self.task.seed
        for text in task.splits.warnings:
            self.log.emit(WarningRaised(text))
        self.log.emit(seed.proposed((), "seed"))
        clock = Clock(self.effects, self.purse)
        with self.gepa.experiment:  # W&B hears of the last tests, too
            try:
                await clock.hold(self._search)
            except BudgetReached as reached:
                await self.loop.cut_off(str(reached))
            self.log.emit(RunStopped(self.loop.reason))
            calibrated = self.judging.decide()
            try:
                chosen = await clock.hold(self.keeper.result)
            except BudgetReached:
                chosen = self.pool.best
        ending = RunEnding(chosen, calibrated)
        if self.reading is not None:
            models, self.purse.reserve = models_by_role(settings), 0.0
            read = partial(
                self.reading.read, seed, chosen.candidate, seed=settings.seed, models=models
            )
            try:
                held, receipt = await clock.hold(read)
                scores = [score for member in self.pool.members for score in member.scores.values()]
                points = perfect_score_of(settings.perfect_score, scores) / 100
                per_point = self.reading.per_point(receipt, held.after, points)
                ending = replace(ending, held=held, receipt=receipt, per_point=per_point)
            except BudgetReached as reached:
                unread = f"The held-out set was not read to its end, for lack of time: {reached}."
                ending = replace(ending, unread=unread)
        report = make_report(self, ending)
        for text in (*report.warnings, *self.purse.passed(), *self.purse.doubts()):
            self.log.emit(WarningRaised(text))
        program = serving(settings.artifact.build(task.student, chosen.candidate.texts))
        program._compiled = True
        if settings.privacy.texts != "hashes" and (state := bare_state(program)) is not None:
            self.log.emit(ProgramReturned(self.effects.texts.scrubbed(state)))
        program.combee_report = report
        if settings.track_stats:
            # What DSPy reads of its adapter there.
            builder: Any = SimpleNamespace(
                build_program=partial(settings.artifact.build, task.student)
            )
            program.detailed_results = detailed_results(
                self.gepa.state, builder, settings.log_dir, settings.seed
            )
        return program, report

    async def _search(self) -> None:
        settings = self.task.settings
        if not lms_of(self.task.student):
            await self._probe()  # which says so, before a rollout
        try:
            require_countable(
                settings.budget,
                unpriced=settings.costs.unpriced(models_by_role(settings)),
                gpus=bool(settings.costs.gpus),
            )
        except ArgumentValueError:
            await self._probe()  # of a model that is misspelt it says that there is none
            raise
        await self.loop.run(self._probe)

    def best(self) -> dspy.Module | None:
        """Return the program that is best on validation so far; none before the student's
        validation.
        """
        if not self.pool.started:
            return None
        return serving(
            self.task.settings.artifact.build(self.task.student, self.pool.best.candidate.texts)
        )

    async def _probe(self) -> None:
        settings = self.task.settings
        if not settings.validation.probe:
            return
        lms = {role: lm for role, lm in lms_by_role(settings).items() if lm is not None}
        splits = self.task.splits
        runs = bool(splits.train or splits.validation or splits.heldout)
        if runs:
            lms.setdefault("task", dspy.settings.lm)
        present = {role: lm for role, lm in lms.items() if lm is not None}

        def ask() -> None:
            if runs and not lms_of(self.task.student):
                raise ArgumentValueError("lm", None, "is required: no LM answers", _NO_LM)
            probe(present)

        with suppress(BudgetReached):  # what comes next is told so as well
            await self.effects.work("probe", EffectPlace("probe"), "task", "probe", ask)


def _make_keeper(contexts: Contexts, gepa: Gepa) -> Growing | Pareto:
    """Return what keeps what a run learns."""
    task, effects, pool = contexts.task, contexts.effects, contexts.pool
    if task.is_trunk:
        proposer = Proposer(contexts) if task.edits_instructions else ServedBooks(contexts.books)
        return Growing(task, effects, pool, contexts.books, proposer)
    custom, settings = None, task.settings
    if task.proposes_itself:
        adapter = make_adapter(
            task.student,
            settings.metric,
            reflection_lm=settings.reflection_lm,
            custom_instruction_proposer=settings.instruction_proposer,
            custom_code_proposer=settings.code_proposer,
        )
        custom = CustomProposer(adapter, effects)
    return Pareto(task, effects, pool, gepa, Proposer(contexts), custom)
