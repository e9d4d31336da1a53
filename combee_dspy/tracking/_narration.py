"""Narrates a finished run, update by update, from its journal: no model is asked."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from combee_dspy.events import BookChanged, BookLine, CandidateValidated, ScanEnded
from combee_dspy.journal import Reader, RunHistory
from combee_dspy.tracking._text import one_line

_STATES = {
    "served": "in the prompt",
    "waiting": "wait for more evidence",
    "retired": "retired",
    "removed_by_user": "removed",
}
_QUOTE, _BEST = 72, 6  # letters of a lesson, and lessons of the book at its end
_SCORES = (
    "SELECT step, count(*), count(*) - total(score > 0) FROM effect"
    " WHERE run = ? AND kind IN ('rollout', 'recorded') AND purpose = 'train' GROUP BY step"
)


def narrate(reader: Reader, console: Console, pause: float) -> None:
    """Write what the first run of a journal did.

    Args:
        reader: Of the journal. Borrowed.
        console: Where to write.
        pause: Seconds between two lines where somebody watches.
    """
    for label, sentence in narration(RunHistory(reader, 1)):
        console.print(Text.assemble((f"{label:>10}  ", "dim"), sentence), soft_wrap=True)
        if console.is_terminal:
            time.sleep(pause)


def narration(history: RunHistory) -> Iterator[tuple[str, str]]:
    """Yield a label and a sentence for each thing that a run did, by update."""
    rows = history.reader.rows(_SCORES, (history.run,))
    answers = {step: f"{_counted(n, 'answer')}, {wrong:.0f} wrong" for step, n, wrong in rows}
    book: tuple[BookLine, ...] = ()
    # Updates overlap: what belongs to one stands together here.
    entries = history.entries(BookChanged, CandidateValidated, ScanEnded)
    for entry in sorted(entries, key=lambda entry: entry.step):
        match entry.event:
            case ScanEnded(n=n) as scan:
                yield f"update {entry.step}", answers.get(entry.step, _counted(n, "answer"))
                yield from _scan(scan)
            case BookChanged(lessons=lessons) if lessons != book:
                book = lessons
                states = Counter[str](lesson.state for lesson in lessons)
                parts = [f"{states[name]} {text}" for name, text in _STATES.items() if states[name]]
                yield "weighed", f"{_counted(len(lessons), 'lesson')}: {', '.join(parts)}"
            case CandidateValidated(index=index, score=float() as score):
                who = f"candidate {index}" if index else "the program as it was"
                yield "validated", f"{who}: {score:.2f}"
    served = [lesson for lesson in book if lesson.state == "served"]
    for lesson in sorted(served, key=lambda lesson: -len(lesson.sources))[:_BEST]:
        yield "learned", f"{_quoted(lesson.text)} from {_counted(len(lesson.sources), 'answer')}"


def _scan(scan: ScanEnded) -> Iterator[tuple[str, str]]:
    """Yield what the calls of a scan did, level by level."""
    shards = [node.lessons for node in scan.nodes if node.level == 1]
    copies = f"each into {scan.copies} of " if scan.copies > 1 else ""
    yield "shuffled", f"{copies}{_counted(len(shards), 'shard')}"
    lessons = [lesson for shard in shards for lesson in shard]
    example = f", such as {_quoted(lessons[0])}" if lessons else ""
    calls = _counted(len(shards), "call")
    yield "read", f"{calls} at once: {_counted(len(lessons), 'lesson')}{example}"
    before = len(lessons)
    for level in sorted({node.level for node in scan.nodes} - {1}):
        merges = [len(node.lessons) for node in scan.nodes if node.level == level]
        change = f"{before} → {_counted(sum(merges), 'lesson')}"
        yield "scanned", f"{_counted(len(merges), 'call')}: {change}"
        before = sum(merges)
    lost = sum(not reflection.covered for reflection in scan.retained if reflection.measurable)
    if lost:
        yield "lost", f"what {_counted(lost, 'answer')} would teach"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _quoted(text: str) -> str:
    return f"“{one_line(text, _QUOTE)}”"
