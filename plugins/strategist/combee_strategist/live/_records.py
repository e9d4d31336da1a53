"""What the learner decided, as events of its journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from combee_dspy.events import Event

__all__ = [
    "Action",
    "LineEvidence",
    "LiveDecision",
    "SessionBegun",
    "SessionEnded",
    "SetScores",
    "TaughtRequest",
    "answers_to",
    "open_trial",
    "session_of",
    "undecided",
    "waits",
]

Action = Literal[
    "learn",
    "skip",
    "fail",
    "drift",
    "forget",
    "refuse",
    "propose",
    "wait",
    "approve",
    "reject",
    "remove",
    "promote",
    "withdraw",
    "roll back",
]


@dataclass(frozen=True, slots=True)
class LiveDecision(Event):
    """One decision: a line of the audit.

    Attributes:
        action: What was decided.
        why: The reason, in a sentence.
        session: The learning session that it is about, from 1; 0 for none.
        version: The version in the registry that it is about; ``None`` for none.
        who: Who decided, where it was a person; else empty.
        text: The lesson that it is about; empty for none.
        line: The line of ``people.jsonl`` that it carries out; 0 for none.
        answer: A hash of that line; empty in journals of before.
        since: When a slice drifted.
        at: Unix time by the clock, which the learner fills in.
        entire: Whether all of the slice drifted, so that its rows from before are set aside.
    """

    kind: ClassVar[str] = "live"
    action: Action
    why: str
    session: int = 0
    version: int | None = None
    who: str = ""
    text: str = ""
    line: int = 0
    since: float = 0.0
    at: float = 0.0
    entire: bool = True
    answer: str = ""


@dataclass(frozen=True, slots=True)
class SessionBegun(Event):
    """A learning session began; all that it does follows from this, and from what was bought.

    Attributes:
        at: Unix time by the clock.
        number: From 1.
        after: Labels up to here were learned from before, by server.
        upto: Labels up to here are read now.
        production: The version that served.
        tokens: How much readers may be shown.
        why: The reason, in a sentence.
    """

    kind: ClassVar[str] = "live_begun"
    single: ClassVar[bool] = True
    at: float
    number: int
    after: Mapping[str, int]
    upto: Mapping[str, int]
    production: int
    tokens: int
    why: str


@dataclass(frozen=True, slots=True)
class TaughtRequest:
    """A request that teaches a line, without keys and personal data, its texts cut short.

    Attributes:
        id: Its id.
        asked: Its inputs.
        answered: What was served, or how that failed.
        right: What would have been right; empty where nobody said it.
        said: What was said of the answer besides.
    """

    id: str
    asked: str
    answered: str
    right: str
    said: str


@dataclass(frozen=True, slots=True)
class LineEvidence:
    """A line that a session wanted to bring in, or to take out.

    Attributes:
        component: The predictor.
        lesson: Its id in the book.
        text: The line.
        sources: Requests that teach it.
        new: Whether it comes in; else it leaves.
        wins: Trusted rows that it alone mends.
        losses: Trusted rows that it alone spoils.
        passed: Whether it changes the text.
        why: Why it does not, or why it leaves.
        since: When the first of its recent sources came, where it contradicts what is served: what
            was right before says nothing against it. Else 0.
        newest: Rows that are older do not try it.
        requests: The newest of its sources, of a new line that goes on trial.
    """

    component: str
    lesson: str
    text: str
    sources: tuple[str, ...]
    new: bool
    wins: int = 0
    losses: int = 0
    passed: bool = False
    why: str = ""
    since: float = 0.0
    newest: float = 0.0
    requests: tuple[TaughtRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class SetScores:
    """Mean scores on one set of rows, before and after."""

    rows: int
    before: float
    after: float


@dataclass(frozen=True, slots=True)
class SessionEnded(Event):
    """What a session came to.

    Attributes:
        at: Unix time by the clock.
        number: The session's.
        taught: Requests that were read.
        texts: What goes on trial, by component; empty where nothing does.
        refused: Why nothing does.
        person: Whether a person must approve, whatever the rules are.
        lines: What it wanted to change.
        sets: By name, scores on held-out rows and on the retain set.
        receipt: The held-out receipt as JSON; empty where nothing goes on trial.
        production: The version that served, and which its text is compared with; 0 in journals of
            before.
        pairs: Differences from it on the gate's rows, but one for each line that a row proved: the
            first pairs of the trial.
        stale: Rows of the gate that say what was right before a line replaced another.
        before: The texts of ``production``, where something goes on trial.
    """

    kind: ClassVar[str] = "live_ended"
    single: ClassVar[bool] = True
    at: float
    number: int
    taught: int
    texts: Mapping[str, str]
    refused: str
    person: bool
    lines: tuple[LineEvidence, ...]
    sets: Mapping[str, SetScores]
    receipt: str = ""
    production: int = 0
    pairs: tuple[float, ...] = ()
    stale: tuple[str, ...] = ()
    before: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_nothing(cls, at: float, number: int, refused: str) -> SessionEnded:
        """Return the end of a session from which nothing goes on trial."""
        return cls(at, number, 0, {}, refused, person=False, lines=(), sets={})


def open_trial(decisions: Sequence[LiveDecision]) -> LiveDecision | None:
    """Return the proposal whose trial has not ended; ``None`` where there is none."""
    ended = set()
    for decision in reversed(decisions):
        if decision.action == "propose":
            return None if decision.version in ended else decision
        if decision.action in ("promote", "withdraw"):
            ended.add(decision.version)
    return None


def session_of(proposal: LiveDecision, ended: Sequence[SessionEnded]) -> SessionEnded:
    """Return the session that a proposed version comes from."""
    return next(item for item in ended if item.number == proposal.session)


def answers_to(proposal: LiveDecision, decisions: Sequence[LiveDecision]) -> list[LiveDecision]:
    """Return what people have said of a proposed version since it was there to be read."""
    later = decisions[decisions.index(proposal) :]
    return [item for item in later if item.line and item.version == proposal.version]


def waits(trial: LiveDecision, decisions: Sequence[LiveDecision]) -> bool:
    """Return whether a trial has ended well and waits for a person."""
    return any(item.action == "wait" and item.version == trial.version for item in decisions)


def undecided(
    moves: Sequence[Mapping[str, Any]], decisions: Sequence[LiveDecision]
) -> Sequence[Mapping[str, Any]]:
    """Return the moves of production behind the one that was decided last, none before the first.

    Args:
        moves: Lines of the registry's audit, oldest first.
        decisions: All so far, oldest first.
    """
    earlier = [item for item in decisions if item.action in ("promote", "roll back")]
    if not earlier:
        return ()
    last = (earlier[-1].action, earlier[-1].version)
    seen = [place for place, line in enumerate(moves) if _as_decided(line) == last]
    return moves[seen[-1] + 1 :] if seen else moves[-1:]


def _as_decided(line: Mapping[str, Any]) -> tuple[str, object]:
    promotes = line["action"] == "promote"
    return ("promote", line["to"]) if promotes else ("roll back", line["from"])
