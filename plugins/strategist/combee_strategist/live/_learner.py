"""The one process that decides: what is due is done, and each decision is in its journal."""

from __future__ import annotations

from combee_dspy.journal import Journal, Reader, RunHistory
from combee_strategist.live._people import read_answers
from combee_strategist.live._records import Action, Decision
from combee_strategist.live._setup import Setup

__all__ = ["Learner"]


class Learner:
    """Decides what is learned and what is shipped. For one thread of one process.

    Args:
        setup: What it learns from and for.

    Raises:
        JournalHeldError: Another process learns.
        JournalError: The journal cannot be written.
    """

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._journal = Journal(setup.journal)
        about = {"live": setup.name}
        self._log = self._journal.run("live", setup.gate.seed, about, about)
        with Reader(self._journal.path) as reader:
            entries = RunHistory(reader).entries(Decision)
            self.decisions = [entry.event for entry in entries]

    def tick(self) -> tuple[Decision, ...]:
        """Do what is due; return what was decided."""
        before = len(self.decisions)
        self._hear_people()
        return tuple(self.decisions[before:])

    def close(self) -> None:
        """Let go of the journal."""
        self._log.close()
        self._journal.close()

    def _hear_people(self) -> None:
        heard = max((decision.line for decision in self.decisions), default=0)
        for line, answer in read_answers(self._setup.home, heard):
            if answer is None:
                self._decide("skip", "a line of people.jsonl cannot be read", line=line)
                continue
            self._decide(
                answer.action,
                answer.why,
                version=answer.version,
                who=answer.who,
                text=answer.text,
                line=line,
            )

    def _decide(
        self,
        action: Action,
        why: str,
        *,
        version: int | None = None,
        who: str = "",
        text: str = "",
        line: int = 0,
    ) -> None:
        """Put a decision into the journal; it is on disk when this returns."""
        decision = Decision(self._setup.clock(), 0, action, why, version, who, text, line)
        self._log.emit(decision)
        self._log.wait()
        self.decisions.append(decision)
