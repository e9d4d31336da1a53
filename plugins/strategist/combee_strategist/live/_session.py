"""One learning session: from labels to a text that may go on trial.

What it does follows from the event that began it and from effects that are looked up first, so a
session that was killed goes on where it was.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from combee_dspy.artifacts import Instruction
from combee_dspy.evaluation import Receipt, heldout_identity
from combee_dspy.files import file_name
from combee_dspy.learning import learn_lessons
from combee_dspy.lessons import Book, BookLesson, Retire
from combee_dspy.records import Metric
from combee_dspy.rollouts import fingerprint
from combee_dspy.search import Candidate
from combee_dspy.traces import as_example, is_right
from combee_strategist.canary import Version
from combee_strategist.live._allowance import SessionAllowance
from combee_strategist.live._evidence import contradicted, weighed
from combee_strategist.live._lines import Line, Lines
from combee_strategist.live._proving import prove, stale_rows
from combee_strategist.live._records import LineEvidence, SessionBegun, SessionEnded, SetScores
from combee_strategist.live._runs import GateRuns
from combee_strategist.live._served import ServedRow, is_behind, views
from combee_strategist.live._setup import Setup
from combee_strategist.live._verdict import GateRow, GateRows, choose_rows, compare, refusal

__all__ = ["Session"]

_FRESH = 3 * 86_400.0
"""Seconds in which a request is recent: what contradicts older ones may be the news."""


def _worth(ended: SessionEnded) -> tuple[bool, float]:
    rows = sum(scores.rows for scores in ended.sets.values())
    right = sum(scores.rows * scores.after for scores in ended.sets.values())
    return not ended.refused, right / rows if rows else 0.0


@dataclass(frozen=True, slots=True)
class Session:
    """One learning session.

    Attributes:
        setup: Of the Live.
        begun: What it follows from.
        rows: Every labelled request up to its cursor, oldest label first.
        drifts: When each slice last drifted.
        production: The version that served when it began.
    """

    setup: Setup
    begun: SessionBegun
    rows: Sequence[ServedRow]
    drifts: Mapping[str, float]
    production: Version

    def learn(
        self, books: Mapping[str, Book], removed: Sequence[str], allowance: SessionAllowance
    ) -> tuple[Mapping[str, Book], list[tuple[str, Retire]]]:
        """Return the books after this session's requests, and what live evidence took out of them.

        Raises:
            DaySpentError: The day cannot pay for it; what was read is kept.
            InfrastructureError: The service kept failing.
        """
        setup, own = self.setup, self.setup.texts()
        books = {name: books.get(name, Book()).without(removed) for name in own}
        new = [row.trace for row in self.rows if row.teaches and is_behind(self.begun.after, row)]
        if any(trace.judged and not is_right(trace) for trace in new):
            for name, traces in views(new, setup.program).items():
                learned = learn_lessons(
                    traces,
                    reflection_lm=setup.reflection_lm,
                    task=Instruction().serve(own[name], books[name]),
                    selection=replace(setup.learning.selection, tokens=self.begun.tokens),
                    num_threads=setup.learning.num_threads,
                    log_dir=setup.home / "sessions" / f"{self.begun.number}-{file_name(name)}",
                    book=books[name],
                    allowance=allowance,
                )
                books[name] = learned.book
        live = [
            row
            for row in self.rows
            if row.teaches and row.trace.prompt == f"v{self.production.number}"
        ]
        dated = {row.trace.id for row in self.rows if row.at < self.drifts.get(row.slice, 0.0)}
        aged = {row.trace.id for row in self.rows if row.at < self.begun.at - _FRESH}
        forgotten = []
        shows = Lines(own, books).of(self.production.texts)
        for name, book in books.items():
            here = Book(tuple(held for held in book.lessons if (name, held.id) in shows))
            edits = contradicted(here, live)
            forgotten += [(name, edit) for edit in edits]
            books[name] = weighed(book.edit(edits).book, dated, aged)
        return books, forgotten

    def gate(self, books: Mapping[str, Book], runs: GateRuns) -> SessionEnded:
        """Return what goes on trial, or why nothing does.

        Raises:
            DaySpentError: The day cannot pay for it; what was bought is kept.
            InfrastructureError: The service kept failing.
        """
        lines = Lines(self.setup.texts(), books)
        serves = lines.of(self.production.texts)
        base, wanted = serves - lines.removed, lines.served
        chosen = self._gate_rows()
        rows = chosen.all
        new = [self._evidence(lines, line, new=True) for line in sorted(wanted - base)]
        gone = [self._evidence(lines, line, new=False) for line in sorted(serves - wanted)]
        if not new and not gone:
            return self._ended("nothing new was learned")
        if not rows:
            return self._ended("no labelled row is there to gate on", [*new, *gone])
        before = runs.score(lines.texts(base), rows)
        trusted = any(row.trusted for row in rows)
        scored = list(zip(rows, before, strict=True))
        proof = [(row, score) for row, score in scored if row.trusted or not trusted]
        new = prove(lines, new, base, proof, runs)
        passed = {(line.component, line.lesson) for line in new if line.passed}
        full = lines.swapped(base, passed)
        stale = stale_rows(lines, new, base, scored, runs)
        judged = chosen.without(stale)
        scores = [score for row, score in scored if row.id not in stale]
        verdicts = []
        # Without what live evidence speaks against, and with it: it may have been something else.
        lean = full & (wanted | passed | lines.unreplaced(full))
        for text in dict.fromkeys((frozenset(lean), frozenset(full))):
            if text != serves:
                leaves = [
                    replace(line, passed=(line.component, line.lesson) not in text) for line in gone
                ]
                verdicts.append(
                    self._judged(lines.texts(text), [*new, *leaves], judged, scores, runs)
                )
        best = max(verdicts, key=_worth, default=None)
        if best is None:
            return self._ended("no new line mends a trusted row, and none leaves", new)
        return best if best.refused else replace(best, person=not trusted)

    def _judged(
        self,
        texts: Mapping[str, str],
        lines: Sequence[LineEvidence],
        chosen: GateRows,
        before: Sequence[float],
        runs: GateRuns,
    ) -> SessionEnded:
        after = runs.score(texts, chosen.all)
        count = len(chosen.heldout)
        sets = {
            "held-out": (chosen.heldout, before[:count], after[:count]),
            "retain": (chosen.retain, before[count:], after[count:]),
        }
        refused = refusal(sets, self.setup.gate)
        scores = {
            name: SetScores(len(rows), sum(old) / len(rows), sum(new) / len(rows))
            for name, (rows, old, new) in sets.items()
            if rows
        }
        ended = replace(self._ended(refused, lines), sets=scores)
        if refused:
            return ended
        return replace(ended, texts=texts, receipt=self._receipt(texts, chosen, before, after))

    def _gate_rows(self) -> GateRows:
        setup = self.setup
        given = [
            GateRow(row, setup.slices(row.inputs().toDict()), trusted=True) for row in setup.trusted
        ]
        labelled = [
            GateRow(as_example(row.trace), row.slice, row.at, row.trusted)
            for row in self.rows
            if not row.teaches and row.trace.expected
        ]
        return choose_rows([*given, *labelled], setup.gate, self.begun.at, self.drifts)

    def _evidence(self, lines: Lines, line: Line, *, new: bool) -> LineEvidence:
        held = lines.lesson(line)
        since = self._since(held) if new else 0.0
        why = "" if new else held.reason
        return LineEvidence(*line, held.text, held.sources, new, why=why, since=since)

    def _since(self, lesson: BookLesson) -> float:
        """Return when the first recent request taught what contradicts others; else 0."""
        if not lesson.rivals and not lesson.rule:
            return 0.0
        times = [row.at for row in self.rows if row.trace.id in lesson.sources]
        fresh = [at for at in times if at >= self.begun.at - _FRESH]
        return min(fresh or times, default=0.0)

    def _ended(self, refused: str, lines: Sequence[LineEvidence] = ()) -> SessionEnded:
        taught = sum(row.teaches and is_behind(self.begun.after, row) for row in self.rows)
        return SessionEnded(
            self.setup.clock(), self.begun.number, taught, {}, refused, False, tuple(lines), {}
        )

    def _receipt(
        self,
        texts: Mapping[str, str],
        chosen: GateRows,
        before: Sequence[float],
        after: Sequence[float],
    ) -> str:
        setup = self.setup
        metric: Metric = setup.metric
        identity = heldout_identity(
            [row.example for row in chosen.all], fingerprint(setup.program, metric)
        )
        receipt = Receipt(
            "read",
            f"run {self.begun.number}, {setup.name}",
            datetime.fromtimestamp(self.begun.at, UTC).isoformat(),
            identity,
            (Candidate(self.production.texts).id, Candidate(texts).id),
            tuple(before),
            tuple(after),
            compare(before, after, setup.gate),
            looks=self.begun.number - 1,
            seed=setup.gate.seed,
        )
        return json.dumps(receipt.to_dict())
