"""Runs a method: the same ledger, events, budget and held-out reading for every one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from combee_dspy.baselines._base import Baseline
from combee_dspy.baselines._books import Books, BudgetSpentError
from combee_dspy.baselines._desk import Desk
from combee_dspy.baselines._meter import Meter
from combee_dspy.baselines._records import BaselineResult, BaselineTask
from combee_dspy.baselines._remembered import Remembered
from combee_dspy.baselines._texts import texts_of
from combee_dspy.checks import Splits, check_splits
from combee_dspy.costs import Ledger, LedgerRecorder, PriceTable, Totals, role_scope
from combee_dspy.engine.candidates import candidate_id
from combee_dspy.evaluation import HeldoutContract, ReadContext, Receipt, final_evaluate
from combee_dspy.events import ErrorRaised, Event, HeldoutEvaluated, HeldoutPinned, RunFinished, RunStarted
from combee_dspy.hashing import row_hash
from combee_dspy.lms import probe
from combee_dspy.registry import Spec
from combee_dspy.rollouts import EvaluationCache, Threads, rarely_collected, scorer_fingerprint
from combee_dspy.tracking import EventBus, Journal, lm_secrets

__all__ = ["run_baseline"]

_SHOWN = 500
_SIMULATED = "A simulated service answered: these figures measure no language model and support no claim."


@dataclass(slots=True)
class _Run:
    """One run, wired. Used once."""

    method: Baseline
    task: BaselineTask
    splits: Splits
    emit: Callable[[Event], None]
    ledger: Ledger
    books: Books
    desk: Desk
    contract: HeldoutContract | None
    student: dspy.Module
    remembered: Remembered | None = None

    @property
    def name(self) -> str:
        return self.task.name or f"{self.method.name} seed {self.task.seed}"

    @property
    def models(self) -> dict[str, str]:
        return {"task": str(self.task.task_lm.model), "proposer": str(self.task.reflection_lm.model)}

    @property
    def simulated(self) -> bool:
        parts = [part for model in self.models.values() for part in model.lower().split("/")]
        return any(part.startswith("simulated") for part in parts)

    @property
    def warnings(self) -> tuple[str, ...]:
        own = () if self.contract is None else self.contract.warnings
        return (*self.splits.warnings, *own, *((_SIMULATED,) if self.simulated else ()))


def run_baseline(method: Baseline, task: BaselineTask) -> BaselineResult:
    """Run a method on a task (see :meth:`combee_dspy.baselines.Baseline.run`)."""
    method.validate()
    task.validate()
    method.prepare()
    splits = check_splits(task.train, task.validation, task.heldout)
    contract = _pinned(task, splits)
    with _opened(method, task, splits, contract) as run:
        _announce(run)
        run.books.start()
        program, reason = _search(run)
        spent, seconds = run.ledger.snapshot(), run.books.seconds()
        run.books.end_iteration()
        receipt = _read(run, program)
        return _result(run, program, reason, spent, seconds, receipt)


@contextmanager
def _opened(method: Baseline, task: BaselineTask, splits: Splits, contract: HeldoutContract | None) -> Iterator[_Run]:
    ledger = Ledger(PriceTable(task.prices), clock=task.clock)
    journal: list[Journal] = []

    def heard(lm: object) -> None:
        for one in journal:
            one.keep_out(lm_secrets(lm))

    with ExitStack() as stack:
        # As Combee's own runs do: methods are compared by their seconds.
        stack.enter_context(rarely_collected())
        stack.enter_context(dspy.context(**_settings(task)))
        stack.enter_context(LedgerRecorder(ledger, heard).installed())
        if task.probe:
            probe({"task": task.task_lm, "proposer": task.reflection_lm})
        journal += _journal(task, stack)
        opened = journal[0] if journal else None
        hooks = [*task.hooks, *(() if task.tracker is None else (task.tracker.open(opened),))]
        bus = EventBus(hooks, journal=opened)
        stack.callback(bus.close)
        session = Threads().start(task.threads)
        stack.callback(session.close)
        validation = frozenset(row_hash(row) for row in splits.validation)
        books = Books(bus.emit, ledger, splits.train_hashes, validation, task.budget)
        rows = (*splits.train, *splits.validation)
        cache = _cache(task, stack)
        if cache is not None:
            stack.enter_context(cache.listen(bus.emit))
        remembered = None
        if cache is not None and not method.reports_itself:
            remembered = Remembered(cache, task.program, task.metric, task.failure_score, splits.validation)
        student = task.program if remembered is None else remembered.asking()
        meter = Meter(student, task.metric, rows, books, task.failure_score, remembered=remembered)
        if not method.reports_itself:
            callbacks = [*(dspy.settings.get("callbacks") or []), meter]
            stack.enter_context(dspy.context(callbacks=callbacks))
        plain = (lambda program: program) if remembered is None else remembered.plain
        desk = Desk(task, books, meter, session, bus.emit, cache, plain)
        run = _Run(method, task, splits, bus.emit, ledger, books, desk, contract, student, remembered)
        try:
            yield run
        except Exception as error:
            # Recorders are told before they are closed; the error itself goes on.
            text = f"{type(error).__name__}: {error}"
            bus.emit(ErrorRaised(iteration=books.iteration, where=method.name, error=text, fatal=True))
            raise


def _cache(task: BaselineTask, stack: ExitStack) -> EvaluationCache | None:
    if task.cache is None or isinstance(task.cache, EvaluationCache):
        return task.cache
    opened = EvaluationCache(task.cache)
    stack.callback(opened.close)
    return opened


def _settings(task: BaselineTask) -> dict[str, Any]:
    # DSPy's own tracking of usage would undo the counting of rollouts in another order than it was done.
    settings: dict[str, Any] = {"lm": task.task_lm, "num_threads": task.threads, "track_usage": False}
    return settings if task.adapter is None else {**settings, "adapter": task.adapter}


def _journal(task: BaselineTask, stack: ExitStack) -> list[Journal]:
    folder: Path | None = task.journal
    if folder is None and task.tracker is not None:
        folder = task.tracker.journal_folder()
    if folder is None:
        return []
    journal = Journal(folder, secrets=[key for lm in (task.task_lm, task.reflection_lm) for key in lm_secrets(lm)])
    # The bus closes it before the hooks; this is for what fails before there is a bus.
    stack.callback(journal.close)
    return [journal]


def _pinned(task: BaselineTask, splits: Splits) -> HeldoutContract | None:
    if not splits.heldout:
        return None
    return HeldoutContract.pin(
        splits.heldout,
        scorer=scorer_fingerprint(task.metric),
        train=[row_hash(row) for row in splits.train],
        validation=[row_hash(row) for row in splits.validation],
    )


def _announce(run: _Run) -> None:
    splits, task = run.splits, run.task
    run.emit(
        RunStarted(
            name=run.name,
            seed=task.seed,
            sizes={"train": len(splits.train), "validation": len(splits.validation), "heldout": len(splits.heldout)},
            digests=splits.digests,
            specs={
                "baseline": Spec.of(run.method).to_dict(),
                "versions": dict(run.method.versions()),
                "budget": {"rollouts": task.budget},
            },
            models=run.models,
            components=texts_of(task.program),
            warnings=run.warnings,
        )
    )
    if run.contract is not None:
        terms = run.contract.terms
        run.emit(
            HeldoutPinned(
                digest=run.contract.digest,
                size=len(run.contract.rows),
                margin=run.contract.margin,
                power=terms.power,
                basis=run.contract.basis,
            )
        )


def _search(run: _Run) -> tuple[dspy.Module, str]:
    """Let the method search; return its program, or the best on validation where it was stopped or gave up."""
    chosen: dspy.Module | None = None
    try:
        # What a method asks outside of a rollout is its own proposing.
        with role_scope("proposer"):
            chosen = run.method.search(replace(run.task, program=run.student), run.desk)
        reason = run.desk.reason
    except BudgetSpentError as spent:
        run.books.settle()
        reason = f"the budget of {run.books.limit} rollouts is spent: {spent}"
    except AdapterParseError as unread:
        # A weak proposer is a result, not a fault of the run: other methods and seeds are still to come.
        run.books.settle()
        reason = "the method gave up on an answer of its proposer that could not be read"
        run.desk.trouble(run.method.name, f"{type(unread).__name__}: {unread}"[:_SHOWN])
        run.desk.notes.append(f"{reason}; its best so far counts.")
    found = chosen or run.books.best() or run.task.program
    return found if run.remembered is None else run.remembered.plain(found), reason


def _read(run: _Run, program: dspy.Module) -> Receipt | None:
    if run.contract is None:
        return None
    context = ReadContext(scorer_fingerprint(run.task.metric), run.task.seed, run.name, run.models)
    receipt = final_evaluate(
        run.task.program,
        program,
        run.contract,
        run.desk.heldout,
        context,
        hash_of=lambda one: candidate_id(texts_of(one, run.task.program)),
    )
    found = receipt.difference()
    run.emit(
        HeldoutEvaluated(
            iteration=run.books.iteration,
            before=found.before,
            after=found.after,
            interval=(found.low, found.high),
            confidence=found.confidence,
            size=found.size,
            digest=run.contract.digest,
        )
    )
    return receipt


def _reused(books: Books) -> tuple[str, ...]:
    if not books.reused:
        return ()
    return (f"{books.reused} of its {books.rollouts} rollouts came from a cache: tokens and seconds leave them out.",)


def _result(
    run: _Run, program: dspy.Module, reason: str, spent: Totals, seconds: float, receipt: Receipt | None
) -> BaselineResult:
    texts = texts_of(program, run.task.program)
    index, validation = run.books.validation_of(candidate_id(texts)) or (0, None)
    curve = run.books.curve
    if validation is None and run.method.reports_itself:
        # Such a method names candidates in its own way: what it chose is what it validated best.
        validation = max((point.validation for point in curve), default=None)
    state = program.dump_state()
    run.emit(
        RunFinished(
            iteration=run.books.iteration,
            reason=reason,
            best_index=index,
            best_score=validation if validation is not None else 0.0,
            texts=texts,
            rollouts=run.books.rollouts,
            seconds=seconds,
            costs=spent.to_dict(),
            state=state,
        )
    )
    return BaselineResult(
        method=run.method.name,
        spec=Spec.of(run.method).to_dict(),
        versions=run.method.versions(),
        seed=run.task.seed,
        curve=curve,
        program=program,
        validation=validation,
        rollouts=run.books.rollouts,
        tokens=spent.total.tokens,
        dollars=spent.total.dollars,
        seconds=seconds,
        costs=spent.to_dict(),
        reason=reason,
        receipt=receipt,
        state=state,
        notes=(*run.desk.notes, *(_reused(run.books) if run.task.cache is not None else ())),
        reused=run.books.reused,
        warnings=run.warnings,
        simulated=run.simulated,
    )
