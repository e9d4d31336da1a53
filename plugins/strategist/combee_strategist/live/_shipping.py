"""What becomes of a challenger, by the canary's rules and by what people say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from combee_dspy.evaluation import Receipt
from combee_dspy.search import Candidate
from combee_strategist.canary import (
    CHALLENGER,
    PRODUCTION,
    CanaryStatus,
    Registry,
    promote,
    propose_texts,
    status,
    withdraw,
)
from combee_strategist.live._records import Action, LiveDecision, SessionEnded
from combee_strategist.live._setup import Setup

__all__ = [
    "TrialOutcome",
    "answers_to",
    "judge_trial",
    "last_move",
    "last_reason",
    "open_trial",
    "other_challenger",
    "propose",
    "ship_removal",
]

_WHO = "combee live"
_REMOVED = "a person removed a line"


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """What was decided of a challenger, and why."""

    action: Action
    why: str


def open_trial(decisions: Sequence[LiveDecision]) -> LiveDecision | None:
    """Return the proposal whose trial has not ended; ``None`` where there is none."""
    ended = {"promote", "withdraw"}
    for decision in reversed(decisions):
        if decision.action in ended:
            return None
        if decision.action == "propose":
            return decision
    return None


def answers_to(proposal: LiveDecision, decisions: Sequence[LiveDecision]) -> list[LiveDecision]:
    """Return what people have said of a proposed version since it was there to be read."""
    later = decisions[decisions.index(proposal) :]
    return [item for item in later if item.line and item.version == proposal.version]


def other_challenger(registry: Registry, ended: SessionEnded) -> int | None:
    """Return the challenger on trial that is not what a session came to; ``None`` without one.

    Raises:
        RegistryError: The registry does not answer.
    """
    waiting = registry.at(CHALLENGER)
    if waiting in (None, registry.at(PRODUCTION)):
        return None
    own = registry.version(waiting).candidate == Candidate(ended.texts).id
    return None if own else waiting


def propose(setup: Setup, registry: Registry, ended: SessionEnded) -> int:
    """Publish what a session came to as the challenger, once; return its version.

    Raises:
        RegistryError: The registry does not answer.
        ArgumentValueError: Another challenger waits.
    """
    receipt = Receipt.from_json(ended.receipt)
    lines = sum(line.passed for line in ended.lines)
    why = f"session {ended.number} changes {lines} lines, learned from {ended.taught} requests"
    return propose_texts(registry, ended.texts, receipt, setup.plan, why)


def ship_removal(
    setup: Setup, registry: Registry, texts: Mapping[str, str], removal: LiveDecision
) -> int:
    """Put texts without a line that a person has removed into production; return their version.

    No trial speaks against a person. What is on trial ends: it was learned beside that line.

    Raises:
        RegistryError: The registry does not answer.
    """
    production, challenger = registry.at(PRODUCTION), registry.at(CHALLENGER)
    if challenger not in (None, production):
        withdraw(registry, who=removal.who, why=_REMOVED, only=challenger)
    version = propose_texts(registry, texts, None, setup.plan, _REMOVED)
    registry.move("promote", production or version, version, removal.who, _REMOVED)
    return version


def judge_trial(
    setup: Setup,
    registry: Registry,
    trial: LiveDecision,
    said: Sequence[LiveDecision],
    *,
    person: bool,
) -> TrialOutcome | None:
    """Return what is decided of a trial now, and carry it out; ``None`` where it goes on.

    Whoever was killed between the two finds the registry as it is: what is carried out already is
    returned as decided.

    Args:
        setup: Its terms, and the clock.
        registry: Where the versions are.
        trial: The proposal.
        said: What people have said of this version, oldest first.
        person: Whether one must approve.

    Raises:
        RegistryError: The registry does not answer.
    """
    version = trial.version
    if registry.at(PRODUCTION) == version:
        return TrialOutcome("promote", last_reason(registry, version))
    if registry.at(CHALLENGER) != version:
        return TrialOutcome("withdraw", last_reason(registry, version))
    approvals = [decision for decision in said if decision.action in ("approve", "reject")]
    if approvals and approvals[-1].action == "reject":
        why = f"{approvals[-1].who} rejected it: {approvals[-1].why}"
        return _withdrawn(registry, version, why)
    standing = status(registry, setup.requests)
    plan = setup.plan
    if standing.pairs and standing.high < -plan.epsilon:
        return _withdrawn(registry, version, f"it is worse: {_evidence(standing)}")
    if not standing.missing:
        if person and not approvals:
            return None
        who = approvals[-1].who if person else _WHO
        promote(registry, setup.requests, who=who, why=_evidence(standing))
        return TrialOutcome("promote", _evidence(standing))
    days = (setup.clock() - trial.at) / 86_400
    if days > setup.gate.trial and not (person and not standing.missing):
        why = f"undecided after {days:.1f} days: {_evidence(standing)}"
        return _withdrawn(registry, version, why)
    return None


def _withdrawn(registry: Registry, version: int | None, why: str) -> TrialOutcome:
    withdraw(registry, who=_WHO, why=why, only=version)
    return TrialOutcome("withdraw", why)


def _evidence(standing: CanaryStatus) -> str:
    return (
        f"{standing.pairs} pairs in {standing.hours:.1f} h: {standing.difference:+.4f},"
        f" {standing.low:+.4f} to {standing.high:+.4f}"
    )


def last_move(registry: Registry) -> tuple[str, str]:
    """Return how ``production`` was moved last, ``"promote"`` or ``"rollback"``, and why."""
    lines = [line for line in registry.audit() if line["carried_out"]]
    moves = [line for line in lines if line["action"] in ("promote", "rollback")]
    return (str(moves[-1]["action"]), str(moves[-1]["why"])) if moves else ("", "")


def last_reason(registry: Registry, version: int | None) -> str:
    """Return why a version was moved last, or published where it was not."""
    lines = [line for line in registry.audit() if version in (line["from"], line["to"])]
    lines = [line for line in lines if line["action"] in ("promote", "rollback")] or lines
    return str(lines[-1]["why"]) if lines else "nobody said why"
