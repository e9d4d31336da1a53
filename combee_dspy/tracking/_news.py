"""What a run has come to so far, read from its journal as it grows, and lines about what is new."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

from combee_dspy.events import (
    BatchPlanned,
    CandidateScreened,
    CandidateSelected,
    CandidateValidated,
    ChildRefused,
    CopiesRemoved,
    ErrorRaised,
    Event,
    HeldoutRead,
    LimitChanged,
    PointPriced,
    RunStopped,
    ScanEnded,
    UpdateEnded,
    WarningRaised,
)
from combee_dspy.journal import Outcome, Reader, RunHistory, failure_counts, outcomes
from combee_dspy.tracking._lines import plain_line
from combee_dspy.tracking._phases import Doing, left_of, shares_of, spoken
from combee_dspy.tracking._sql import SPENT
from combee_dspy.tracking._text import amount, dollars
from combee_dspy.verdicts import judge_difference

__all__ = ["RESULT", "News"]

RESULT = (HeldoutRead, PointPriced, RunStopped)
"""Events that say what a run has come to."""

_WINDOW = 5.0  # seconds over which what is in flight is averaged
_NEW = (
    "SELECT kind, purpose, started, ended, key, step, candidate, example FROM effect"
    " WHERE run = ? AND id <= ? AND id > ?"
)
_STUDENT = (
    "SELECT candidate, count(DISTINCT example), count(DISTINCT replicate), count(*), avg(score)"
    " FROM effect WHERE run = ? AND purpose = 'validation' AND step < 0 GROUP BY candidate"
)
_FOLLOWED: tuple[type[Event], ...] = (
    BatchPlanned,
    CandidateScreened,
    CandidateSelected,
    CandidateValidated,
    ChildRefused,
    CopiesRemoved,
    ErrorRaised,
    HeldoutRead,
    LimitChanged,
    PointPriced,
    RunStopped,
    ScanEnded,
    UpdateEnded,
    WarningRaised,
)


class News:
    """Follows one run. What the journal holds when this is made counts, and is not told again.

    Args:
        reader: Of the journal. Borrowed.
        run: The run's number.
        clock: Returns Unix time.

    Attributes:
        history: Of the run.
        doing: What is under way.
        bought: Rollouts beside the held-out set, which is read beyond the budget.
        facts: What was said last of ``batch``, ``lesson`` and ``limit``.
        gain: The held-out result in words; empty before it is read.
    """

    def __init__(self, reader: Reader, run: int, clock: Callable[[], float]) -> None:
        self._reader, self._run, self._clock = reader, run, clock
        self.history = RunHistory(reader, run)
        self.limits = self.history.about.limits
        self.doing = Doing(self.history.about.sizes)
        self._began = clock()
        self._effect = self._event = self.bought = 0
        self._recent: list[tuple[float, float]] = []
        self._outcomes: dict[tuple[Any, ...], Outcome] = {}
        self._tokens: Counter[str] = Counter()
        self._dollars = self._unpriced = 0.0
        self._counted = Counter[str]()  # what limits hold, beside the held-out set as well
        self.facts: dict[str, str] = {}
        self._scores: dict[str, tuple[int, float]] = {}  # index and score by candidate
        self._chosen = self.gain = self._scored = ""
        self._resumed = False
        self.read()
        self._resumed = self._effect > 0
        self._before = self.shares()

    def read(self) -> list[tuple[Event, str, int]]:
        """Take into account what is new; return events with their lines and the lines' levels."""
        sql = "SELECT max(id) FROM effect WHERE run = ?"
        newest = self._reader.rows(sql, (self._run,))[0][0] or 0
        self._add_effects(newest)
        self._effect = newest
        lines = self._student_lines()
        for entry in self.history.entries(*_FOLLOWED, after=self._event):
            self._event = entry.id
            self.doing.event(entry.step, entry.event)
            line, level = self._line(entry.step, entry.component, entry.event)
            if line:
                lines.append((entry.event, line, level))
        return lines

    def _student_lines(self) -> list[tuple[Event, str, int]]:
        """Return the line about the student's score once its last validation rollout is there.

        Its event follows with the first update.
        """
        if self._scores:
            return []
        for candidate, rows, draws, rollouts, score in self._reader.rows(_STUDENT, (self._run,)):
            if score is not None and rollouts == draws * self.history.about.sizes.get("validation"):
                event = CandidateValidated(candidate, 0, score, rows, best=True)
                line, level = self._validation("", event)
                return [(event, line, level)]
        return []

    def _add_effects(self, newest: int) -> None:
        new = (self._run, newest, self._effect)
        for role, _, tokens, spent, unpriced in self._reader.rows(SPENT.format("e.id > ?"), new):
            self._tokens[role] += tokens
            self._dollars += spent
            self._unpriced += unpriced
        beside = SPENT.format("e.id > ? AND e.purpose IS NOT 'heldout'")
        for _, calls, tokens, spent, _ in self._reader.rows(beside, new):
            self._counted.update(calls=calls, tokens=tokens, dollars=spent)
        for outcome in outcomes(self._reader, self._run, after=self._effect, upto=newest):
            key = outcome.kind, outcome.role, outcome.cause
            before = self._outcomes.setdefault(key, outcome._replace(number=0))
            self._outcomes[key] = before._replace(number=before.number + outcome.number)
        since = self._clock() - _WINDOW
        for kind, purpose, started, ended, *place in self._reader.stream(_NEW, new):
            self.bought += kind == "rollout" and purpose != "heldout"
            if ended > since:
                self._recent.append((started, ended))
            key, step, candidate, example = place
            self.doing.effect(key, purpose, step, candidate, example)
        self._recent = [span for span in self._recent if span[1] > since]

    def _line(self, step: int, component: str, event: Event) -> tuple[str, int]:
        """Take one event into account; return the line about it, or nothing, and its level."""
        update = f"update {step}"
        match event:
            case BatchPlanned(size=size, reason=reason, clamps=clamps):
                reasons = "; ".join((reason, *(clamp.reason for clamp in clamps)))
                self.facts["batch"] = f"{size}: {reasons}"
                return f"{update}: batch of {size}: {reasons}", logging.DEBUG
            case ScanEnded():
                return f"{update}: {self._scan(component, event)}", logging.DEBUG
            case CandidateValidated():
                return self._validation(update, event)
            case UpdateEnded(rows=rows, seconds=seconds, skipped=skipped):
                nothing = f", nothing to learn: {skipped}" if skipped else ""
                costs = f"{self.scores}, {self.rollouts} rollouts, {self.cost}"
                # A serial search has thousands: of those that change nothing, 0 to 9, then tens, …
                folded = self.scores == self._scored and step % 10 ** (len(str(step)) - 1)
                self._scored = self.scores
                line = f"{update}: {rows} rows in {seconds:.1f} s{nothing}; {costs}"
                return line, logging.DEBUG if folded else logging.INFO
            case CandidateSelected(candidate=candidate, reason=reason):
                self._chosen = candidate if candidate in self._scores else ""
                return f"chosen: candidate {candidate:.8}: {reason}", logging.INFO
            case HeldoutRead():
                return self._heldout(event)
            case LimitChanged(limit=limit):
                self.facts["limit"] = f", at most {limit}"
                return "", logging.DEBUG
        return plain_line(update, component, event)

    def _scan(self, component: str, event: ScanEnded) -> str:
        if event.lessons:
            self.facts["lesson"] = event.lessons[-1].text
        failed = f", {event.failed} failed" if event.failed else ""
        return (
            f"{event.aggregator} of {component}: {event.n} reflections, {len(event.nodes)}"
            f" calls{failed}, {len(event.lessons)} lessons"
        )

    def _validation(self, update: str, event: CandidateValidated) -> tuple[str, int]:
        score, is_new = _written(event.score), event.candidate not in self._scores
        if event.score is not None:
            self._scores[event.candidate] = event.index, event.score
        if not event.index:
            return (f"seed: validation {score}" if is_new else ""), logging.INFO
        best = ", best so far" if event.best else ""
        return f"{update}: candidate {event.index}: validation {score}{best}", logging.DEBUG

    def _heldout(self, event: HeldoutRead) -> tuple[str, int]:
        """Take the held-out figures into account; return the line about them. A loss is a
        warning.
        """
        verdict = judge_difference(event.difference, event.low, event.high, event.n)
        self.gain = f"held-out {verdict}: {event.before:.3f} → {event.after:.3f}"
        interval = f"({event.difference:+.3f}, {event.low:+.3f} to {event.high:+.3f})"
        level = logging.WARNING if event.difference < 0 else logging.INFO
        return f"{self.gain} {interval}", level

    @property
    def scores(self) -> str:
        """The score of what was chosen, the best one until then, and the student's."""
        best = [score for name, (_, score) in self._scores.items() if self._chosen in (name, "")]
        seed = [score for index, score in self._scores.values() if not index]
        return f"best {_written(max(best, default=None))} (seed {_written(*seed[:1])})"

    @property
    def rollouts(self) -> str:
        """Rollouts, of how many."""
        limit = self.limits.get("rollouts")
        # Whoever goes on with a smaller budget has bought more than it.
        return amount(self.bought) + (
            f" {'of' if self.bought <= limit else 'beyond'} {amount(limit)}" if limit else ""
        )

    def shares(self) -> dict[str, float]:
        """Return what is used of each limit, at most 1."""
        spent: dict[str, float] = {
            "rollouts": self.bought,
            **self._counted,
            "updates": self.doing.updates,
        }
        if not self._resumed:  # how long earlier parts took is not known here
            spent["seconds"] = self._clock() - self._began
        return shares_of(self.limits, spent)

    @property
    def used(self) -> str:
        """What is used of each limit but the rollouts, and how long it lasts."""
        shares = self.shares()
        parts = [
            f"{share:.0%} of {amount(self.limits[name] or 0)} {name}"
            for name, share in shares.items()
            if name != "rollouts"
        ]
        left = left_of(shares, self._before, self._clock() - self._began)
        return ", ".join(parts + ([] if left is None else [f"at most about {spoken(left)} left"]))

    @property
    def cost(self) -> str:
        """Tokens by role, and dollars."""
        tokens = (f"{role} {amount(count)} tokens" for role, count in sorted(self._tokens.items()))
        return ", ".join([*tokens, dollars(self._dollars, int(self._unpriced))])

    @property
    def failed(self) -> str:
        """What failed, counted by role and cause."""
        return ", ".join(map(str, failure_counts(self._outcomes.values())))

    @property
    def in_flight(self) -> str:
        """How many effects were in flight on average lately."""
        now = self._clock()
        since = max(now - _WINDOW, self._began)
        busy = sum(max(0.0, ended - max(started, since)) for started, ended in self._recent)
        return f"about {busy / max(now - since, 0.5):.0f}{self.facts.get('limit', '')}"


def _written(score: float | None = None) -> str:
    return "not known" if score is None else f"{score:.3f}"
