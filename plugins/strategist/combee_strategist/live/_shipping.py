"""What becomes of what was learned: published, promoted, taken back. Each is one decision.

The registry says what serves. Whoever was killed between a move and its decision finds the registry
as it is, and decides what was carried out already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from combee_dspy.evaluation import Receipt
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lessons import Retire
from combee_dspy.search import Candidate
from combee_strategist.canary import (
    CHALLENGER,
    PRODUCTION,
    CanaryStatus,
    Registry,
    TrialEvidence,
    propose_texts,
    status,
    withdraw,
)
from combee_strategist.live._lines import Lines
from combee_strategist.live._log import LearnerLog
from combee_strategist.live._options import DAY, HOUR, Setup
from combee_strategist.live._page import write_review
from combee_strategist.live._records import (
    Action,
    LiveDecision,
    SessionEnded,
    answers_to,
    open_trial,
    session_of,
    undecided,
    waits,
)

__all__ = ["Shipper"]

_WHO = "combee live"
_REMOVED = "a person removed a line"
_MOVES = ("promote", "rollback")  # of production, in the registry's audit
# Rows that a decision of the canary or of a person weighs: eight later examples outweigh it.
_WEIGHT = 2


class Shipper:
    """Carries out what follows from the registry, from people and from sessions that ended.

    Args:
        setup: Of the Live.
        log: The learner's journal. Borrowed.
        registry: Where the versions are.
    """

    def __init__(self, setup: Setup, log: LearnerLog, registry: Registry) -> None:
        self._setup, self._log, self.registry = setup, log, registry
        self._evidence = TrialEvidence(setup.requests, setup.name)

    def look(self) -> None:
        """See what servers and people have done, and whether a trial has ended.

        Raises:
            RegistryError: The registry does not answer.
        """
        self._watch_production()
        self._obey_removals()
        self._judge_trial()

    def conclude(self) -> None:
        """Publish what the last session came to, or say why nothing is; once.

        Raises:
            RegistryError: The registry does not answer.
        """
        log = self._log
        if not log.ended or log.is_open:
            return
        ended = log.ended[-1]
        if any(
            item.session == ended.number and item.action in ("propose", "refuse")
            for item in log.decisions
        ):
            return
        refused = ended.refused or self._obstacle(ended)
        if refused:
            log.decide(LiveDecision("refuse", refused, ended.number))
            return
        trial = open_trial(log.decisions)
        if trial is not None:
            self._withdraw(trial, f"session {ended.number} goes further")
        self._propose(ended)

    def _watch_production(self) -> None:
        """See whether servers, or people, moved production since the last decision did."""
        lines = self.registry.audit()
        moves = [line for line in lines if line["carried_out"] and line["action"] in _MOVES]
        for line in undecided(moves, self._log.decisions):
            self._follow(line)

    def _follow(self, line: Mapping[str, Any]) -> None:
        """Decide what a line of the registry's audit has carried out."""
        log = self._log
        before, after, why = line["from"], line["to"], str(line["why"])
        if line["action"] == "promote":  # by hand, or by a learner that died then
            trial = open_trial(log.decisions)
            if trial is None or trial.version != after:
                log.decide(LiveDecision("promote", why, version=after))
            return
        why = f"version {after} serves again: {why}"
        promoted = [item for item in log.decisions if item.action == "promote"]
        session = next((item.session for item in reversed(promoted) if item.version == before), 0)
        self._retire(session, before, why)
        log.decide(LiveDecision("roll back", why, session, before))

    def _obey_removals(self) -> None:
        """Put what serves into production again without the lines that people have removed.

        No trial speaks against a person. What is on trial ends: it was learned beside that line, or
        has it.
        """
        log, registry = self._log, self.registry
        number, challenger = registry.at(PRODUCTION), registry.at(CHALLENGER)
        removals = [item for item in log.decisions if item.action == "remove"]
        if number is None or not removals or not log.ended:
            return
        back = [item for item in log.decisions if item.action == "roll back" and not item.session]
        if back and log.decisions.index(back[-1]) > log.decisions.index(removals[-1]):
            return  # servers took back what was shipped without the line: a person must look
        texts, who = [item.text for item in removals], removals[-1].who
        books = {name: book.without(texts) for name, book in log.books.items()}
        lines = Lines(self._setup.texts(), books)
        serves, tries = (
            lines.of(registry.version(version).texts) for version in (number, challenger or number)
        )
        if lines.removed.isdisjoint(serves | tries):
            return
        log.change_books(books)
        if challenger not in (None, number):
            withdraw(registry, who=who, why=_REMOVED, only=challenger)
        if (trial := open_trial(log.decisions)) is not None:
            self._end(trial, "withdraw", _REMOVED)
        if serves & lines.removed:
            without = lines.texts(serves - lines.removed)
            version = propose_texts(registry, without, None, self._setup.plan, _REMOVED)
            registry.move("promote", number, version, who, _REMOVED)
            log.decide(LiveDecision("promote", _REMOVED, version=version))

    def _judge_trial(self) -> None:
        """End the trial that is open, where the registry, a person or its pairs have ended it."""
        trial = open_trial(self._log.decisions)
        if trial is None:
            return
        version, serves = trial.version, self.registry.at(PRODUCTION)
        answers = answers_to(trial, self._log.decisions)
        if serves == version:
            self._end(trial, "promote", self._last_move(version)[1])
        elif self.registry.at(CHALLENGER) != version:
            who, why = self._last_move(version)
            if who == _WHO or why == _REMOVED:  # a learner that died before it could say so
                self._withdraw(trial, why)
            else:
                self._take_back(trial, why)
        elif answers and answers[-1].action == "reject":
            self._take_back(trial, f"{answers[-1].who} rejected it: {answers[-1].why}")
        else:
            self._weigh(trial, serves, answers[-1].who if answers else "")

    def _weigh(self, trial: LiveDecision, serves: int | None, approved: str) -> None:
        """Decide by the pairs of a trial; ``approved``: who wants it, empty for nobody."""
        setup = self._setup
        ended = session_of(trial, self._log.ended)
        pairs = ended.pairs if ended.production == serves else ()
        standing = status(self.registry, setup.requests, pairs, self._evidence)
        days, evidence = (setup.clock() - trial.at) / DAY, _evidence(standing)
        if standing.pairs and standing.high < -setup.plan.epsilon:
            self._take_back(trial, f"it is worse: {evidence}")
        elif standing.missing:
            # A clock that was put back would let it go on for as long.
            if not -HOUR / DAY <= days <= setup.gate.trial:
                self._withdraw(trial, f"undecided after {days:.1f} days: {evidence}")
        elif not approved and (setup.approve == "human" or ended.person):
            if not waits(trial, self._log.decisions):
                self._end(trial, "wait", f"a person must approve it: {evidence}")
        elif serves is not None and trial.version is not None:
            self.registry.move("promote", serves, trial.version, approved or _WHO, evidence)
            self._end(trial, "promote", evidence)

    def _end(self, trial: LiveDecision, action: Action, why: str) -> None:
        self._log.decide(LiveDecision(action, why, trial.session, trial.version))

    def _take_back(self, trial: LiveDecision, why: str) -> None:
        """End a trial, and retire what it would have brought."""
        self._retire(trial.session, trial.version, why)
        self._withdraw(trial, why)

    def _withdraw(self, trial: LiveDecision, why: str) -> None:
        withdraw(self.registry, who=_WHO, why=why, only=trial.version)
        self._end(trial, "withdraw", why)

    def _retire(self, session: int, version: int | None, why: str) -> None:
        """Retire the lines that a version brought, so that only more evidence brings them again."""
        reason = f"version {version}: {why}"[:300]
        books = dict(self._log.books)
        for ended in self._log.ended:
            for line in ended.lines if ended.number == session else ():
                lesson = books[line.component].find(line.lesson)
                # A learner that died behind this finds it done.
                if line.new and line.passed and lesson and not lesson.decided:
                    edit = Retire(line.lesson, reason, rows=_WEIGHT)
                    books[line.component] = books[line.component].edit([edit]).book
        self._log.change_books(books)

    def _obstacle(self, ended: SessionEnded) -> str:
        """Return why a text that passed the gate is not shipped; empty where it may be."""
        log, registry = self._log, self.registry
        candidate, serves = Candidate(ended.texts).id, registry.at(PRODUCTION)
        tried = {item.session for item in log.decisions if item.action == "propose"}
        if candidate in {Candidate(item.texts).id for item in log.ended if item.number in tried}:
            return "the same text was on trial before"
        if ended.production not in (0, serves):
            return f"version {serves} serves now; it was compared with {ended.production}"
        trial = open_trial(log.decisions)
        if trial is not None and waits(trial, log.decisions):
            return f"version {trial.version} waits for a person"
        return ""

    def _propose(self, ended: SessionEnded) -> None:
        """Publish what a session came to as the challenger, and write the file for review."""
        log, registry = self._log, self.registry
        production = registry.at(PRODUCTION)
        count = sum(line.passed for line in ended.lines)
        why = f"session {ended.number}: {count} lines change, {ended.taught} requests taught"
        receipt = Receipt.from_json(ended.receipt)
        try:
            version = propose_texts(registry, ended.texts, receipt, self._setup.plan, why)
        except ArgumentValueError as error:
            if (waiting := registry.at(CHALLENGER)) in (None, production):  # too long for it
                log.decide(LiveDecision("refuse", str(error), ended.number))
            else:
                log.skip(f"version {waiting} of somebody else is on trial", ended.number)
            return
        write_review(self._setup, version, ended)
        log.decide(LiveDecision("propose", f"{count} lines change", ended.number, version))

    def _last_move(self, version: int | None) -> tuple[str, str]:
        """Return who moved a version last, or published it where nobody did, and why."""
        lines = [line for line in self.registry.audit() if version in (line["from"], line["to"])]
        moves = [line for line in lines if line["action"] in _MOVES] or lines
        return (moves[-1]["who"], moves[-1]["why"]) if moves else ("", "nobody said why")


def _evidence(standing: CanaryStatus) -> str:
    return (
        f"{standing.pairs} pairs in {standing.hours:.1f} h: {standing.difference:+.4f},"
        f" {standing.low:+.4f} to {standing.high:+.4f}"
    )
