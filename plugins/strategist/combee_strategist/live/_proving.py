"""Which new lines earn their place: each alone must mend rows that the team vouches for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from combee_dspy.lessons import certainty, nearest
from combee_strategist.live._lines import Line, Lines
from combee_strategist.live._records import LineEvidence
from combee_strategist.live._runs import GateRuns
from combee_strategist.live._verdict import GateRow

__all__ = ["prove", "stale_rows"]

ScoredRow = tuple[GateRow, float]

# Rows that a line may mend, and others that one which mends something may spoil: the nearest ones.
_MENDED, _SPOILED = 6, 8
# One row better and none worse: as in the tests of lessons.
_SURE = 0.75


def prove(
    lines: Lines,
    new: Sequence[LineEvidence],
    base: Collection[Line],
    rows: Sequence[ScoredRow],
    runs: GateRuns,
) -> list[LineEvidence]:
    """Return the new lines with what each does alone, on top of what is served.

    However many requests teach a line, it goes nowhere without that: whoever can write requests can
    teach. A line that contradicts others is tried in their place.

    Args:
        lines: The books.
        new: Lines that want to come in.
        base: Lines that are served.
        rows: Trusted rows, with what is served now scores on them.
        runs: Buys the rollouts.
    """
    wrong = [(row, score) for row, score in rows if score < 1]
    proven = []
    for line in new:
        texts = lines.texts(lines.swapped(base, [(line.component, line.lesson)]))
        tried = _near(line, wrong)[:_MENDED]
        scored = list(zip(tried, runs.score(texts, [row for row, _ in tried]), strict=True))
        if any(after > before for (_, before), after in scored):
            others = _near(line, [item for item in rows if item not in tried])[:_SPOILED]
            scores = runs.score(texts, [row for row, _ in others])
            scored += zip(others, scores, strict=True)
        proven.append(_judged(line, scored))
    return proven


def stale_rows(
    lines: Lines,
    new: Sequence[LineEvidence],
    base: Collection[Line],
    rows: Sequence[ScoredRow],
    runs: GateRuns,
) -> set[str]:
    """Return the ids of rows that say what was right before a proven line took an old one's place.

    They are older than the line's sources, and the line alone loses them. Of each such line the
    nearest rows are tried.

    Args:
        lines: The books.
        new: Lines that were proven, or not.
        base: Lines that are served.
        rows: The gate's, with what is served now scores on them.
        runs: Buys the rollouts.
    """
    stale = set()
    for line in new:
        old = [(row, score) for row, score in rows if row.at < line.since and score > 0]
        if line.passed:
            near = _near(line, old)[:_SPOILED]
            texts = lines.texts(lines.swapped(base, [(line.component, line.lesson)]))
            scores = runs.score(texts, [row for row, _ in near])
            stale |= {
                row.id for (row, before), after in zip(near, scores, strict=True) if after < before
            }
    return stale


def _near(line: LineEvidence, rows: Sequence[ScoredRow]) -> list[ScoredRow]:
    """Return all rows, those that share most words with a line first, and then the newest."""
    newest = sorted(rows, key=lambda item: -item[0].at)
    places = nearest(line.text, [row.words for row, _ in newest], len(newest))
    rest = (place for place in range(len(newest)) if place not in places)
    return [newest[place] for place in (*places, *rest)]


def _judged(line: LineEvidence, scored: Sequence[tuple[ScoredRow, float]]) -> LineEvidence:
    wins = sum(after > before for (_, before), after in scored)
    losses = sum(after < before and row.at >= line.since for (row, before), after in scored)
    passed = wins > losses and certainty(wins, losses) >= _SURE
    why = "" if passed else f"alone it mends {wins} trusted rows and spoils {losses}"
    return replace(line, wins=wins, losses=losses, passed=passed, why=why)
