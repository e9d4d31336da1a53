"""What one learning session starts from: labelled requests, and the versions that serve and try."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from combee_dspy.lessons import Book, BookLesson
from combee_dspy.lms.redact import scrub
from combee_dspy.search import Texts
from combee_dspy.traces import Trace, is_right, redact_trace
from combee_strategist.canary import Version
from combee_strategist.live._evidence import by_lesson
from combee_strategist.live._lines import Line, Lines
from combee_strategist.live._options import DAY, Setup
from combee_strategist.live._records import SessionBegun, TaughtRequest
from combee_strategist.live._served import ServedRow, is_behind

__all__ = ["FRESH", "Session"]

# Requests behind a line whose texts are kept, and characters of each of their texts.
_READ, _LONGEST = 10, 300

FRESH = 3 * DAY
"""Seconds in which a request is recent: where it contradicts older ones it may be the news."""


@dataclass(frozen=True)
class Session:
    """What one learning session starts from.

    All that it does follows from this and from effects that are looked up first, so a session that
    was killed goes on where it was.

    Attributes:
        setup: Of the Live.
        begun: When it began, and which labels it reads.
        rows: Every labelled request up to its cursor, oldest label first.
        drift: When a slice drifted last; 0 for never.
        dated: When each slice drifted as a whole: its rows from before are set aside.
        production: The version that serves.
        challenger: The version on trial; ``None`` for none.
        trial_until: Until when only a clearly better text takes the place of what is on trial.
        stale: Rows of the gate that say what is right no longer.
    """

    setup: Setup
    begun: SessionBegun
    rows: Sequence[ServedRow]
    drift: float
    dated: Mapping[str, float]
    production: Version
    challenger: Version | None
    trial_until: float
    stale: Collection[str] = ()

    @cached_property
    def new(self) -> list[ServedRow]:
        """Requests that teach, and that no session has read."""
        return [row for row in self.rows if row.teaches and is_behind(self.begun.after, row)]

    @cached_property
    def fresh(self) -> set[str]:
        """Ids of requests that are recent or new."""
        since = self.begun.at - FRESH
        recent = {row.trace.id for row in self.rows if row.at >= since}
        return recent | {row.trace.id for row in self.new}

    def taught(self, requests: Collection[str]) -> tuple[TaughtRequest, ...]:
        """Return the newest of some requests as a person reads them, newest first."""
        privacy = replace(self.setup.privacy, texts="redacted")
        redact = Texts(privacy, scrub).scrub
        rows = [row for row in self.rows if row.trace.id in requests]
        return tuple(_as_read(redact_trace(row.trace, redact)) for row in rows[: -_READ - 1 : -1])

    def lines(self, books: Mapping[str, Book]) -> Lines:
        """Return books as lines that a text may serve."""
        return Lines(self.setup.texts(), books)

    def served(self, lines: Lines) -> set[Line]:
        """Return the lines that the version in production serves."""
        return lines.of(self.production.texts)

    def failed(self, lines: Lines) -> dict[Line, Sequence[ServedRow]]:
        """Return the served lines that new requests which went wrong are about, with these."""
        wrong = [row for row in self.new if not is_right(row.trace)]
        return {
            (name, lessons[place].id): rows
            for name, lessons in self._served_lessons(lines).items()
            for place, rows in by_lesson(lessons, wrong).items()
        }

    def _served_lessons(self, lines: Lines) -> dict[str, list[BookLesson]]:
        serves = self.served(lines)
        return {
            name: [lesson for lesson in book.lessons if (name, lesson.id) in serves]
            for name, book in lines.books.items()
        }


def _as_read(trace: Trace) -> TaughtRequest:
    said = trace.feedback or ("" if trace.expected else f"score {trace.score or 0.0:.2f}")
    failed = f"failed: {trace.error}" if trace.error else "nothing"
    answered = failed if trace.outputs is None else _joined(trace.outputs)
    return TaughtRequest(
        trace.id, _joined(trace.inputs), _cut(answered), _joined(trace.expected), _cut(said)
    )


def _joined(fields: Mapping[str, object]) -> str:
    if len(fields) == 1:
        return _cut(str(*fields.values()))
    return _cut("; ".join(f"{name}: {value}" for name, value in fields.items()))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
