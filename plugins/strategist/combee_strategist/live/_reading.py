"""Readers learn lessons from the requests of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from combee_dspy.aggregators import ReferenceScan
from combee_dspy.files import file_name
from combee_dspy.hashing import digest_of
from combee_dspy.learning import Allowance, learn_lessons
from combee_dspy.lessons import Book
from combee_dspy.traces import Trace, is_right
from combee_strategist.live._served import views
from combee_strategist.live._session import Session

__all__ = ["read_lessons"]

# Levels at which readers relate lessons. What they overlook, proof finds.
_LEVELS = 2


def read_lessons(
    session: Session, books: Mapping[str, Book], removed: Sequence[str], allowance: Allowance
) -> dict[str, Book]:
    """Return the books, by predictor, after a session's requests.

    What went wrong although a line is served about it is read twice. Who sees the line writes an
    exception to it, and who does not see it what should stand in its place. Proof decides between
    them.

    Args:
        session: What is read.
        books: As the last session left them.
        removed: Texts that people have removed.
        allowance: Is asked before each call.

    Raises:
        DaySpentError: The day cannot pay for it; answers so far are in the journals.
        InfrastructureError: The service kept failing.
    """
    books = {
        name: _pruned(session, name, books.get(name, Book())).without(removed)
        for name in session.setup.texts()
    }
    traces = [row.trace for row in session.new]
    if not any(trace.judged and not is_right(trace) for trace in traces):
        return books
    lines = session.lines(books)
    serves, failed = session.served(lines), session.failed(lines)
    books = _read(session, books, traces, lines.texts(serves), allowance)
    if failed:
        again = [row.trace for rows in failed.values() for row in rows]
        without = lines.texts(serves - failed.keys())
        books = _read(session, books, again, without, allowance)
    return books


def _read(
    session: Session,
    books: Mapping[str, Book],
    traces: Sequence[Trace],
    prompts: Mapping[str, str],
    allowance: Allowance,
) -> dict[str, Book]:
    """Return the books after one reading of traces beside prompts."""
    setup, number = session.setup, session.begun.number
    after = dict(books)
    for name, seen in views(traces, setup.program).items():
        # What was read beside another prompt is another reading: the session may have waited.
        digest = digest_of([prompts[name], *(trace.id for trace in seen)])
        learned = learn_lessons(
            seen,
            reflection_lm=setup.reflection_lm,
            aggregator=ReferenceScan(levels=_LEVELS),
            task=prompts[name],
            selection=replace(setup.learning.selection, tokens=session.begun.tokens),
            num_threads=setup.learning.num_threads,
            log_dir=setup.home / "sessions" / f"{number}-{file_name(name)}-{digest[:8]}",
            book=books[name],
            allowance=allowance,
        )
        after[name] = learned.book
    return after


def _pruned(session: Session, name: str, book: Book) -> Book:
    """Return a book without lines that are not served, and that nobody has taught for days."""
    serves = session.served(session.lines({name: book}))
    return Book(
        tuple(
            lesson
            for lesson in book.lessons
            if lesson.decided
            or (name, lesson.id) in serves
            or not session.fresh.isdisjoint(lesson.sources)
        )
    )
