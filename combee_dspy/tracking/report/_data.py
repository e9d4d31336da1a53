"""What a report shows: frozen, plain, and bounded whatever the length of the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from combee_dspy.records import BatchDecision, Measurement

__all__ = [
    "PHASES",
    "CandidateRow",
    "CostRow",
    "Heldout",
    "IterationRow",
    "Note",
    "Point",
    "Release",
    "ReportData",
    "ScanNode",
    "ScanView",
    "ScheduleView",
    "Spending",
    "TellingRollout",
    "Tick",
    "Weights",
]

PHASES = ("parents", "scan", "update", "children", "validation", "other")
"""What the seconds of an iteration go to, in the order in which an iteration passes them."""

Kind = Literal["improved", "fell", "error", "worst", "best"]
"""Why a rollout is shown."""


@dataclass(frozen=True, slots=True)
class Spending:
    """What had been spent at one moment, all roles together.

    Attributes:
        tokens: Prompt and completion tokens.
        dollars: Dollars of the calls whose cost is known.
        unpriced: Calls whose cost is not known.
        calls: Calls that went to a service.
    """

    tokens: int = 0
    dollars: float = 0.0
    unpriced: int = 0
    calls: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """One validation.

    Attributes:
        iteration: When; 0 is the seed.
        index: The candidate's index in gepa's pool.
        score: Its mean validation score.
        best: Whether it was the best so far.
        rollouts: Rollouts bought by then.
        spending: What had been spent at the end of that iteration; ``None`` where that was not heard.
    """

    iteration: int
    index: int
    score: float
    best: bool
    rollouts: int
    spending: Spending | None = None


@dataclass(frozen=True, slots=True)
class IterationRow:
    """One iteration, in sums.

    Attributes:
        number: From 1.
        decisions: What the controller chose for it, oldest first.
        seconds: Wall-clock seconds; ``None`` while it is not over.
        phases: Seconds by phase, see :data:`PHASES`; together about ``seconds``.
        parent_mean: Mean score of the parents' rollouts, ``None`` without any.
        child_mean: The same of the children's.
        rollouts: Rollouts run in it.
        cached: Rollouts taken from the memo.
        errors: Rollouts that failed.
        proposed: Children made.
        accepted: Children that joined the pool.
        refused: Operators that made no child.
        schedule: Decisions of the schedule, counted by kind.
        front_similarity: See :class:`combee_dspy.events.DiversityMeasured`.
        distinct: Distinct candidates so far, ``None`` where not measured.
        too_similar: Candidates refused as too similar so far.
        repeated: Candidates refused as repeated so far.
        temperature: The proposer's temperature, ``None`` for the LM's own.
        restarted: Why the search began again from the seed, empty where it did not.
    """

    number: int
    decisions: tuple[BatchDecision, ...] = ()
    seconds: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    parent_mean: float | None = None
    child_mean: float | None = None
    rollouts: int = 0
    cached: int = 0
    errors: int = 0
    proposed: int = 0
    accepted: int = 0
    refused: int = 0
    schedule: Mapping[str, int] = field(default_factory=dict)
    front_similarity: float | None = None
    distinct: int | None = None
    too_similar: int = 0
    repeated: int = 0
    temperature: float | None = None
    restarted: str = ""


@dataclass(frozen=True, slots=True)
class ScanNode:
    """One node of a scan.

    Attributes:
        level: From 1.
        node: Position in its level, from 0.
        sources: Reflections below it.
        parent: Position of its parent in the level above; ``None`` for the root.
        count: Lessons that it returned.
        lessons: The first of them, cut; empty where a long run's report keeps only counts.
        tokens: Estimated tokens of all of them, ``None`` where not measured.
        kept: Reflections below it that it, or a node above it, still covers; ``None`` where not measured.
        lost: Reflections that no node above covers any more; ``None`` where not measured.
        failed: The error of its call, empty where it succeeded.
    """

    level: int
    node: int
    sources: int
    parent: int | None
    count: int
    lessons: tuple[str, ...] = ()
    tokens: int | None = None
    kept: int | None = None
    lost: int | None = None
    failed: str = ""


@dataclass(frozen=True, slots=True)
class ScanView:
    """One scan.

    Attributes:
        iteration: When.
        component: The component.
        aggregator: The aggregator's name.
        reflections: Reflections it received.
        nodes: Its nodes, by level and position.
        lessons: Lessons that it returned.
        seconds: Wall-clock seconds.
        covered: Reflections that the result covers, ``None`` where not measured.
        measured: Reflections whose fate was measured.
        rescued: Reflections that had been lost before and were offered again.
        tokens_per_level: Estimated tokens by level, from level 1.
    """

    iteration: int
    component: str
    aggregator: str
    reflections: int
    nodes: tuple[ScanNode, ...]
    lessons: int
    seconds: float
    covered: int | None = None
    measured: int = 0
    rescued: int = 0
    tokens_per_level: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CandidateRow:
    """One candidate of the search.

    Attributes:
        candidate_id: Its content hash.
        index: Its index in gepa's pool, ``None`` where it did not join it.
        iteration: When it was made; 0 is the seed.
        parent_id: Its parent's content hash, empty where not known.
        parents: Indices of its parents in the pool.
        operator: Who made it: an operator's name, ``"merge"`` or ``"seed"``.
        minibatch: Mean score on its minibatch, ``None`` where not heard.
        parent_minibatch: Its parent's mean score on the same minibatch.
        validation: Mean validation score, ``None`` where it was not validated.
        fate: What became of it, in a few words.
        chosen: Whether it is the run's result.
        texts: The components that it changed, cut; empty where a long run's report keeps none.
    """

    candidate_id: str
    index: int | None
    iteration: int
    parent_id: str
    parents: tuple[int, ...]
    operator: str
    minibatch: float | None = None
    parent_minibatch: float | None = None
    validation: float | None = None
    fate: str = ""
    chosen: bool = False
    texts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CostRow:
    """What one role has cost in the whole run.

    Attributes:
        role: The role.
        models: Models that served it.
        calls: Calls that went to a service.
        cached: Calls that a cache answered.
        errors: Calls that failed.
        prompt_tokens: Prompt tokens.
        completion_tokens: Completion tokens.
        dollars: Dollars of the calls whose cost is known.
        unpriced: Calls whose cost is not known.
        gpu_seconds: GPU-seconds, ``None`` where none are declared.
        seconds: Sum of the seconds of its calls.
        slowest: Seconds of the slowest.
        peak: Most calls in flight at once.
    """

    role: str
    models: tuple[str, ...]
    calls: int
    cached: int
    errors: int
    prompt_tokens: int
    completion_tokens: int
    dollars: float
    unpriced: int
    gpu_seconds: float | None
    seconds: float
    slowest: float
    peak: int


@dataclass(frozen=True, slots=True)
class Heldout:
    """The held-out result: fields as in :class:`combee_dspy.events.HeldoutEvaluated`."""

    before: float
    after: float
    low: float
    high: float
    confidence: float
    size: int
    digest: str

    @property
    def gain(self) -> float:
        """Mean paired difference."""
        return self.after - self.before


@dataclass(frozen=True, slots=True)
class TellingRollout:
    """A rollout worth reading.

    Attributes:
        kind: Why it is shown.
        iteration: When.
        rollout_id: Its id.
        candidate_id: Which candidate ran.
        split: Which split.
        score: Its score.
        before: The parent's score on the same example, ``None`` where it is no comparison.
        inputs: The example's inputs, cut.
        prediction: What the program returned, cut.
        feedback: The metric's feedback, cut.
        error: The error, cut; empty without one.
    """

    kind: Kind
    iteration: int
    rollout_id: str
    candidate_id: str
    split: str
    score: float
    before: float | None
    inputs: str
    prediction: str
    feedback: str
    error: str


@dataclass(frozen=True, slots=True)
class Weights:
    """How often each operator was to be drawn, from one iteration on."""

    iteration: int
    weights: Mapping[str, float]
    reason: str


@dataclass(frozen=True, slots=True)
class Tick:
    """What the schedule did in one bin of time.

    Attributes:
        seconds: When it begins, since the run began.
        released: Tasks sent on their way, by lane.
        queued: Tasks that waited at most.
        limit: Slots at its end, ``None`` where none was told.
        dropped: How often waiting tasks gave way.
    """

    seconds: float
    released: Mapping[str, int] = field(default_factory=dict)
    queued: int = 0
    limit: int | None = None
    dropped: int = 0

    @property
    def total(self) -> int:
        """Tasks of all lanes."""
        return sum(self.released.values())


@dataclass(frozen=True, slots=True)
class Release:
    """A reason for which waiting tasks were released, how often, and how many tasks."""

    reason: str
    times: int
    tasks: int


@dataclass(frozen=True, slots=True)
class ScheduleView:
    """The schedule of a run.

    Attributes:
        ticks: Bins in which something was decided, oldest first.
        width: Seconds of a bin.
        lanes: Lanes, in the order in which they were first heard of.
        releases: Reasons of releases.
    """

    ticks: tuple[Tick, ...] = ()
    width: float = 0.0
    lanes: tuple[str, ...] = ()
    releases: tuple[Release, ...] = ()


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a reader should know, in one sentence.

    Attributes:
        iteration: When.
        title: What it is about, in a few words.
        text: The sentence.
        severity: ``"info"``, ``"warning"`` or ``"error"``.
    """

    iteration: int
    title: str
    text: str
    severity: Literal["info", "warning", "error"] = "info"


@dataclass(frozen=True, slots=True)
class ReportData:
    """All that a report shows. No credentials: every text has passed the redactor.

    Attributes:
        name: The run's name.
        seed: The run's seed, ``None`` where no beginning was heard.
        sizes: Rows by split.
        digests: SHA-256 by split.
        models: Model by role.
        specs: Strategies by kind, as JSON text.
        warnings: What makes the run unfit for claims.
        simulated: Whether a simulated service stood for a model.
        heldout: The held-out result, if it was read.
        reason: Why the run stopped, empty while it has not.
        finished: Whether its end was heard.
        seconds: Wall-clock seconds of the run, ``None`` where its end was not heard.
        rollouts: Rollouts bought.
        seed_score: Mean validation score of the seed, ``None`` where not heard.
        best_score: Mean validation score of the result.
        spending: What the whole run has cost.
        costs: The same by role.
        points: Validations, oldest first.
        iterations: Iterations, oldest first.
        scans: Scans, oldest first.
        measurements: Delays by batch size, for the fit.
        weights: Operator weights, oldest first.
        candidates: Candidates, oldest first.
        refusals: ``(operator, reason, how often)`` of children that were not made.
        seed_texts: The seed candidate.
        best_texts: The result, or the best so far.
        telling: The most telling rollouts.
        notes: Errors, calibrations, restarts and other remarkable events.
        dropped: What was left out to keep the report small, in sentences.
        schedule: What the schedule released, and when.
    """

    name: str = ""
    seed: int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    digests: Mapping[str, str] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    specs: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    simulated: bool = False
    heldout: Heldout | None = None
    reason: str = ""
    finished: bool = False
    seconds: float | None = None
    rollouts: int = 0
    seed_score: float | None = None
    best_score: float | None = None
    spending: Spending = field(default_factory=Spending)
    costs: tuple[CostRow, ...] = ()
    points: tuple[Point, ...] = ()
    iterations: tuple[IterationRow, ...] = ()
    scans: tuple[ScanView, ...] = ()
    measurements: tuple[Measurement, ...] = ()
    weights: tuple[Weights, ...] = ()
    candidates: tuple[CandidateRow, ...] = ()
    refusals: tuple[tuple[str, str, int], ...] = ()
    seed_texts: Mapping[str, str] = field(default_factory=dict)
    best_texts: Mapping[str, str] = field(default_factory=dict)
    telling: tuple[TellingRollout, ...] = ()
    notes: tuple[Note, ...] = ()
    dropped: tuple[str, ...] = ()
    schedule: ScheduleView = field(default_factory=ScheduleView)
