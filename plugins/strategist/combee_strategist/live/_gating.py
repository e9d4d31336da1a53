"""The gate: from the books of a session to a text that may go on trial."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from statistics import fmean

from combee_dspy.evaluation import Receipt, heldout_identity
from combee_dspy.lessons import Book, BookLesson
from combee_dspy.records import Metric
from combee_dspy.rollouts import fingerprint
from combee_dspy.search import Candidate
from combee_dspy.traces import as_example
from combee_strategist.live._lines import Line, Lines
from combee_strategist.live._proving import Prover
from combee_strategist.live._records import LineEvidence, SessionEnded, SetScores
from combee_strategist.live._runs import GateRuns
from combee_strategist.live._session import FRESH, Session
from combee_strategist.live._verdict import (
    GateResult,
    GateRow,
    choose_rows,
    compare,
    is_better,
    refusal,
)

__all__ = ["gate"]


def gate(session: Session, books: Mapping[str, Book], runs: GateRuns) -> SessionEnded:
    """Return what goes on trial, or why nothing does.

    Raises:
        DaySpentError: The day cannot pay for it; scores so far are in the journal.
        InfrastructureError: The service kept failing.
    """
    return _Gating(session, session.lines(books), runs).verdict()


@dataclass(frozen=True, slots=True)
class _Gating:
    session: Session
    lines: Lines
    runs: GateRuns

    def verdict(self) -> SessionEnded:
        lines, session = self.lines, self.session
        serves = session.served(lines)
        base = serves - lines.removed
        new = [self._evidence(line) for line in sorted(self._candidates() - base)]
        if not new and base == serves:
            return self._ended("nothing new was learned")
        sets = self._rows()
        rows = [row for part in sets.values() for row in part]
        if not rows:
            return self._ended("no labelled row is there to gate on", new)
        scored = list(zip(rows, self.runs.score(lines.texts(base), rows), strict=True))
        trusted = [item for item in scored if item[0].trusted]
        prover = Prover(lines, base, self.runs)
        new, proofs = prover.prove(new, trusted or scored)
        passed = [line for line in new if line.passed]
        text = lines.swapped(base, [(line.component, line.lesson) for line in passed])
        if text == serves:
            return self._ended("no new line mends a trusted row", new)
        gone = [
            replace(self._evidence(line), new=False, passed=True, why="replaced")
            for line in sorted(serves - text)
        ]
        texts = lines.texts(text)
        scores = self.runs.score(texts, rows)
        results = [
            GateResult(row, old, after) for (row, old), after in zip(scored, scores, strict=True)
        ]
        lost = [(item.row, item.before) for item in results if item.difference < 0]
        stale = prover.stale(passed, lost)
        by_row = {item.row.id: item for item in results if item.row.id not in stale}
        by_set = {
            name: [by_row[row.id] for row in part if row.id in by_row]
            for name, part in sets.items()
        }
        results = [*by_row.values()]
        refused = refusal(by_set, session.setup.gate) or self._beside_challenger(texts, results)
        ended = replace(
            self._ended(refused, [*new, *gone]),
            sets={
                name: SetScores(
                    len(part),
                    fmean(item.before for item in part),
                    fmean(item.after for item in part),
                )
                for name, part in by_set.items()
                if part
            },
        )
        if refused:
            return ended
        return replace(
            ended,
            lines=tuple(self._with_requests(line) for line in ended.lines),
            texts=texts,
            before=session.production.texts,
            person=not trusted,
            receipt=self._receipt(texts, results),
            pairs=tuple(item.difference for name, item in by_row.items() if name not in proofs),
            stale=tuple(sorted(stale)),
        )

    def _beside_challenger(self, texts: Mapping[str, str], results: Sequence[GateResult]) -> str:
        """Return why a text does not take the place of what is on trial; empty where it does."""
        session, rival = self.session, self.session.challenger
        if rival is None or texts == rival.texts:
            return ""
        scores = self.runs.score(rival.texts, [item.row for item in results])
        gains = [replace(item, before=score) for item, score in zip(results, scores, strict=True)]
        if is_better(gains, clearly=session.begun.at < session.trial_until):
            return ""
        return f"version {rival.number}, which is on trial, is about as good"

    def _candidates(self) -> set[Line]:
        """Return lines that recent requests teach, and that no decision keeps out."""
        return {
            (name, lesson.id)
            for name, book in self.lines.books.items()
            for lesson in book.lessons
            if not lesson.decided and not self.session.fresh.isdisjoint(lesson.sources)
        }

    def _rows(self) -> dict[str, list[GateRow]]:
        """Return the gate's rows by set: what the team gave, and requests that do not teach."""
        session, setup = self.session, self.session.setup
        rows = [
            GateRow(row, setup.slice_of(row.inputs().toDict()), trusted=True)
            for row in setup.trusted
        ]
        rows += [
            GateRow(as_example(row.trace), row.slice, row.at, row.trusted)
            for row in session.rows
            if not row.teaches and row.trace.expected
        ]
        current = [
            row
            for row in rows
            if row.id not in session.stale and row.at >= session.dated.get(row.slice, 0.0)
        ]
        return choose_rows(current, setup.gate, session.begun.at)

    def _evidence(self, line: Line) -> LineEvidence:
        lesson, session = self.lines.lesson(line), self.session
        since = self._since(lesson)
        newest = max(session.begun.at - FRESH, session.drift) if since else 0.0
        return LineEvidence(
            *line, lesson.text, lesson.sources, new=True, since=since, newest=newest
        )

    def _with_requests(self, line: LineEvidence) -> LineEvidence:
        """Return a line with the newest requests that teach it, where it comes in."""
        if not (line.new and line.passed):
            return line
        return replace(line, requests=self.session.taught(line.sources))

    def _since(self, lesson: BookLesson) -> float:
        """Return when the first recent request taught what contradicts others; else 0."""
        if not lesson.rivals and not lesson.rule:
            return 0.0
        times = [row.at for row in self.session.rows if row.trace.id in lesson.sources]
        fresh = [at for at in times if at >= self.session.begun.at - FRESH]
        return min(fresh or times, default=0.0)

    def _ended(self, refused: str, lines: Sequence[LineEvidence] = ()) -> SessionEnded:
        session = self.session
        now, number = session.setup.clock(), session.begun.number
        return replace(
            SessionEnded.of_nothing(now, number, refused),
            taught=len(session.new),
            lines=tuple(lines),
            production=session.production.number,
        )

    def _receipt(self, texts: Mapping[str, str], results: Sequence[GateResult]) -> str:
        session, setup = self.session, self.session.setup
        metric: Metric = setup.metric
        examples = [item.row.example for item in results]
        receipt = Receipt(
            "read",
            f"run {session.begun.number}, {setup.name}",
            datetime.fromtimestamp(session.begun.at, UTC).isoformat(),
            heldout_identity(examples, fingerprint(setup.program, metric)),
            (Candidate(session.production.texts).id, Candidate(texts).id),
            tuple(item.before for item in results),
            tuple(item.after for item in results),
            compare(results, setup.gate),
            looks=session.begun.number - 1,
            seed=setup.gate.seed,
        )
        return json.dumps(receipt.to_dict())
