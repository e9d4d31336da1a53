"""The parts of one run, and how they are made of each other."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass

import dspy

from combee_dspy._private import make_adapter
from combee_dspy.costs import serving
from combee_dspy.evaluation import evaluator_lms
from combee_dspy.journal import RunLog
from combee_dspy.lms.redact import make_mask
from combee_dspy.rollouts import patient
from combee_dspy.search._batches import Minibatches
from combee_dspy.search._books import Books, ServedBooks
from combee_dspy.search._candidates import Compilation, SharedParts
from combee_dspy.search._contexts import Contexts
from combee_dspy.search._custom import CustomProposer
from combee_dspy.search._describe import lms_by_role
from combee_dspy.search._earlier import make_purse, replayed_decisions
from combee_dspy.search._effects import Effects
from combee_dspy.search._ending import Ending
from combee_dspy.search._gepa import Gepa
from combee_dspy.search._growing import Growing
from combee_dspy.search._heldout import HeldoutReading, note_unheld
from combee_dspy.search._judging import Failures, Judging
from combee_dspy.search._loop import Loop
from combee_dspy.search._pareto import Pareto
from combee_dspy.search._pool import CandidatePool, Student
from combee_dspy.search._preflight import Preflight
from combee_dspy.search._privacy import Texts
from combee_dspy.search._propose import Proposer
from combee_dspy.search._receipts import Receipts
from combee_dspy.search._update import UpdateLearner


@dataclass(eq=False)
class Run:
    """The parts of one run: those that its course names. Made once, used once."""

    task: Compilation
    log: RunLog
    effects: Effects
    pool: CandidatePool
    preflight: Preflight
    loop: Loop
    receipts: Receipts
    reading: HeldoutReading | None

    def best(self) -> dspy.Module | None:
        """Return the program that is best on validation so far; ``None`` before the student's
        validation.
        """
        if not self.pool.members:
            return None
        artifact, texts = self.task.settings.artifact, self.pool.best.candidate.texts
        return serving(artifact.build(self.task.student, texts))


def make_run(task: Compilation, shared: SharedParts, log: RunLog, prints: Mapping[str, str]) -> Run:
    """Make a run.

    Args:
        task: What is compiled.
        shared: What it shares with other runs. Borrowed.
        log: Its part of the journal. Borrowed.
        prints: Fingerprints of what its rollouts depend on.
    """
    settings = task.settings
    if task.heldout is not None and task.limits.seconds is not None:
        # A reading needs it, and loading it takes a second that would be the search's.
        importlib.import_module("scipy.stats")
    decided = replayed_decisions(settings.search.replay, task.name)
    effects = Effects(
        task,
        shared,
        log,
        make_purse(task, log, decided),
        {role: patient(lm) for role, lm in lms_by_role(settings).items()},
        decided.get,
        Texts(settings.privacy, make_mask(_lms(task))),
    )
    gepa = Gepa(task, effects.programs)
    pool = CandidatePool(task, effects, gepa)
    failures = Failures(effects, settings.validation)
    judging = Judging(task, effects, failures)
    books = Books(
        settings.artifact,
        task.seed,
        task.components,
        settings.search.build_weigher(),
        log.emit,
        settings.guards.removed,
    )
    contexts = Contexts(task, effects, pool, books)
    keeper = _make_keeper(contexts)
    learner = UpdateLearner(task, effects, failures, contexts, keeper.select)
    batches = Minibatches(task, effects, pool, keeper.rollouts)
    ending = Ending(task, effects, pool, batches, gepa)
    student = Student(task, effects, pool, failures)
    loop = Loop(task, effects, pool, batches, ending, student, learner, books, keeper, judging)
    receipts = Receipts(task.heldout, log, settings.log_dir)
    reading = None
    if task.heldout is None:
        # What this run learns from, no later run of the study may hold out.
        note_unheld(task.splits, prints["metric"], receipts)
    else:
        reading = HeldoutReading(task.heldout, task.splits, prints, effects, receipts)
    preflight = Preflight(task, effects, pool.validation, batches.first)
    return Run(task, log, effects, pool, preflight, loop, receipts, reading)


def _lms(task: Compilation) -> list[object]:
    """Return the LMs of a run, whose keys no file or prompt may hold."""
    settings = task.settings
    own = [getattr(predictor, "lm", None) for predictor in task.student.predictors()]
    lms = lms_by_role(settings).values()
    return [*lms, dspy.settings.lm, *own, *evaluator_lms(settings.metric)]


def _make_keeper(contexts: Contexts) -> Growing | Pareto:
    """Return what keeps what a run learns."""
    task, pool = contexts.task, contexts.pool
    if task.is_trunk:
        proposer = Proposer(contexts) if task.edits_instructions else ServedBooks(contexts.books)
        return Growing(pool, contexts.books, proposer)
    custom, settings = None, task.settings
    if task.proposes_itself:
        adapter = make_adapter(
            task.student,
            settings.metric,
            reflection_lm=settings.reflection_lm,
            custom_instruction_proposer=settings.instruction_proposer,
            custom_code_proposer=settings.code_proposer,
        )
        custom = CustomProposer(adapter, contexts.effects)
    return Pareto(pool, Proposer(contexts), custom)
