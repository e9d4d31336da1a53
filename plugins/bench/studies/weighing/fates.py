"""What became of true exceptions: not met, not learned, waiting, retired, or served."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from combee_dspy.events import BookChanged
from combee_dspy.journal import Reader, RunHistory, journal_file
from combee_dspy.lessons import Book
from studies.weighing.tasks import Task
from studies.weighing.words import read_line

__all__ = ["FATES", "count_fates"]

FATES = ("exceptions_unmet", "exceptions_unlearned", "exceptions_waiting", "exceptions_retired")
"""Of those that the returned prompt lacks; the rest are served by the book alone."""


def count_fates(task: Task, folder: str, missing: set[tuple[str, str]]) -> dict[str, int]:
    """Count, of the true exceptions that a prompt lacks, what became of each.

    Args:
        task: Whose rows and exceptions they are.
        folder: The run's ``log_dir``.
        missing: Category and condition of each.
    """
    with Reader(journal_file(Path(folder))) as reader:
        books = [entry.event.book for entry in RunHistory(reader).entries(BookChanged)]
    states = _states(books[-1]) if books else {}
    met = {
        (row.case.category, name)
        for row in task.train
        for name in row.case.attributes
        if row.label == task.truth.exceptions.get((row.case.category, name))
    }
    counts = Counter(
        f"exceptions_{states.get((*case, task.truth.exceptions[case]), 'unlearned')}"
        if case in met
        else "exceptions_unmet"
        for case in missing
    )
    return {name: counts[name] for name in FATES}


def _states(book: Book) -> dict[tuple[str, str, str], str]:
    """Return the best state of each exception, by category, condition and code."""
    order = ("served", "waiting", "retired", "removed_by_user")
    states: dict[tuple[str, str, str], str] = {}
    for lesson in sorted(book.lessons, key=lambda lesson: order.index(lesson.state)):
        for text in (lesson.text, *lesson.texts):
            if meaning := read_line(text):
                case = (meaning.category, meaning.condition, meaning.code)
                states.setdefault(case, lesson.state)
    return states
