"""The one process that decides: what is due is done, and each decision is in its journal."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import dspy

from combee_dspy.exceptions import JournalError
from combee_dspy.lms.redact import scrub
from combee_dspy.traces import is_right
from combee_strategist.canary import PRODUCTION, Registry
from combee_strategist.exceptions import RegistryError
from combee_strategist.live._budget import DaySpentError, check_prices
from combee_strategist.live._evidence import drifted, moved
from combee_strategist.live._gating import gate
from combee_strategist.live._log import LearnerLog, read_answers
from combee_strategist.live._options import DAY, HOUR, LEAST_TOKENS, Setup
from combee_strategist.live._reading import read_lessons
from combee_strategist.live._records import (
    LiveDecision,
    SessionBegun,
    SessionEnded,
    open_trial,
)
from combee_strategist.live._runs import GateRuns
from combee_strategist.live._served import (
    ServedRequests,
    ServedRow,
    failures_since,
    is_behind,
)
from combee_strategist.live._session import Session
from combee_strategist.live._shipping import Shipper

__all__ = ["LiveLearner"]

logger = logging.getLogger("combee_dspy")

# Requests from which on a share of failures says that the service is ill.
_FEW = 8
# Hours in which a session may fail. It ends then, so that no request keeps others from teaching.
_FAILURES = 24


class LiveLearner:
    """Decides what is learned and what is shipped. For one thread of one process.

    Args:
        setup: What it learns from and for.

    Raises:
        ArgumentValueError: A budget in dollars cannot be kept.
        JournalHeldError: Another process learns.
        JournalError: The journal cannot be written.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        lms = [setup.reflection_lm, setup.lm or dspy.settings.lm]
        self._log = LearnerLog(setup, check_prices(setup.learning, lms))
        self._served = ServedRequests(setup, self._log.score)
        self._shipper: Shipper | None = None

    def tick(self) -> tuple[LiveDecision, ...]:
        """Do what is due; return what was decided."""
        if self._shipper is None:
            self._shipper = Shipper(self._setup, self._log, self._setup.registry())
        self._check_store(self._shipper.registry)
        before = len(self._log.decisions)
        self._hear_people()
        self._shipper.look()
        self._shipper.conclude()  # of a session whose learner died behind its end
        self._learn(self._shipper.registry)
        self._shipper.conclude()
        decided = tuple(self._log.decisions[before:])
        if decided:
            self._log.write_page()
        return decided

    def _check_store(self, registry: Registry) -> None:
        """Refuse a store without the versions that servers serve: of it all trials look ended.

        Raises:
            RegistryError: It is such a store.
        """
        if registry.at(PRODUCTION) is None and self._served.end():
            store = scrub(self._setup.uri or "MLflow's own choice")
            reason = f"nothing is in production in {store}: name the store that the servers have"
            raise RegistryError(self._setup.name, reason)

    def write_page(self) -> Path:
        """Write the page; return it."""
        return self._log.write_page()

    def close(self) -> None:
        """Let go of the journal."""
        self._log.close()

    def _hear_people(self) -> None:
        for answer in read_answers(self._setup.home, self._log.decisions):
            self._log.decide(answer)

    def _learn(self, registry: Registry) -> None:
        """Begin a session where one is due, and carry out what is open as far as the day pays."""
        log = self._log
        try:
            if not log.is_open:
                self._begin(registry)
            begun = log.begun
            if begun and log.is_open and not self._waits(begun) and not self._is_ill():
                self._go_on(registry, begun)
        except DaySpentError as error:
            number = log.begun.number if log.begun is not None and log.is_open else 0
            log.skip(f"the day cannot pay for it: {error}", number)
        except Exception as error:
            # Models, metrics and requests are not ours: they end a session, and not the learner.
            if isinstance(error, RegistryError) or type(error) is JournalError:
                raise
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """Say that a session failed; one that fails all day ends, and teaches nothing."""
        log, begun = self._log, self._log.begun
        logger.warning("live %s: %s", self._setup.name, scrub(repr(error)))
        number = begun.number if begun is not None and log.is_open else 0
        log.decide(LiveDecision("fail", scrub(f"{type(error).__name__}: {error}")[:500], number))
        failures = [item for item in log.decisions if item.action == "fail"]
        if begun and number and sum(item.session == number for item in failures) >= _FAILURES:
            why = f"it failed {_FAILURES} times: {failures[-1].why}"
            log.end(SessionEnded.of_nothing(self._setup.clock(), number, why), log.books)

    def _begin(self, registry: Registry) -> None:
        """Begin a session where one is due and may be paid."""
        setup, log = self._setup, self._log
        after = log.begun.upto if log.begun else {}
        upto, production = self._served.end(), registry.at(PRODUCTION)
        if upto == after or production is None:
            return
        new = [row for row in self._served.upto(upto) if is_behind(after, row)]
        wrong = sum(not is_right(row.trace) for row in new)
        if not self._is_due(wrong) or self._is_ill():
            return
        left = log.budget.left
        if left < LEAST_TOKENS:
            needs = f"{left:,} tokens are left, and a session needs {LEAST_TOKENS:,}"
            log.skip(f"the day pays no other session: {needs}")
            return
        number = log.begun.number + 1 if log.begun else 1
        tokens = max(1_000, min(setup.learning.selection.tokens, left // 4))
        why = f"{len(new)} new labelled requests, of which {wrong} went wrong"
        log.begin(SessionBegun(setup.clock(), number, after, upto, production, tokens, why))

    def _is_ill(self) -> bool:
        """Return whether too many requests of the last hour failed, and say so once a day."""
        setup = self._setup
        served, failed = failures_since(setup, setup.clock() - HOUR)
        if served < _FEW or failed <= setup.learning.errors * served:
            return False
        why = f"the service is ill: {failed} of {served} requests of the last hour failed"
        self._log.skip(why)
        return True

    def _is_due(self, wrong: int) -> bool:
        learning, begun = self._setup.learning, self._log.begun
        # A clock that was put back would let it wait for as long.
        waits = begun is None or 0 <= self._setup.clock() - begun.at < learning.hours * HOUR
        return wrong >= (learning.least if waits else 1)

    def _go_on(self, registry: Registry, begun: SessionBegun) -> None:
        """Carry out the session that is open, from where it was."""
        log = self._log
        if not any(item.session == begun.number for item in log.decisions):
            log.decide(LiveDecision("learn", begun.why, begun.number))
        rows = self._served.upto(begun.upto)
        self._tell_drift(rows, begun, registry.at(PRODUCTION) or begun.production)
        session = self._session(registry, begun, rows)
        removed = [item.text for item in log.decisions if item.action == "remove"]
        books = read_lessons(session, log.books, removed, log.budget)
        runs = GateRuns(self._setup, log.run, begun.number, log.budget)
        ended = gate(session, books, runs)
        log.end(ended, books)

    def _session(self, registry: Registry, begun: SessionBegun, rows: list[ServedRow]) -> Session:
        setup, decisions = self._setup, self._log.decisions
        trial, serves = open_trial(decisions), registry.at(PRODUCTION)
        drifts = [item for item in decisions if item.action == "drift" and item.text]
        return Session(
            setup,
            begun,
            rows,
            drift=max((item.since for item in drifts), default=0.0),
            dated={item.text: item.since for item in drifts if item.entire},
            production=registry.version(serves or begun.production),
            challenger=registry.version(trial.version) if trial and trial.version else None,
            trial_until=trial.at + setup.plan.hours * HOUR if trial else 0.0,
            stale={row for ended in self._log.ended if ended.texts for row in ended.stale},
        )

    def _waits(self, begun: SessionBegun) -> bool:
        """Return whether an open session waits: an hour after a failure, else for the next day."""
        now = self._setup.clock()
        of_session = [item for item in self._log.decisions if item.session == begun.number]
        for last in of_session[-1:]:
            if last.action == "fail":
                return last.at <= now < last.at + HOUR
            if last.action == "skip":
                return now // DAY == last.at // DAY
        return False

    def _tell_drift(self, rows: Sequence[ServedRow], begun: SessionBegun, serves: int) -> None:
        """Say which slices have drifted, and what of the mix has moved; that once in a window."""
        number, log = begun.number, self._log
        drifts = [item for item in log.decisions if item.action == "drift"]
        for drift in drifted(rows, {item.text: item.since for item in drifts}, f"v{serves}"):
            log.decide(
                LiveDecision(
                    "drift",
                    drift.why,
                    number,
                    text=drift.slice,
                    since=drift.since,
                    entire=drift.whole,
                )
            )
        since = begun.at - self._setup.gate.recent * DAY
        heads = {item.why.split(":")[0] for item in drifts if item.at >= since}
        for why in moved(rows, since):
            if why.split(":")[0] not in heads:
                log.decide(LiveDecision("drift", why, number))
