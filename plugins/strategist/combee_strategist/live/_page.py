"""What people and monitors see: a page, a file for review of each version, and counters."""

from __future__ import annotations

import difflib
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from combee_dspy.events import PairScored
from combee_dspy.files import make_folder
from combee_dspy.journal import Reader, RunHistory
from combee_dspy.lessons import Book
from combee_strategist.canary import ChangedJournals
from combee_strategist.diagnosis.page import write_page
from combee_strategist.live._budget import SPENT
from combee_strategist.live._options import DAY, Setup
from combee_strategist.live._records import (
    LineEvidence,
    LiveDecision,
    SessionEnded,
    answers_to,
    open_trial,
    session_of,
)

__all__ = ["Days", "LiveCollector", "write_live_page", "write_review"]

_PACKAGE = "combee_strategist.live"
_SCORED = "SELECT started, score FROM effect e WHERE purpose = 'score' AND score IS NOT NULL"
_NEW = "e.id > ? AND e.id <= ?"
# What the page shows; the journal has all.
_SOURCES, _SESSIONS, _DECISIONS = 5, 100, 1_000
# Requests behind a line whose texts are shown, and lines around a change of a text.
_READ_ON_PAGE, _READ_TO_REVIEW, _AROUND = 3, 10, 2


class Days:
    """What was labelled, scored and spent on each day; each row of a journal is read once.

    Args:
        requests: Where the servers' journals lie.
        journal: The learner's.
    """

    def __init__(self, requests: Path, journal: Path) -> None:
        self._journals, self._journal = ChangedJournals(requests), journal
        self._sums: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._read: Counter[Path] = Counter()

    def rows(self) -> list[dict[str, object]]:
        """Return the days so far, oldest first, as the page shows them."""
        with Reader(self._journal) as reader:
            after = self._read[self._journal]
            upto = reader.rows("SELECT max(id) FROM effect")[0][0] or 0
            for started, tokens, dollars in reader.rows(f"{SPENT} AND {_NEW}", (after, upto)):
                self._add(started, tokens=tokens, dollars=dollars or 0.0)
            for started, score in reader.rows(f"{_SCORED} AND {_NEW}", (after, upto)):
                self._add(started, labelled=1, score=score)
            self._read[self._journal] = upto
        for reader in self._journals.open():
            for entry in RunHistory(reader).entries(PairScored, after=self._read[reader.path]):
                pair = entry.event
                self._add(pair.at, pairs=1, incumbent=pair.before, challenger=pair.after)
                self._read[reader.path] = entry.id
        return [_day(number, sums) for number, sums in sorted(self._sums.items())]

    def _add(self, at: float, **amounts: float) -> None:
        sums = self._sums[int(at // DAY)]
        for name, amount in amounts.items():
            sums[name] += amount


def _day(number: int, sums: Mapping[str, float]) -> dict[str, object]:
    def mean(name: str, count: str) -> str:
        return f"{sums[name] / sums[count]:.3f}" if sums[count] else ""

    return {
        "name": f"{datetime.fromtimestamp(number * DAY, UTC):%d %b}",
        "labelled": int(sums["labelled"]),
        "score": mean("score", "labelled"),
        "pairs": int(sums["pairs"]),
        "incumbent": mean("incumbent", "pairs"),
        "challenger": mean("challenger", "pairs"),
        "tokens": int(sums["tokens"]),
        "dollars": sums["dollars"],
    }


def write_live_page(
    setup: Setup,
    days: Sequence[Mapping[str, object]],
    decisions: Sequence[LiveDecision],
    ended: Sequence[SessionEnded],
    books: Mapping[str, Book],
) -> Path:
    """Write the page as ``live.html`` and ``live.md``; return the first.

    Raises:
        OSError: It cannot be written.
    """
    ships = [item for item in decisions if item.action in ("promote", "roll back")]
    page = {
        "name": setup.name,
        "headline": (
            f"{len(ended)} sessions, {sum(item.action == 'promote' for item in ships)} promotions."
            + (f" The last: {ships[-1].action}, {_when(ships[-1].at)}." if ships else "")
        ),
        "trial": _trial(setup, decisions, ended),
        "days": days,
        "sessions": [
            {
                "number": session.number,
                "when": _when(session.at),
                "what": _outcome(session),
                "lines": [_line(line) for line in session.lines],
            }
            for session in reversed(ended[-_SESSIONS:])
        ],
        "book": [lesson for book in books.values() for lesson in book.lessons],
        "audit": [
            {
                "when": _when(item.at),
                "action": item.action,
                "version": item.version or "",
                "session": item.session or "",
                "who": item.who,
                "why": ": ".join(filter(None, (item.text, item.why))),
            }
            for item in reversed(decisions[-_DECISIONS:])
        ],
        "hidden": (max(0, len(ended) - _SESSIONS), max(0, len(decisions) - _DECISIONS)),
    }
    write_page(setup.home / "live", _PACKAGE, "live.md.j2", p=page)
    return setup.home / "live.html"


def write_review(setup: Setup, version: int, ended: SessionEnded) -> None:
    """Write what a version changes, with the evidence of each line, for a person to read.

    Raises:
        OSError: It cannot be written.
    """
    folder = setup.home / "review"
    make_folder(folder)
    review = {
        "name": setup.name,
        "version": version,
        "headline": f"Learned from {ended.taught} requests in session {ended.number}.",
    }
    change = _change(ended, sys.maxsize, _READ_TO_REVIEW)
    write_page(folder / f"v{version}", _PACKAGE, "review.md.j2", r=review, change=change)


def _diff(before: str, after: str) -> list[tuple[str, str]]:
    """Return the lines of a comparison with their signs; what did not change is left out but for
    the lines around a change.
    """
    old, new = before.splitlines(), after.splitlines()
    groups = [*difflib.SequenceMatcher(None, old, new, False).get_grouped_opcodes(_AROUND)]
    rows, compared = list[tuple[str, str]](), 0
    for group in groups:
        rows += _left_out(group[0][1] - compared)
        for kind, first, last, begin, end in group:
            if kind == "equal":
                rows += [("", line) for line in old[first:last]]
            else:
                rows += [("−", line) for line in old[first:last]]
                rows += [("+", line) for line in new[begin:end]]
        compared = group[-1][2]
    return rows + _left_out(len(old) - compared)


def _left_out(count: int) -> list[tuple[str, str]]:
    return [("⋯", f"{count} line{'s' * (count > 1)} as before")] if count else []


def _change(session: SessionEnded, sources: int, read: int) -> dict[str, object]:
    """Return what a session's text changes, and what speaks for it.

    Args:
        session: Of which something goes on trial.
        sources: Ids of requests to name of each line.
        read: Requests of each line to show.
    """
    sets = [
        (name, scores.rows, f"{scores.before:.3f}", f"{scores.after:.3f}")
        for name, scores in session.sets.items()
    ]
    diffs = [
        (name, _diff(session.before[name], text))
        for name, text in session.texts.items()
        if text != session.before.get(name, text)
    ]
    passed = [line for line in session.lines if line.passed]
    return {
        "sets": sets,
        "lines": [_line(line, sources) for line in passed],
        "production": session.production,
        "diffs": diffs,
        "behind": [
            (line.text, line.requests[:read], len(line.sources) - len(line.requests[:read]))
            for line in passed
            if line.requests
        ],
    }


def _line(line: LineEvidence, sources: int = _SOURCES) -> dict[str, str]:
    more = len(line.sources) - sources
    return {
        "sign": "+" if line.new else "−",
        "text": line.text,
        "sources": ", ".join(line.sources[:sources]) + (f" and {more} more" if more > 0 else ""),
        "alone": f"mends {line.wins}, spoils {line.losses}" if line.new else "",
        "outcome": line.why or ("passed" if line.passed else "not run"),
    }


def _outcome(session: SessionEnded) -> str:
    sets = "; ".join(
        f"{name} {scores.before:.3f} → {scores.after:.3f} on {scores.rows} rows"
        for name, scores in session.sets.items()
    )
    verdict = f"refused: {session.refused}" if session.refused else "goes on trial"
    return f"{session.taught} requests were read. {sets or 'No row was run'}. It {verdict}."


def _trial(
    setup: Setup, decisions: Sequence[LiveDecision], ended: Sequence[SessionEnded]
) -> dict[str, object] | None:
    """Return what is on trial; ``None`` where nothing is."""
    trial = open_trial(decisions)
    if trial is None:
        return None
    session = session_of(trial, ended)
    words = [item.action for item in answers_to(trial, decisions)]
    waits = (setup.approve == "human" or session.person) and "approve" not in words
    person = (
        f"a person must approve it: review/v{trial.version}.md" if waits else "its trial decides"
    )
    line = f"Version {trial.version} is on trial since {_when(trial.at)}; {person}."
    return {"line": line, "change": _change(session, _SOURCES, _READ_ON_PAGE)}


def _when(at: float) -> str:
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}"


class LiveCollector:
    """Counts decisions when somebody asks; any process with the journals may show them.

    Args:
        name: The program's name in the registry.
        decisions: Returns all decisions so far.
    """

    def __init__(self, name: str, decisions: Callable[[], Sequence[LiveDecision]]) -> None:
        self._name, self._decisions = name, decisions

    def collect(self) -> Iterator[Any]:
        """Yield the counters, as ``prometheus_client`` asks for them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        decisions = self._decisions()
        family = CounterMetricFamily(
            "combee_live_decisions", "Decisions by action.", labels=("program", "action")
        )
        for action, count in sorted(Counter(item.action for item in decisions).items()):
            family.add_metric((self._name, action), count)
        yield family
        open_trials = GaugeMetricFamily(
            "combee_live_open_trials", "Whether a version is on trial.", labels=("program",)
        )
        open_trials.add_metric((self._name,), open_trial(decisions) is not None)
        yield open_trials
