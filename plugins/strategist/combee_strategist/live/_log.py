"""What the learner remembers: its journal, and a file to which any process appends for people."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import dspy
import orjson
from pydantic import JsonValue, TypeAdapter, ValidationError

from combee_dspy.costs import Tariff, metered
from combee_dspy.events import BookChanged, Event
from combee_dspy.files import append_plain, make_folder, read_plain
from combee_dspy.hashing import row_hash
from combee_dspy.journal import Effect, Journal, Reader, RunHistory, RunLog
from combee_dspy.lessons import Book
from combee_dspy.lms.redact import scrub
from combee_dspy.rollouts import await_here, read_score
from combee_dspy.traces import Trace, as_example
from combee_strategist.canary import open_journals
from combee_strategist.live._budget import DayBudget
from combee_strategist.live._options import DAY, Setup
from combee_strategist.live._page import Days, write_live_page
from combee_strategist.live._records import LiveDecision, SessionBegun, SessionEnded

__all__ = ["DecisionReader", "LearnerLog", "read_answers", "write_answer"]

logger = logging.getLogger("combee_dspy")

_PEOPLE = "people.jsonl"
_ANSWERS = ("approve", "reject", "remove")


class LearnerLog:
    """The learner's journal. For one thread.

    Attributes:
        decisions: All so far, oldest first.
        begun: The last session that began; ``None`` before the first.
        ended: All that ended, oldest first.
        books: By predictor, as the last of these left them.
        budget: What a day may cost.

    Raises:
        JournalHeldError: Another process learns.
        JournalError: The journal cannot be written.
    """

    def __init__(self, setup: Setup, rate: float = 0.0) -> None:
        self._setup, self._tariff = setup, Tariff()
        self._journal = Journal(setup.journal)
        about = {"live": setup.name}
        self.run: RunLog = self._journal.run("live", setup.gate.seed, about, about)
        self.budget = DayBudget(setup.learning, rate, setup.clock, self.run)
        self._days = Days(setup.requests, self._journal.path)
        self._largest_score = 0
        with Reader(self._journal.path) as reader:
            history = RunHistory(reader)
            self.decisions = [entry.event for entry in history.entries(LiveDecision)]
            self.begun = history.last(SessionBegun)
            self.ended = [entry.event for entry in history.entries(SessionEnded)]
            last = self.ended[-1].number if self.ended else 0
            self.books: Mapping[str, Book] = {
                entry.component: entry.event.book
                for entry in history.entries(BookChanged, last_step=last)
            }

    @property
    def is_open(self) -> bool:
        """Whether a session has begun and not ended."""
        last = self.ended[-1].number if self.ended else 0
        return self.begun is not None and self.begun.number > last

    def decide(self, decision: LiveDecision) -> None:
        """Put a decision into the journal, with the time; it is on disk when this returns."""
        decision = replace(decision, at=self._setup.clock())
        self._write(decision, decision.session)
        self.decisions.append(decision)

    def skip(self, why: str, session: int = 0) -> None:
        """Say why nothing goes on, once a day for as long as it holds.

        Reasons that take turns are said once each: what is before the colon tells them apart.
        """
        for last in reversed(self.decisions):
            if last.action != "skip" or last.at // DAY != self._setup.clock() // DAY:
                break
            if (last.session, last.why.split(":")[0]) == (session, why.split(":")[0]):
                return
        self.decide(LiveDecision("skip", why, session))

    def begin(self, begun: SessionBegun) -> None:
        """Put the beginning of a session into the journal."""
        self._write(begun, begun.number)
        self.begun = begun

    def end(self, ended: SessionEnded, books: Mapping[str, Book]) -> None:
        """Put a session's books and its end into the journal: all of it counts, or nothing."""
        self._keep_books(books, ended.number)
        self._write(ended, ended.number)
        self.ended.append(ended)
        self.books = books

    def change_books(self, books: Mapping[str, Book]) -> None:
        """Keep books that something other than a session has changed."""
        self._keep_books(books, self.ended[-1].number)
        self.run.wait()
        self.books = books

    def score(self, trace: Trace) -> Trace:
        """Return a trace with the metric's score and feedback, where it has expected answers.

        The metric is asked once about an answer and its labels; of one that fails, what people
        said remains.

        Raises:
            DaySpentError: The metric calls an LM, and the day cannot pay for it.
        """
        if not trace.expected or trace.outputs is None:
            return replace(trace, score=0.0) if trace.outputs is None else trace
        key = f"score/{trace.id}/{row_hash(trace.expected)[:16]}"
        value: Mapping[str, JsonValue] | None = self.run.find(key)
        if value is None:
            value = self._measure(key, trace)
        if "score" not in value:
            return trace
        feedback = "\n".join(filter(None, (str(value["feedback"]), trace.feedback)))
        return replace(trace, score=float(str(value["score"])), feedback=feedback)

    def write_page(self) -> Path:
        """Write the page; return it."""
        self.run.wait()  # scores are put into it by another thread
        days = self._days.rows()
        return write_live_page(self._setup, days, self.decisions, self.ended, self.books)

    def close(self) -> None:
        """Let go of the journal."""
        self.run.close()
        self._journal.close()

    def _measure(self, key: str, trace: Trace) -> Mapping[str, JsonValue]:
        setup, now = self._setup, self._setup.clock()
        # A metric may call an LM; what the first call costs is not known before.
        reserved = self._largest_score
        self.budget.reserve(reserved)
        prediction = dspy.Prediction(**trace.outputs or {})
        value: dict[str, JsonValue] = {}
        score: float | None = None
        with metered(self._tariff, "evaluator") as meter:
            try:
                example = as_example(trace)
                output = await_here(setup.metric(example, prediction, None, None, None))
                score, feedback, _ = read_score(output)
                value = {"score": score, "feedback": scrub(feedback)}
            except Exception as error:  # noqa: BLE001 - a metric of the user's, on a hostile text
                logger.warning(
                    "live %s: a label was not scored: %s", setup.name, scrub(repr(error))
                )
        usage = meter.usage()
        self.budget.give_back(reserved, usage)
        tokens = sum(call.prompt_tokens + call.completion_tokens for call in usage)
        self._largest_score = max(self._largest_score, tokens)
        effect = Effect(
            key,
            "feedback",
            value,
            "evaluator",
            "score",
            candidate=trace.prompt,
            score=score,
            started=now,
            usage=usage,
        )
        self.run.put(effect)
        return value

    def _keep_books(self, books: Mapping[str, Book], session: int) -> None:
        for name, book in books.items():
            if book != self.books.get(name):
                self.run.emit(BookChanged.of(book), step=session, component=name)

    def _write(self, event: Event, session: int) -> None:
        self.run.emit(event, step=session)
        self.run.wait()


class DecisionReader:
    """The decisions of a learner, for any process; each is read once. Thread-safe.

    Args:
        folder: Where the learner's journal lies.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._decisions: list[LiveDecision] = []
        self._last = 0

    def read(self) -> tuple[LiveDecision, ...]:
        """Return all so far, oldest first."""
        with self._lock:
            for reader in open_journals(self._folder):  # none while the learner begins it
                for entry in RunHistory(reader).entries(LiveDecision, after=self._last):
                    self._decisions.append(entry.event)
                    self._last = entry.id
            return tuple(self._decisions)


_DECISION = TypeAdapter(LiveDecision)


def write_answer(home: Path, answer: LiveDecision) -> None:
    """Append what a person decided; the learner takes it up with its next tick.

    Raises:
        OSError: It cannot be written.
    """
    make_folder(home)
    # The time tells it from the same words said again.
    line = orjson.dumps(asdict(replace(answer, at=time.time())))
    append_plain(home / _PEOPLE, line + b"\n")


def read_answers(home: Path, decisions: Sequence[LiveDecision]) -> list[LiveDecision]:
    """Return what people decided and no decision carries out; a line that is still being written is
    left.

    Each line is known by what it says: somebody may cut the file, or put an empty one in its place.
    """
    if not (home / _PEOPLE).exists():
        return []
    digests = {item.answer for item in decisions if item.line}
    # Of journals of before, which knew a line by its number alone.
    after = max((item.line for item in decisions if not item.answer), default=0)
    answers = []
    for number, line in enumerate(read_plain(home / _PEOPLE).split(b"\n")[:-1], 1):
        digest = hashlib.blake2b(line, digest_size=8).hexdigest()
        if number > after and digest not in digests:
            digests.add(digest)
            answers.append(replace(_read(line), line=number, answer=digest))
    return answers


def _read(text: bytes) -> LiveDecision:
    try:
        answer = _DECISION.validate_json(text)
    except ValidationError:
        answer = None
    # A number that no journal holds would end every tick.
    if (
        answer is None
        or answer.action not in _ANSWERS
        or not answer.who
        or (answer.version or 0) >= 2**63
    ):
        return LiveDecision("skip", "a line of people.jsonl cannot be read")
    return replace(answer, session=0)
