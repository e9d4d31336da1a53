"""What a run has come to so far, read from its journal as it grows, and lines about what is new."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from combee_dspy.events import (
    BatchPlanned,
    CandidateSelected,
    CandidateValidated,
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
from combee_dspy.journal import Outcomes, Reader, RunHistory, failure_counts
from combee_dspy.tracking._costs import costs_by_role
from combee_dspy.tracking._phases import ACTIVITY, Doing
from combee_dspy.tracking._text import amount, dollars
from combee_dspy.verdicts import judge_difference

_RESULT = (HeldoutRead, PointPriced, RunStopped)
_FOLLOWED: tuple[type[Event], ...] = (
    BatchPlanned,
    CandidateSelected,
    CandidateValidated,
    ErrorRaised,
    LimitChanged,
    ScanEnded,
    UpdateEnded,
    WarningRaised,
    *_RESULT,
)
_NEW = f"""SELECT step, {ACTIVITY}, candidate, example, kind = 'rollout' AND purpose <> 'heldout'
    FROM effect WHERE run = ? AND id > ? AND id <= ?"""  # noqa: S608 - a constant
# The validation rows that a small budget draws; of other runs nothing is recorded.
_DRAWN = (
    "SELECT json_extract(value, '$.value') FROM main.effect WHERE run = ?"
    " AND key = 'decision/compared'"
)
# The student's score, once all its validation rows are there.
_STUDENT = (
    "SELECT candidate, avg(score) FROM effect WHERE run = ? AND purpose = 'validation' AND step < 0"
    " GROUP BY candidate HAVING count(*) = count(DISTINCT replicate) * ? AND count(score) > 0"
)
# Before so many seconds and such a share of the budget a forecast is a guess.
_LEAST_SECONDS, _LEAST_SHARE = 10.0, 0.05


class Line(NamedTuple):
    """A line about what is new.

    Attributes:
        text: The line; empty for none.
        warns: Whether it is a warning.
        is_result: Whether it says how the run ended.
    """

    text: str = ""
    warns: bool = False
    is_result: bool = False


class News:
    """Follows one run. What the journal holds when this is made counts, and makes no lines.

    Args:
        reader: Of the journal. Borrowed.
        run: The run's number.
        clock: Returns Unix time.

    Attributes:
        history: Of the run.
        limits: The budget's limits.
        doing: What is under way.
        bought: Rollouts beside the held-out set, which is read beyond the budget.
        facts: The last ``batch`` with its reasons, ``lesson``, and limit of what is ``in flight``.
        gain: The held-out result in words; empty before it is read.
        failed: What failed, counted by role and cause.
    """

    def __init__(self, reader: Reader, run: int, clock: Callable[[], float]) -> None:
        self.history = RunHistory(reader, run)
        about = self.history.about
        self.limits, self.doing = about.limits, Doing(about.sizes)
        self.facts: dict[str, str] = {}
        self.gain = self.failed = ""
        self.bought = 0
        self._clock, self._began = clock, clock()
        self._effect = self._event = self._updates = 0  # the last of each
        self._outcomes = Outcomes(reader, run)
        self._tokens: Counter[str] = Counter()  # by role
        self._dollars, self._unpriced = 0.0, 0
        self._limited: Counter[str] = Counter()  # what the limits count
        self._scores: dict[str, float] = {}  # by candidate
        self._seed: float | None = None
        self._chosen = self._last_scores = ""
        self._resumed = False
        self.read()
        self._resumed = self._effect > 0
        self._before = self.shares()

    def read(self) -> list[Line]:
        """Take into account what is new; return lines about it."""
        self._add_effects()
        lines = [] if self._scores else [self._student_line()]
        for entry in self.history.entries(*_FOLLOWED, after=self._event):
            self._event = entry.id
            self.doing.add_event(entry.step, entry.event)
            line = self._line(entry.step, entry.event)
            lines.append(line._replace(is_result=isinstance(entry.event, _RESULT)))
        return [line for line in lines if line.text]

    def _add_effects(self) -> None:
        reader, run, last = self.history.reader, self.history.record.id, self._effect
        newest = reader.rows("SELECT max(id) FROM effect WHERE run = ?", (run,))[0][0] or 0
        for (drawn,) in reader.rows(_DRAWN, (run,)):
            self.doing.totals["validation"] = drawn
        for cost in costs_by_role(self.history, after=last, upto=newest):
            self._tokens[cost.role] += cost.tokens
            self._dollars += cost.known_dollars
            self._unpriced += cost.unpriced
            if not cost.heldout:
                spent = {"calls": cost.calls, "tokens": cost.tokens, "dollars": cost.known_dollars}
                self._limited.update(spent)
        failures = failure_counts(self._outcomes.upto(newest))
        self.failed = ", ".join(map(str, failures))
        for step, activity, candidate, example, bought in reader.stream(_NEW, (run, last, newest)):
            self.bought += bought or 0
            self.doing.add_effect(step, activity, candidate, example)
        self._effect = newest

    def _student_line(self) -> Line:
        """Return the line about the student's score; its event follows with the first update."""
        rows = self.doing.totals["validation"]
        scores = self.history.reader.rows(_STUDENT, (self.history.run, rows))
        return self._add_score(scores[0][0], 0, scores[0][1]) if scores else Line()

    def _add_score(self, candidate: str, index: int, score: float | None) -> Line:
        """Take a score into account; return the line about the student's, once."""
        is_new = candidate not in self._scores
        if score is not None:
            self._scores[candidate] = score
        if index:
            return Line()
        self._seed = score
        return Line(f"seed: validation {_written(score)}" if is_new else "")

    def _line(self, step: int, event: Event) -> Line:
        """Take one event into account; return the line about it."""
        match event:
            case BatchPlanned(size=size, reason=reason, clamps=clamps):
                reasons = "; ".join((reason, *(clamp.reason for clamp in clamps)))
                self.facts["batch"] = f"{size}: {reasons}"
            case LimitChanged(limit=limit):
                self.facts["in flight"] = f"at most {limit}"
            case ScanEnded(lessons=[*_, lesson]):
                self.facts["lesson"] = lesson.text
            case CandidateValidated(candidate=candidate, index=index, score=score):
                return self._add_score(candidate, index, score)
            case UpdateEnded():
                return self._ended(step, event)
            case CandidateSelected(candidate=candidate):
                self._chosen = candidate if candidate in self._scores else ""
            case HeldoutRead(before=before, after=after, difference=difference):
                verdict = judge_difference(difference, event.low, event.high, event.n)
                self.gain = f"held-out {verdict}: {before:.3f} → {after:.3f}"
                interval = f"({difference:+.3f}, {event.low:+.3f} to {event.high:+.3f})"
                return Line(f"{self.gain} {interval}", warns=difference < 0)
        return _plain_line(event)

    def _ended(self, step: int, event: UpdateEnded) -> Line:
        self._updates += 1
        # A serial search has thousands: of those that change nothing, 0 to 9, then tens, …
        folded = self.scores == self._last_scores and step % 10 ** (len(str(step)) - 1)
        self._last_scores = self.scores
        nothing = f", nothing to learn: {event.skipped}" if event.skipped else ""
        costs = f"{self.scores}, {self.rollouts} rollouts, {self.cost}"
        line = f"update {step}: {event.rows} rows in {event.seconds:.1f} s{nothing}; {costs}"
        return Line("" if folded else line)

    @property
    def scores(self) -> str:
        """The score of what was chosen, the best one until then, and the student's."""
        best = self._scores.get(self._chosen, max(self._scores.values(), default=None))
        name = "chosen" if self._chosen else "best"
        return f"{name} {_written(best)} (seed {_written(self._seed)})"

    @property
    def rollouts(self) -> str:
        """Rollouts, of how many."""
        limit = self.limits.get("rollouts")
        if not limit:
            return amount(self.bought)
        # Whoever goes on with a smaller budget has bought more than it.
        relation = "of" if self.bought <= limit else "beyond"
        return f"{amount(self.bought)} {relation} {amount(limit)}"

    def shares(self) -> dict[str, float]:
        """Return what is used of each limit, at most 1; nothing of what nobody counts."""
        spent: dict[str, float] = {"rollouts": self.bought, "updates": self._updates}
        spent |= self._limited
        if not self._resumed:  # how long earlier parts took is not known here
            spent["seconds"] = self._clock() - self._began
        return {
            name: min(1.0, spent[name] / limit) if limit else 1.0
            for name, limit in self.limits.items()
            if limit is not None and name in spent
        }

    @property
    def used(self) -> str:
        """What is used of each limit but the rollouts, and how long it lasts."""
        shares = self.shares()
        parts = [
            f"{share:.0%} of {amount(self.limits[name] or 0)} {name}"
            for name, share in shares.items()
            if name != "rollouts"
        ]
        left = seconds_left(shares, self._before, self._clock() - self._began)
        return ", ".join(parts + ([] if left is None else [f"at most about {in_words(left)} left"]))

    @property
    def cost(self) -> str:
        """Tokens by role, and dollars where a price is known."""
        tokens = (f"{role} {amount(count)} tokens" for role, count in sorted(self._tokens.items()))
        is_priced = self._dollars or not self._unpriced
        return ", ".join(
            [*tokens, *([dollars(self._dollars, self._unpriced)] if is_priced else ())]
        )


def _plain_line(event: Event) -> Line:
    """Return the line about an event that needs nothing but the event."""
    match event:
        case CandidateSelected(candidate=candidate, reason=reason):
            return Line(f"chosen: candidate {candidate:.8}: {reason}")
        case PointPriced(text=text):
            return Line(f"held-out {text}")
        case RunStopped(reason=reason):
            return Line(f"stopped: {reason}")
        case WarningRaised(text=text, logged=False):
            return Line(f"warning: {text}", warns=True)
        case ErrorRaised(where=where, error=error):
            return Line(f"error in {where}: {error}", warns=True)
    return Line()


def _written(score: float | None) -> str:
    return "not known" if score is None else f"{score:.3f}"


def seconds_left(
    shares: Mapping[str, float], before: Mapping[str, float], seconds: float
) -> float | None:
    """Return the seconds until the first limit is reached at the speed so far; ``None`` while that
    would be a guess.

    Args:
        shares: What is used of each limit now.
        before: What was used when the clock began.
        seconds: Since then.
    """
    gained = {name: share - before.get(name, 0.0) for name, share in shares.items()}
    if seconds < _LEAST_SECONDS or max(gained.values(), default=0.0) < _LEAST_SHARE:
        return None
    return min((1 - shares[name]) * seconds / share for name, share in gained.items() if share > 0)


def in_words(seconds: float) -> str:
    """Return a duration in the unit that a person would use."""
    for unit, size in (("s", 1), ("min", 60)):
        if seconds < 90 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{amount(seconds / 3600)} h"
