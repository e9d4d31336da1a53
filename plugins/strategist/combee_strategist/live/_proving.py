"""Which new lines earn their place: each alone must mend rows that the team vouches for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from combee_dspy.lessons import BookLesson, certainty, nearest
from combee_strategist.live._lines import Line, Lines
from combee_strategist.live._records import LineEvidence
from combee_strategist.live._runs import GateRuns
from combee_strategist.live._verdict import GateRow

__all__ = ["Prover", "ScoredRow"]

ScoredRow = tuple[GateRow, float]
"""A row, with the score of the base on it."""

# Lines that a row which goes wrong tries, and rows that a line which mends one may spoil.
_TRIED, _SPOILED = 2, 4
# Rows that go wrong and try lines: the newest.
_WRONG = 24
# One row better and none worse: as in the tests of lessons.
_SURE = 0.75


@dataclass(frozen=True, slots=True)
class Prover:
    """Tries lines alone, each on top of a base and in the place of what it contradicts.

    Attributes:
        lines: The books.
        base: Lines of the text that is built on.
        runs: Runs texts on rows.
    """

    lines: Lines
    base: Collection[Line]
    runs: GateRuns

    def prove(
        self, new: Sequence[LineEvidence], rows: Sequence[ScoredRow]
    ) -> tuple[list[LineEvidence], set[str]]:
        """Return the new lines with what each does alone, and the id of a row that proves each.

        Each row that goes wrong tries the lines that share most words with it. However many
        requests teach a line, it goes nowhere without a row that it mends: whoever can write
        requests can teach.

        Args:
            new: Lines that want to come in.
            rows: Rows that the team vouches for.
        """
        mended = self._mended(new, rows)
        proven, proofs = [], set[str]()
        for line in new:
            wins = mended.get((line.component, line.lesson), set())
            others = [item for item in rows if item[0].id not in wins]
            losses = self._losses(line, others) if wins else 0
            tested = _judged(line, len(wins), losses)
            proven.append(tested)
            if tested.passed:
                proofs.add(min(wins))
        return proven, proofs

    def stale(self, passed: Sequence[LineEvidence], lost: Sequence[ScoredRow]) -> set[str]:
        """Return the ids of lost rows that say what was right before a line replaced another.

        They are older than the line's recent sources, and the line alone loses them.

        Args:
            passed: Lines that were proven.
            lost: Rows on which a text with all of them is worse than the base.
        """
        stale = set()
        for line in passed:
            old = [item for item in lost if item[0].at < line.since]
            if old:
                scores = self._alone(line, old)
                stale |= {
                    row.id
                    for (row, before), after in zip(old, scores, strict=True)
                    if after < before
                }
        return stale

    def _mended(
        self, new: Sequence[LineEvidence], rows: Sequence[ScoredRow]
    ) -> Mapping[Line, set[str]]:
        """Return the rows that each line mends."""
        wrong = sorted((item for item in rows if item[1] < 1), key=lambda item: -item[0].at)
        tries: dict[int, list[ScoredRow]] = defaultdict(list)
        for row, score in wrong[:_WRONG]:
            fitting = [place for place, line in enumerate(new) if row.at >= line.newest]
            # Of lines that share no word with it, those that most requests teach.
            fitting.sort(key=lambda place: -len(new[place].sources))
            near = nearest(row.words, [new[place].text for place in fitting], len(fitting))
            ranked = dict.fromkeys([*near, *range(len(fitting))])
            for place in self._tried([fitting[place] for place in ranked], new):
                tries[place].append((row, score))
        mended = {}
        for place, tried in tries.items():
            line, scores = new[place], self._alone(new[place], tried)
            mended[line.component, line.lesson] = {
                row.id for (row, before), after in zip(tried, scores, strict=True) if after > before
            }
        return mended

    def _tried(self, places: Sequence[int], new: Sequence[LineEvidence]) -> list[int]:
        """Return the lines that a row tries, of lines by their nearness to it.

        Beside an exception it tries what would take the place of the rule: where a rule has
        changed, exceptions that share more words with each row would hide its successor for good.
        """

        def lesson(place: int) -> BookLesson:
            return self.lines.lesson((new[place].component, new[place].lesson))

        rule = lesson(places[0]).rule if places else ""
        instead = [place for place in places if rule and rule in lesson(place).rivals]
        return [*dict.fromkeys([*places[:1], *instead[:1], *places[1:]])][:_TRIED]

    def _losses(self, line: LineEvidence, rows: Sequence[ScoredRow]) -> int:
        """Return how many of the nearest rows a line spoils, of those that may count against it."""
        rows = [item for item in rows if item[0].at >= line.since]
        newest = sorted(rows, key=lambda item: -item[0].at)
        near = nearest(line.text, [row.words for row, _ in newest], _SPOILED)
        chosen = [newest[place] for place in near]
        scores = self._alone(line, chosen)
        return sum(after < before for (_, before), after in zip(chosen, scores, strict=True))

    def _alone(self, line: LineEvidence, rows: Sequence[ScoredRow]) -> list[float]:
        swapped = self.lines.swapped(self.base, [(line.component, line.lesson)])
        return self.runs.score(self.lines.texts(swapped), [row for row, _ in rows])


def _judged(line: LineEvidence, wins: int, losses: int) -> LineEvidence:
    passed = wins > losses and certainty(wins, losses) >= _SURE
    why = "" if passed else f"alone it mends {wins} trusted rows and spoils {losses}"
    return replace(line, wins=wins, losses=losses, passed=passed, why=why)
