"""What a run says while it runs: frozen events.

Every event names its iteration (0 before the first). Hooks receive events in
the order in which they were emitted, one at a time; they hold no lock of the
run and may be slow without slowing a rollout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from combee_dspy.records import BatchDecision, Measurement, NodeOutput, Retained, Rollout

__all__ = [
    "BatchPlanned",
    "CacheInvalidated",
    "CalibrationFinished",
    "CandidateAccepted",
    "CandidateProposed",
    "CandidateRefused",
    "CandidateRejected",
    "CandidateScreened",
    "CandidateSelected",
    "DiversityMeasured",
    "ErrorRaised",
    "Event",
    "HeldoutEvaluated",
    "HeldoutPinned",
    "IterationFinished",
    "IterationStarted",
    "NodeFinished",
    "OperatorsWeighted",
    "ReflectionTrimmed",
    "ReflectionsMade",
    "Restarted",
    "RetentionMeasured",
    "RolloutFinished",
    "RunFinished",
    "RunStarted",
    "RunStopping",
    "ScanFinished",
    "ScanStarted",
    "ScheduleDecided",
    "ValidationFinished",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened.

    Attributes:
        iteration: The iteration it belongs to, from 1; 0 before the first.
    """

    iteration: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """The run begins: nothing has been bought yet.

    Attributes:
        name: Task, shape and seed, for people.
        seed: The run's seed.
        sizes: Rows per split: ``train``, ``validation``, ``heldout``.
        digests: SHA-256 per split.
        specs: The strategies, by kind, as plain data.
        models: Model name by role.
        components: The seed candidate: text by component.
        warnings: What makes the run unfit for claims, in sentences.
    """

    name: str
    seed: int
    sizes: Mapping[str, int]
    digests: Mapping[str, str]
    specs: Mapping[str, Any]
    models: Mapping[str, str]
    components: Mapping[str, str]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationStarted(Event):
    """gepa has begun an iteration."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlanned(Event):
    """The controller has chosen the size of a minibatch.

    Attributes:
        decision: Size, reason, fit and clamps.
        measurements: The delays that it was planned from, oldest first.
    """

    decision: BatchDecision
    measurements: tuple[Measurement, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFinished(Event):
    """A rollout has been scored, or taken from the run's memo.

    Attributes:
        rollout: The rollout.
        rollout_id: Unique in the run; a memo hit has an id of its own.
        candidate_id: Which candidate was run (content hash, 16 hex digits).
        split: ``"train"`` or ``"validation"`` or ``"heldout"``.
        purpose: ``"parent"``, ``"child"``, ``"validation"`` or ``"heldout"``.
        cached: Whether it was taken from the memo and cost nothing.
        schedule_id: The schedule decision it ran under; empty where there was none.
    """

    rollout: Rollout
    rollout_id: str
    candidate_id: str
    split: str
    purpose: str
    cached: bool = False
    replicate: int = 0
    schedule_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectionTrimmed(Event):
    """A reflection was longer than a shard's token budget allows.

    Attributes:
        component: The component it is about.
        index: The reflection's index.
        action: ``"split"`` or ``"trimmed"``.
        tokens: Estimated tokens before.
        limit: Tokens that one reflection may take.
    """

    component: str
    index: int
    action: str
    tokens: int
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanStarted(Event):
    """An aggregator begins.

    Attributes:
        component: The component.
        aggregator: The aggregator's name.
        reflections: How many reflections it received.
        levels: LM calls per level, as planned.
    """

    component: str
    aggregator: str
    reflections: int
    levels: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanFinished(Event):
    """An aggregator has finished.

    Attributes:
        component: The component.
        aggregator: The aggregator's name.
        nodes: Output of every node.
        lessons: The lessons it returned.
        seconds: Wall-clock seconds.
    """

    component: str
    aggregator: str
    nodes: tuple[NodeOutput, ...]
    lessons: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateProposed(Event):
    """An operator has made a child.

    Attributes:
        candidate_id: The child's content hash.
        parent_id: The parent's content hash; of a merge, that of the first.
        operator: The operator's name; ``"merge"`` for gepa's merge.
        texts: The components that changed, with their new text.
        copied_words: Words of its demonstrations that come from training examples. Instructions and
            field descriptions may copy none; demonstrations are meant to.
        parent_ids: Content hashes of all parents, where there are several.
    """

    candidate_id: str
    parent_id: str
    operator: str
    texts: Mapping[str, str]
    copied_words: int = 0
    parent_ids: tuple[str, ...] = ()

    @property
    def parents(self) -> tuple[str, ...]:
        """Content hashes of its parents, whether there is one or there are several."""
        return self.parent_ids or (self.parent_id,)


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRefused(Event):
    """No child was made.

    Attributes:
        parent_id: The parent's content hash.
        operator: The operator's name.
        reason: Why, in one sentence.
    """

    parent_id: str
    operator: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateRejected(Event):
    """gepa did not keep a child.

    Attributes:
        old_score: The parent's sum of scores on the minibatch.
        new_score: The child's.
        reason: gepa's reason.
    """

    old_score: float
    new_score: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateAccepted(Event):
    """gepa has added a candidate to its pool.

    Attributes:
        index: Its index in the pool.
        parents: Indices of its parents.
        score: Its sum of scores on the minibatch.
    """

    index: int
    parents: tuple[int, ...]
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationFinished(Event):
    """A candidate has been validated.

    Attributes:
        index: Its index in gepa's pool; 0 is the seed.
        candidate_id: Its content hash.
        texts: The whole candidate.
        score: Mean validation score.
        best: Whether it is the best on validation so far.
        rollouts: Rollouts bought so far in the run, by gepa's count.
    """

    index: int
    candidate_id: str
    texts: Mapping[str, str]
    score: float
    best: bool
    rollouts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationFinished(Event):
    """gepa has ended an iteration.

    Attributes:
        accepted: Whether a candidate was added.
        rollouts: Rollouts bought so far, by gepa's count.
        best_score: Best mean validation score so far.
        seconds: Wall-clock seconds of the iteration.
        costs: The ledger's totals by role (see :class:`combee_dspy.costs.Totals`).
    """

    accepted: bool
    rollouts: int
    best_score: float
    seconds: float
    costs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutPinned(Event):
    """The held-out split has been fixed, before the first rollout.

    Attributes:
        digest: SHA-256 of the split.
        size: Rows.
        margin: Smallest paired difference of means that it can tell from none.
        power: How often it would, for example 0.8.
        basis: Where the variance behind ``margin`` comes from, in one sentence.
    """

    digest: str
    size: int
    margin: float
    power: float
    basis: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReflectionsMade(Event):
    """The trajectories of a minibatch have become reflections.

    Attributes:
        component: The component they are about.
        size: How many there are.
        tokens: Their estimated tokens together.
    """

    component: str
    size: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFinished(Event):
    """One node of a scan has its lessons.

    Attributes:
        component: The component.
        aggregator: The aggregator's name.
        output: What the node returned.
        tokens: Estimated tokens of its lessons.
    """

    component: str
    aggregator: str
    output: NodeOutput
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionMeasured(Event):
    """How much of what the reflections teach is still in a scan's result.

    Attributes:
        component: The component.
        aggregator: The aggregator's name.
        reflections: What became of each, by index.
        tokens_per_level: Estimated tokens of all lessons, by level from 1.
        rescued: Indices of reflections that had been lost before and were offered again.
        expected: Share of reflections that were expected to stay covered, with the ends of its 95 %
            interval, by what the calls of the run's earlier scans kept; ``None`` in its first scan.
    """

    component: str
    aggregator: str
    reflections: tuple[Retained, ...]
    tokens_per_level: tuple[int, ...]
    rescued: tuple[int, ...] = ()
    expected: tuple[float, float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateScreened(Event):
    """A child has been compared with its parent, or with another child, on a few examples.

    Attributes:
        candidate_id: The child's content hash.
        against_id: What it was compared with.
        size: Examples that both have run on.
        score: The child's mean score on them.
        against_score: The other's.
        passed: Whether it goes on.
        reason: Why, in one sentence.
    """

    candidate_id: str
    against_id: str
    size: int
    score: float
    against_score: float
    passed: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorsWeighted(Event):
    """How often each operator will be drawn from now on.

    Attributes:
        weights: Probability by operator, summing to 1.
        reason: What they follow from, in one sentence.
    """

    weights: Mapping[str, float]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DiversityMeasured(Event):
    """How alike the candidates of an iteration and of the front are.

    Attributes:
        front_similarity: Mean pairwise similarity of the best candidates, 0 to 1; ``None`` below two.
        refused: Candidates refused as too similar so far in the run.
        repeated: Candidates refused because their text had been refused before, so far.
        distinct: Distinct candidates proposed so far.
        temperature: The proposer's temperature in this iteration; ``None`` where the LM's own is used.
    """

    front_similarity: float | None
    refused: int
    repeated: int
    distinct: int
    temperature: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted(Event):
    """The next children are made from the seed's text, not from a learned one.

    Attributes:
        reason: Which bound was not reached, in one sentence.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationFinished(Event):
    """Two ways of judging have been compared on the same rollouts.

    Attributes:
        subject: ``"judge"`` or ``"proxy"``.
        size: Rollouts judged by both.
        correlation: Spearman's rank correlation.
        low: Lower end of its interval.
        high: Upper end.
        threshold: What it must reach.
        passed: Whether it does.
        pairs: ``(subject's score, reference's score)`` per rollout.
    """

    subject: str
    size: int
    correlation: float
    low: float
    high: float
    threshold: float
    passed: bool
    pairs: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheInvalidated(Event):
    """Rollouts that were paid for will be bought again.

    Attributes:
        reason: The reason that was given.
        entries: How many entries that concerns.
    """

    reason: str
    entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDecided(Event):
    """A decision that depends on time or on the order of arrival.

    Attributes:
        schedule_id: Unique in the run; rollouts name the decision they ran under.
        decision: What kind of decision, for example ``"flush"``, ``"concurrency"``, ``"preemption"`` or, of a
            job of several tasks, ``"shape"``.
        values: What was decided, and by which figures; JSON values. A flush names its reason, its tasks by
            lane, how many waited and the limit; a change of concurrency the limit before and after; a
            pre-emption the policy, the lane it was for and how many tasks gave way.
    """

    schedule_id: str
    decision: str
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateSelected(Event):
    """The final choice among the finalists.

    Attributes:
        index: The chosen candidate's index in gepa's pool.
        reason: Why it, in one sentence.
        finalists: Indices of those that were compared.
        draws: Validation scores of each finalist, one per draw.
        looks: How many candidates were compared on validation in the whole run.
    """

    index: int
    reason: str
    finalists: tuple[int, ...]
    draws: tuple[tuple[float, ...], ...]
    looks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStopping(Event):
    """A rule has asked the run to stop; what is in flight ends first.

    Attributes:
        reason: Why, in one sentence.
    """

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldoutEvaluated(Event):
    """The held-out set has been read, once, at the end.

    Attributes:
        before: Mean score of the seed.
        after: Mean score of the best candidate.
        interval: Bootstrap interval of the paired difference (low, high).
        confidence: Its level, for example 0.95.
        size: Rows.
        digest: SHA-256 of the split.
    """

    before: float
    after: float
    interval: tuple[float, float]
    confidence: float
    size: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRaised(Event):
    """Something failed.

    Attributes:
        where: Which part, for example ``"gepa"``.
        error: ``"ClassName: message"``.
        fatal: Whether the run ends with it.
    """

    where: str
    error: str
    fatal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished(Event):
    """The run is over.

    Attributes:
        reason: Why it stopped, in one sentence.
        best_index: The chosen candidate's index.
        best_score: Its mean validation score.
        texts: The chosen candidate.
        rollouts: Rollouts bought, by gepa's count.
        seconds: Wall-clock seconds.
        costs: The ledger's totals by role.
        state: The best program's ``dump_state()``; empty where the run did not keep it.
    """

    reason: str
    best_index: int
    best_score: float
    texts: Mapping[str, str]
    rollouts: int
    seconds: float
    costs: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
