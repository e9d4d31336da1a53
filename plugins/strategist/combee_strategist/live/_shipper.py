"""What becomes of what was learned: published, promoted, taken back; each is one decision."""

from __future__ import annotations

from combee_dspy.lessons import Retire
from combee_dspy.search import Candidate
from combee_strategist.canary import PRODUCTION, Registry
from combee_strategist.live._lines import Lines
from combee_strategist.live._log import LearnerLog
from combee_strategist.live._page import write_review
from combee_strategist.live._records import Action, LiveDecision
from combee_strategist.live._setup import Setup
from combee_strategist.live._shipping import (
    answers_to,
    judge_trial,
    last_move,
    last_reason,
    open_trial,
    other_challenger,
    propose,
    ship_removal,
)

__all__ = ["Shipper"]

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
        self._setup, self._log, self._registry = setup, log, registry

    def look(self) -> None:
        """See what servers and people have done, and whether a trial has ended.

        Raises:
            RegistryError: The registry does not answer.
        """
        self._watch_production()
        self._obey_removals()
        self._judge_trial()

    def _obey_removals(self) -> None:
        """Put what serves into production again without the lines that people have removed."""
        log, registry = self._log, self._registry
        number = registry.at(PRODUCTION)
        removals = [item for item in log.decisions if item.action == "remove"]
        if number is None or not removals or not log.ended:
            return
        texts = [item.text for item in removals]
        books = {name: book.without(texts) for name, book in log.books.items()}
        lines = Lines(self._setup.texts(), books)
        serves = lines.of(registry.version(number).texts)
        if serves & lines.removed:
            log.change_books(books)
            trial = open_trial(log.decisions)
            rest = lines.texts(serves - lines.removed)
            version = ship_removal(self._setup, registry, rest, removals[-1])
            if trial is not None:
                log.decide(
                    LiveDecision("withdraw", "a line was removed", trial.session, trial.version)
                )
            log.decide(LiveDecision("promote", "a line was removed", 0, version))

    def _watch_production(self) -> None:
        """See whether servers, or people, took back what was promoted last, or went on from it."""
        moves = [item for item in self._log.decisions if item.action in ("promote", "roll back")]
        if not moves or moves[-1].action == "roll back" or not moves[-1].session:
            return
        version, serves = moves[-1].version, self._registry.at(PRODUCTION)
        trial = open_trial(self._log.decisions)
        if serves == version or (trial is not None and serves == trial.version):
            return
        action, why = last_move(self._registry)
        if action == "promote":  # by hand, or by a learner that died behind it
            self._log.decide(LiveDecision("promote", why, version=serves))
            return
        why = f"version {serves} serves again: {last_reason(self._registry, version)}"
        self._take_back(moves[-1].session, "roll back", why, version)

    def _judge_trial(self) -> None:
        trial = open_trial(self._log.decisions)
        if trial is None:
            return
        ended = self._log.ended[-1]
        person = self._setup.approve == "human" or ended.person
        said = answers_to(trial, self._log.decisions)
        outcome = judge_trial(self._setup, self._registry, trial, said, person=person)
        if outcome is None:
            return
        if outcome.action == "promote" or outcome.why.startswith("undecided"):
            self._log.decide(
                LiveDecision(
                    outcome.action, outcome.why, session=trial.session, version=trial.version
                )
            )
        else:
            self._take_back(trial.session, outcome.action, outcome.why, trial.version)

    def _take_back(self, session: int, action: Action, why: str, version: int | None) -> None:
        """Retire what a version brought, so that only more evidence brings it again."""
        ended = next(item for item in self._log.ended if item.number == session)
        books = dict(self._log.books)
        for line in ended.lines:
            if line.new and line.passed:
                edit = Retire(line.lesson, f"version {version}: {why}"[:300], rows=_WEIGHT)
                books[line.component] = books[line.component].edit([edit]).book
        self._log.change_books(books)
        self._log.decide(LiveDecision(action, why, session=session, version=version))

    def conclude(self) -> None:
        """Publish what the last session came to, or say why nothing is; once."""
        log = self._log
        if not log.ended or log.is_open:
            return
        ended = log.ended[-1]
        if any(
            item.session == ended.number and item.action in ("propose", "refuse")
            for item in log.decisions
        ):
            return
        earlier = [Candidate(other.texts).id for other in log.ended[:-1] if other.texts]
        refused = ended.refused
        if ended.texts and Candidate(ended.texts).id in earlier:
            refused = "the same text was on trial before"
        if refused:
            self._log.decide(LiveDecision("refuse", refused, session=ended.number))
            return
        other = other_challenger(self._registry, ended)
        if other is not None:
            why = f"version {other}, which somebody else has published, is on trial"
            if log.decisions[-1].why != why:
                log.decide(LiveDecision("skip", why, session=ended.number))
            return
        begun = log.begun.production if log.begun else 1
        before = self._registry.version(begun).texts
        version = propose(self._setup, self._registry, ended)
        write_review(self._setup, version, before, ended)
        why = f"{sum(line.passed for line in ended.lines)} lines change"
        self._log.decide(LiveDecision("propose", why, session=ended.number, version=version))
