"""A finished run, told update by update from its journal: no model is asked."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from rich.console import Console
from rich.text import Text

from combee_dspy.events import (
    BookChanged,
    BookLine,
    CandidateValidated,
    HeldoutRead,
    LessonTested,
    ScanEnded,
)
from combee_dspy.journal import Reader, RunHistory
from combee_dspy.records import NodeOutput
from combee_dspy.tracking._text import one_line
from combee_dspy.verdicts import judge_difference

_STATES = {
    "served": "in the prompt",
    "waiting": "wait for more evidence",
    "retired": "retired",
    "removed_by_user": "removed",
}
_QUOTE, _BEST = 72, 6  # letters of a lesson, and lessons of the book at its end


def narrate(reader: Reader, console: Console, pause: float) -> None:
    """Write what a run did, with ``pause`` seconds between two lines where somebody watches."""
    for label, sentence in narration(reader):
        console.print(Text.assemble((f"{label:>10}  ", "dim"), sentence), soft_wrap=True)
        if console.is_terminal:
            time.sleep(pause)


def narration(reader: Reader, run: int = 1) -> Iterator[tuple[str, str]]:
    """Yield a label and a sentence for each thing that a run did, by update."""
    history = RunHistory(reader, run)
    scores = _scores(reader, run)
    followed = (BookChanged, CandidateValidated, HeldoutRead, LessonTested, ScanEnded)
    book: tuple[BookLine, ...] = ()
    held: HeldoutRead | None = None
    # Updates overlap: what belongs to one stands together here.
    for entry in sorted(history.entries(*followed), key=lambda entry: entry.step):
        match entry.event:
            case ScanEnded() as scan:
                yield f"update {entry.step}", scores.get(entry.step, f"{scan.n} answers")
                yield from _scan(scan)
            case BookChanged(lessons=lessons) if lessons != book:
                book = lessons
                states: Counter[str] = Counter(lesson.state for lesson in lessons)
                parts = [f"{states[name]} {text}" for name, text in _STATES.items() if states[name]]
                yield "weighed", f"{_counted(len(lessons), 'lesson')}: {', '.join(parts)}"
            case LessonTested() as test:
                outcome = "confirmed" if test.accepted else "not confirmed"
                rows = f"{test.wins} rows better, {test.losses} worse"
                change = f"{'with' if test.serve else 'without'} {_quoted(test.text)}"
                yield "tested", f"{change}: {rows}: {outcome}"
            case CandidateValidated(index=index, score=score) if score is not None:
                who = f"candidate {index}" if index else "the program as it was"
                yield "validated", f"{who}: {score:.2f}"
            case HeldoutRead() as event:
                held = event
    served = [lesson for lesson in book if lesson.state == "served"]
    for lesson in sorted(served, key=lambda lesson: -len(lesson.sources))[:_BEST]:
        yield "learned", f"{_quoted(lesson.text)} from {_counted(len(lesson.sources), 'answer')}"
    if held is not None:
        verdict = judge_difference(held.difference, held.low, held.high, held.n)
        yield "held out", f"{held.before:.2f} → {held.after:.2f}: {verdict}"


def _scores(reader: Reader, run: int) -> dict[int, str]:
    """Return how the answers of each minibatch were, in words."""
    sql = (
        "SELECT step, count(*), sum(score > 0) FROM effect"
        " WHERE run = ? AND kind IN ('rollout', 'recorded') AND purpose = 'train' GROUP BY step"
    )
    return {
        step: f"{_counted(number, 'answer')}, {number - (right or 0)} wrong"
        for step, number, right in reader.rows(sql, (run,))
    }


def _scan(scan: ScanEnded) -> Iterator[tuple[str, str]]:
    levels: dict[int, list[NodeOutput]] = {}
    for node in scan.nodes:
        levels.setdefault(node.level, []).append(node)
    shards = levels.get(1, [])
    copies = f"each into {scan.copies} of " if scan.copies > 1 else ""
    yield "shuffled", f"{copies}{_counted(len(shards), 'shard')}"
    texts = [text for node in shards for text in node.lessons]
    first = f", such as {_quoted(texts[0])}" if texts else ""
    yield (
        "read",
        f"{_counted(len(shards), 'call')} at once: {_counted(len(texts), 'lesson')}{first}",
    )
    for (_, below), (_, above) in pairwise(sorted(levels.items())):
        before, after = (sum(len(node.lessons) for node in nodes) for nodes in (below, above))
        calls = _counted(len(above), "call")
        yield "scanned", f"{calls}: {before} → {_counted(after, 'lesson')}"
    lost = sum(not kept.covered for kept in scan.retained if kept.measurable)
    if lost:
        yield "lost", f"what {_counted(lost, 'answer')} would teach"


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _quoted(text: str) -> str:
    return f"“{one_line(text, _QUOTE)}”"
