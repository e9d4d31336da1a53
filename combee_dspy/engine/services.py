"""What lives as long as a run: the recorder of costs, the event bus and the executor's session."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import dspy

from combee_dspy.costs import Ledger, LedgerRecorder, PriceTable
from combee_dspy.engine.settings import Models, Settings
from combee_dspy.lms import LMPort, probe
from combee_dspy.rollouts import ExecutorSession
from combee_dspy.stopping import require_prices
from combee_dspy.tracking import EventBus, Progress

__all__ = ["Services", "started"]


@dataclass(frozen=True, slots=True)
class Services:
    """What lives as long as a run.

    Attributes:
        session: Where rollouts and LM calls run.
        bus: Where events go.
        ledger: What this process has spent.
        port: The strategies' way to an LM.
    """

    session: ExecutorSession
    bus: EventBus
    ledger: Ledger
    port: LMPort


@contextmanager
def started(settings: Settings, models: Models) -> Iterator[Services]:
    """Start what a run needs, and stop it whatever happens, in the reverse order."""
    ledger = Ledger(PriceTable(settings.prices))
    with ExitStack() as stack:
        stack.enter_context(LedgerRecorder(ledger).installed())
        require_prices(settings.budget, models.by_use(), ledger.prices)
        if settings.probe:
            for lms in models.rounds():
                probe(lms)
        hooks = list(settings.hooks)
        if settings.progress if settings.progress is not None else sys.stderr.isatty():
            hooks.append(Progress())
        if settings.tracker is not None:
            hooks.append(settings.tracker.open())
        bus = EventBus(hooks)
        # Each has a place on the stack of its own: an interrupt while one closes leaves none of the others open.
        stack.callback(bus.close)
        session = settings.executor.start(settings.num_threads or dspy.settings.num_threads)
        stack.callback(session.close)
        task_lm = dspy.settings.lm
        yield Services(session, bus, ledger, LMPort(session, {"task": task_lm, "proposer": models.proposer or task_lm}))
