"""The one process that decides: what is due is done, and each decision is in its journal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import dspy

from combee_dspy.exceptions import InfrastructureError
from combee_dspy.traces import is_right
from combee_strategist.canary import PRODUCTION, Registry
from combee_strategist.live._allowance import DAY, DaySpentError, SessionAllowance, check_prices
from combee_strategist.live._evidence import drifted, moved
from combee_strategist.live._log import LearnerLog
from combee_strategist.live._people import read_answers
from combee_strategist.live._records import LiveDecision, SessionBegun
from combee_strategist.live._runs import GateRuns
from combee_strategist.live._served import (
    ServedRow,
    end_of_labels,
    failures_since,
    read_served,
)
from combee_strategist.live._session import Session
from combee_strategist.live._setup import Setup
from combee_strategist.live._shipper import Shipper
from combee_strategist.live._shipping import open_trial

__all__ = ["LiveLearner"]

_HOUR = 3600.0
# Requests from which on a share of failures says that the service is ill.
_FEW = 8
# Tokens that a session needs at least: readers of a few requests, and a few rows of the gate.
_LEAST_TOKENS = 20_000


class LiveLearner:
    """Decides what is learned and what is shipped. For one thread of one process.

    Args:
        setup: What it learns from and for.

    Raises:
        ArgumentValueError: A budget in dollars cannot be kept, since a price is not known.
        JournalHeldError: Another process learns.
        JournalError: The journal cannot be written.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        lms = [setup.reflection_lm, setup.lm or dspy.settings.lm]
        self._rate = check_prices(setup.learning, lms)
        self._log = LearnerLog(setup)
        self._registry: Registry | None = None

    def tick(self) -> tuple[LiveDecision, ...]:
        """Do what is due; return what was decided."""
        if self._registry is None:
            self._registry = self._setup.registry()
        before = len(self._log.decisions)
        self._hear_people()
        shipper = Shipper(self._setup, self._log, self._registry)
        shipper.look()
        shipper.conclude()  # of a session whose learner died behind its end
        if not self._log.is_open and open_trial(self._log.decisions) is None:
            self._begin(self._registry)
        if self._log.is_open:
            self._go_on(self._registry)
        shipper.conclude()
        decided = tuple(self._log.decisions[before:])
        if decided:
            self._log.write_page()
        return decided

    def write_page(self) -> Path:
        """Write the page; return it."""
        return self._log.write_page()

    def close(self) -> None:
        """Let go of the journal."""
        self._log.close()

    def _hear_people(self) -> None:
        heard = max((decision.line for decision in self._log.decisions), default=0)
        for line, answer in read_answers(self._setup.home, heard):
            if answer is None:
                self._log.decide(
                    LiveDecision("skip", "a line of people.jsonl cannot be read", line=line)
                )
                continue
            self._log.decide(
                LiveDecision(
                    answer.action,
                    answer.why,
                    version=answer.version,
                    who=answer.who,
                    text=answer.text,
                    line=line,
                )
            )

    def _begin(self, registry: Registry) -> None:
        """Begin a session where one is due and may be paid."""
        setup, log = self._setup, self._log
        after = log.begun.upto if log.begun else {}
        upto = end_of_labels(setup)
        if upto == after:
            return
        new, production = read_served(setup, log.score, after, upto), registry.at(PRODUCTION)
        if production is None:
            return  # nobody has served yet
        wrong = _count_wrong(new, production)
        if not self._is_due(wrong):
            return
        number = log.begun.number + 1 if log.begun else 1
        served, failed = failures_since(setup, setup.clock() - _HOUR)
        if served >= _FEW and failed > setup.learning.errors * served:
            self._skip(f"the service is ill: {failed} of {served} requests of the last hour failed")
            return
        left = self._allowance(number).left
        if left < _LEAST_TOKENS:
            self._skip("the day's budget is spent")
            return
        tokens = max(1_000, min(setup.learning.selection.tokens, left // 4))
        why = f"{len(new)} new labelled requests, of which {wrong} ask for a lesson"
        log.begin(SessionBegun(setup.clock(), number, after, upto, production, tokens, why))

    def _is_due(self, wrong: int) -> bool:
        learning, begun = self._setup.learning, self._log.begun
        if begun is None:
            return wrong >= learning.least
        waited = self._setup.clock() - begun.at >= learning.hours * _HOUR
        return wrong >= (1 if waited else learning.least)

    def _skip(self, why: str) -> None:
        """Say why nothing is learned, once for as long as it holds."""
        last = self._log.decisions[-1] if self._log.decisions else None
        if last is None or last.action != "skip" or last.why.split(":")[0] != why.split(":")[0]:
            self._log.decide(LiveDecision("skip", why))

    def _allowance(self, session: int) -> SessionAllowance:
        setup = self._setup
        return SessionAllowance(setup.learning, self._rate, setup.clock, self._log.run, session)

    def _go_on(self, registry: Registry) -> None:
        """Carry out the session that is open, from where it was."""
        setup, log, begun = self._setup, self._log, self._log.begun
        if begun is None or self._waits(begun):
            return
        if not any(item.session == begun.number for item in log.decisions):
            log.decide(LiveDecision("learn", begun.why, begun.number))
        rows = read_served(setup, log.score, {}, begun.upto)
        self._tell_drift(rows, begun)
        drifts = {item.text: item.since for item in log.decisions if item.action == "drift"}
        removed = [item.text for item in log.decisions if item.action == "remove"]
        session = Session(setup, begun, rows, drifts, registry.version(begun.production))
        allowance = self._allowance(begun.number)
        try:
            books, forgotten = session.learn(log.books, removed, allowance)
            runs = GateRuns(setup, log.run, begun.number, allowance)
            ended = session.gate(books, runs)
        except DaySpentError as error:
            self._log.decide(
                LiveDecision("skip", f"the day's budget is spent: {error}", session=begun.number)
            )
            return
        except InfrastructureError as error:
            self._log.decide(LiveDecision("fail", str(error)[:500], session=begun.number))
            return
        for name, edit in forgotten:
            lesson = books[name].find(edit.lesson)
            text = lesson.text if lesson else edit.lesson
            self._log.decide(LiveDecision("forget", edit.reason, session=begun.number, text=text))
        log.end(ended, books)

    def _waits(self, begun: SessionBegun) -> bool:
        """Return whether an open session waits: an hour after a failure, else for the next day."""
        now = self._setup.clock()
        for last in self._log.decisions[-1:]:
            if last.session == begun.number and last.action == "fail":
                return now < last.at + _HOUR
            if last.session == begun.number and last.action == "skip":
                return now // DAY == last.at // DAY
        return False

    def _tell_drift(self, rows: Sequence[ServedRow], begun: SessionBegun) -> None:
        """Say which slices have drifted, and what else has moved, once for a session."""
        number, log = begun.number, self._log
        drifts = [item for item in log.decisions if item.action == "drift"]
        for drift in drifted(rows, {item.text: item.since for item in drifts}):
            log.decide(
                LiveDecision("drift", drift.why, number, text=drift.slice, since=drift.since)
            )
        said = {item.why for item in drifts if item.session == number}
        for why in moved(rows, begun.at - self._setup.gate.recent * DAY):
            if why not in said:
                log.decide(LiveDecision("drift", why, number))


def _count_wrong(rows: Sequence[ServedRow], production: int) -> int:
    """Return how many requests teach something that what serves now does not know for sure."""
    return sum(
        row.teaches and row.trace.prompt == f"v{production}" and not is_right(row.trace)
        for row in rows
    )
