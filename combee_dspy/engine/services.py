"""What lives as long as a run: the recorder of costs, the event bus and the executor's session."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import dspy

from combee_dspy.costs import Ledger, LedgerRecorder, PriceTable
from combee_dspy.engine.concurrency import Growth, scheduled
from combee_dspy.engine.lineage import Lineage, Recorders
from combee_dspy.engine.replaying import Decisions, read_schedule
from combee_dspy.engine.settings import Models, Settings
from combee_dspy.lms import LMPort, metadata_once, probe
from combee_dspy.lms.redact import scrub
from combee_dspy.rollouts import EvaluationCache, Scheduler, rarely_collected
from combee_dspy.rollouts.scheduling import SeatSession
from combee_dspy.stopping import require_gpu_seconds, require_prices
from combee_dspy.tracking import JOURNAL_FOLDER, EventBus, Journal, Progress, lm_secrets

__all__ = ["Services", "started"]


@dataclass(frozen=True, slots=True)
class Services:
    """What lives as long as a run.

    Attributes:
        session: Where rollouts and LM calls run: the run's one scheduler.
        bus: Where events go.
        ledger: What this process has spent.
        port: The strategies' way to an LM.
        cache: Rollouts that have been paid for; ``None`` where none is to be reused.
        secrets: Keys of every LM that has been called, a metric's own judge too.
        growth: Whether the run has use for more tasks at once.
        decisions: What the run decides by time or cost, and what it has decided before.
    """

    session: Scheduler | SeatSession
    bus: EventBus
    ledger: Ledger
    port: LMPort
    decisions: Decisions
    cache: EvaluationCache | None = None
    secrets: set[str] = field(default_factory=set)
    growth: Growth = field(default_factory=Growth)

    def scrub(self, text: str) -> str:
        """Return a text without the keys of any LM that has been called."""
        return scrub(text, tuple(self.secrets))


@contextmanager
def started(settings: Settings, models: Models) -> Iterator[Services]:
    """Start what a run needs, and stop it whatever happens, in the reverse order."""
    replay = None if settings.replay is None else read_schedule(settings.replay, settings.log_dir)
    ledger = Ledger(PriceTable(settings.prices), gpus=settings.gpus)
    journal: Journal | None = None

    secrets: set[str] = set()

    def heard(lm: object) -> None:
        # Any LM that is called, a metric's own judge too: its key must reach no file and no log.
        keys = lm_secrets(lm)
        secrets.update(keys)
        if journal is not None:
            journal.keep_out(keys)

    with ExitStack() as stack:
        stack.enter_context(LedgerRecorder(ledger, heard).installed())
        stack.enter_context(metadata_once())
        stack.enter_context(rarely_collected())
        require_prices(settings.budget, models.by_use(), ledger.prices)
        require_gpu_seconds(settings.budget, bool(settings.gpus))
        cache = _opened(settings, stack)
        if settings.probe:
            for lms in models.rounds():
                probe(lms)
        hooks = list(settings.hooks)
        if settings.progress if settings.progress is not None else sys.stderr.isatty():
            hooks.append(Progress())
        journal = _journal(settings, models)
        if journal is not None:
            # The bus closes it before the hooks; this is for what fails before there is a bus.
            stack.callback(journal.close)
        if settings.tracker is not None:
            hooks.append(settings.tracker.open(journal))
        lineage = None if settings.log_dir is None else Lineage(settings.log_dir)
        bus = EventBus(hooks, journal=Recorders(journal, lineage) if journal or lineage else None)
        # Each has a place on the stack of its own: an interrupt while one closes leaves none of the others open.
        stack.callback(bus.close)
        if cache is not None:
            stack.enter_context(cache.listen(bus.emit))
        growth = Growth()
        session = scheduled(settings, models.task, growth, bus.emit, replay)
        stack.callback(session.close)
        task_lm = dspy.settings.lm
        proposer = models.proposer or task_lm
        port = LMPort(
            session,
            {"task": task_lm, "proposer": proposer, "reflector": proposer},
            cache=cache,
            scrub=lambda text: scrub(text, tuple(secrets)),
        )
        yield Services(session, bus, ledger, port, Decisions(session.note, replay), cache, secrets, growth)


def _journal(settings: Settings, models: Models) -> Journal | None:
    """Return the run's journal; ``None`` where nobody asked for any record."""
    folder: Path | None = None
    if settings.log_dir is not None:
        folder = Path(settings.log_dir) / JOURNAL_FOLDER
    elif settings.tracker is not None:
        folder = settings.tracker.journal_folder()
    if folder is None:
        return None
    return Journal(folder, secrets=[key for lm in (*models.task, models.proposer) for key in lm_secrets(lm)])


def _opened(settings: Settings, stack: ExitStack) -> EvaluationCache | None:
    """Return the cache that the run shares; ``None`` where the evaluator is to have its own, or none."""
    given = settings.cache
    if not settings.memoize or given is None or isinstance(given, bool):
        return None
    if isinstance(given, EvaluationCache):
        return given
    cache = EvaluationCache(given)
    stack.callback(cache.close)
    return cache
