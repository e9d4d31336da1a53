"""Which new lines earn their place: each alone must mend rows that the team vouches for."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from combee_dspy.lessons import certainty, nearest
from combee_strategist.live._lines import Line, Lines
from combee_strategist.live._records import LineEvidence
from combee_strategist.live._runs import GateRuns
from combee_strategist.live._verdict import GateRow

__all__ = ["prove"]

# Rows that a line is tried on, the nearest first; a second round for those that moved none.
_ROUNDS = (4, 12)
# One row better and none worse: as in the tests of lessons.
_SURE = 0.75


def prove(
    lines: Lines,
    new: Sequence[LineEvidence],
    base: Collection[Line],
    rows: Sequence[tuple[GateRow, float]],
    runs: GateRuns,
) -> list[LineEvidence]:
    """Return the new lines with what each does alone, on top of what is served.

    However many requests teach a line, it goes nowhere without that: whoever can write requests can
    teach.

    Args:
        lines: The books.
        new: Lines that want to come in.
        base: Lines that are served.
        rows: Trusted rows on which all new lines together change the score, with the score before.
        runs: Buys the rollouts.
    """
    texts = [_words(row) for row, _ in rows]
    ranked = {
        line.lesson: [rows[place] for place in nearest(line.text, texts, len(texts))]
        for line in new
    }
    proven = list(new)
    start = 0
    for count in _ROUNDS:
        for place, line in enumerate(proven):
            if line.wins or line.losses:
                continue
            tried = ranked[line.lesson][start : start + count]
            with_it = lines.texts({*base, (line.component, line.lesson)})
            scores = runs.score(with_it, [row for row, _ in tried])
            before = [score for _, score in tried]
            proven[place] = _judged(line, before, scores)
        start += count
    return proven


def _judged(line: LineEvidence, before: Sequence[float], after: Sequence[float]) -> LineEvidence:
    wins = sum(new > old for old, new in zip(before, after, strict=True))
    losses = sum(new < old for old, new in zip(before, after, strict=True))
    passed = wins > losses and certainty(wins, losses) >= _SURE
    why = "" if passed else f"alone it mends {wins} trusted rows and spoils {losses}"
    return replace(line, wins=wins, losses=losses, passed=passed, why=why)


def _words(row: GateRow) -> str:
    return " ".join(map(str, row.example.toDict().values()))
