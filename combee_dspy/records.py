"""Frozen records that the package's folders exchange: rollouts, reflections, lessons, edits.

A record is made once and never changed, so it may be read from any thread.
Values that belong to the user (examples, predictions, traces) are held by
reference and must not be changed either.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from combee_dspy.edits import BookEdit

NO_BASELINE = "unknown without a serial baseline"
"""The cost per held-out point, where no serial baseline was measured."""

# A predictor's path is made of identifiers, dots and subscripts: it cannot end like these.
_DEMONSTRATIONS, _FIELDS = "::demonstrations", "::fields"


def demonstrations_key(component: str) -> str:
    """Return the key under which a component's demonstrations stand in a candidate."""
    return component + _DEMONSTRATIONS


def fields_key(component: str) -> str:
    """Return the key under which the descriptions of a component's fields stand in a candidate."""
    return component + _FIELDS


def is_hidden(key: str) -> bool:
    """Return whether a key names demonstrations or field descriptions."""
    return key.endswith((_DEMONSTRATIONS, _FIELDS))


def described(error: BaseException) -> str:
    """Return ``"ClassName: message"`` of any error, even of one whose text cannot be read."""
    try:
        # DSPy's own errors end in a list of advice.
        text = str(error).partition("\n\n  To fix:")[0]
        return f"{type(error).__name__}: {text}"
    except BaseException as problem:  # noqa: BLE001 - a user's error may do anything when it is asked for its text
        return (
            f"{type(error).__name__}: its text cannot be had, since that raises"
            f" {type(problem).__name__}"
        )


Metric: TypeAlias = Callable[..., Any]
"""GEPA's metric: ``(gold, pred, trace, pred_name, pred_trace)`` to a score."""

Role = Literal["task", "reflector", "proposer", "evaluator", "serving"]
"""Who an LM call is made for. Named on every logged call."""


@dataclass(frozen=True, slots=True)
class CallUsage:
    """LM calls that one rollout made for one role on one model.

    Attributes:
        calls: Finished calls, errors and cache hits included.
        errors: Calls that ended with an error.
        cached: Calls that DSPy's cache answered.
        dollars: What they cost; ``None`` where that is not known of one of them.
        gpu_seconds: Their share of the role's GPUs; ``None`` where none are declared for it.
        seconds: Sum of their seconds, cache hits left out.
    """

    role: Role
    model: str
    calls: int = 0
    errors: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float | None = 0.0
    gpu_seconds: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PredictorCall:
    """One call of a predictor in one rollout.

    Attributes:
        predictor: Path of the predictor in the program; empty where it is none of the program's
            own.
        outputs: ``None`` where the answer did not parse.
        completion: The raw answer where it did not parse, else empty.
        also: Paths of the other predictors that it may be a call of: a predictor that the program
            makes while it runs is known by its signature, which several may share.
    """

    predictor: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any] | None
    completion: str = ""
    also: tuple[str, ...] = ()

    def is_of(self, predictor: str) -> bool:
        """Whether it is, or may be, a call of a predictor."""
        return predictor == self.predictor or predictor in self.also


@dataclass(frozen=True, slots=True)
class Rollout:
    """One run of a program on one example, scored. The journal keeps it and gives it back equal.

    Attributes:
        example_id: SHA-256 of the example's row (see :mod:`combee_dspy.hashing`).
        score: The metric's score, or the failure score.
        feedback: The metric's text at program level, empty where it gave none.
        objective_scores: Score per objective where the metric names several.
        error: ``"ClassName: message"`` of the program's or metric's error, else ``None``.
        failed_in: Where the error came from: ``"program"``, ``"metric"``, ``"answer"`` for an LM
            answer that did not parse, or ``"service"`` for an LM call that kept failing in a way
            nobody classified; ``None`` without an error.
        prediction: Output fields of the program; ``None`` when it raised or its answer did not
            parse.
        calls: Its predictor calls, in call order.
        usage: Its LM calls by role and model, attempts that were repeated included.
        seconds: Wall-clock seconds of program and metric together.
        queue_seconds: From its submission to its start.
        prompt_hash: Hash of all prompts that its task calls sent, in any order
            (16 hex digits); empty where it sent none.
        bare: Whether the program returned no ``dspy.Prediction``: ``prediction`` then holds what it
            returned in its only field.
    """

    example_id: str
    score: float
    feedback: str = ""
    objective_scores: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    failed_in: Literal["program", "metric", "answer", "service"] | None = None
    prediction: Mapping[str, Any] | None = None
    calls: tuple[PredictorCall, ...] = ()
    usage: tuple[CallUsage, ...] = ()
    seconds: float = 0.0
    queue_seconds: float = 0.0
    prompt_hash: str = ""
    bare: bool = False


@dataclass(frozen=True, slots=True)
class PredictorRun:
    """One predictor's part of one rollout, as an operator sees it.

    Attributes:
        example_id: The example's row hash.
        score: The rollout's score.
        first: Whether this was the predictor's first call in the rollout.
        labels: The example's label fields: what the program should have returned.
    """

    example_id: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    score: float
    first: bool = True
    labels: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reflection:
    """What one trajectory has to say about one component.

    Attributes:
        index: Position in the minibatch, from 0. Joins go by it, never by arrival.
        record: GEPA's reflective record: ``"Inputs"``, ``"Generated Outputs"``, ``"Feedback"``.
            Values may be DSPy types (images, histories) and travel to the LM as such.
        example_id: The example's row hash, or ``None`` where DSPy dropped the link.
        part: 0 for a whole record; 1, 2, … for the parts of a record that was split.
        perfect: Whether its rollout made no mistake: a scan does not read a shard of such
            reflections alone.
    """

    index: int
    record: Mapping[str, Any]
    example_id: str | None = None
    part: int = 0
    perfect: bool = False

    def source(self, update: int) -> str:
        """Return what tells its example apart from others, in a run's update."""
        return self.example_id or f"{update}/{self.index}"


@dataclass(frozen=True, slots=True)
class Lesson:
    """One thing to do differently, in one or two sentences.

    ``sources`` are the indices of the reflections in the shard or shards it came from, ascending.
    ``section`` is where a playbook files it, empty for its last section.
    """

    text: str
    sources: tuple[int, ...] = ()
    section: str = ""


@dataclass(frozen=True, slots=True)
class NodeOutput:
    """What one node of a scan returned.

    Attributes:
        level: 1 for the calls that read reflections, 2 and up for those that merge.
        node: Position within its level, from 0.
        sources: Indices of the reflections below this node, ascending, each once.
        failed: The error's text when the call failed after retries, else ``None``.
    """

    level: int
    node: int
    sources: tuple[int, ...]
    lessons: tuple[str, ...]
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class Retained:
    """What became of one reflection in a scan.

    Attributes:
        coverage: Similarity of what it teaches to the nearest line of the result, 0 to 1.
        covered: Whether that passes the threshold.
        lost_at: ``(level, node)`` of the last node on its way that still covered it or, where
            none did, of the level-1 node that read it; ``(0, 0)`` where no node read it; ``None``
            where it is covered.
        measurable: Whether its feedback says in words what it teaches, so that coverage means
            something.
        lesson: Position among the scan's lessons of the one that covers it; ``None`` where none
            does, as where the text was rewritten.
    """

    index: int
    coverage: float
    covered: bool
    lost_at: tuple[int, int] | None = None
    measurable: bool = True
    lesson: int | None = None


@dataclass(frozen=True, slots=True)
class Lessons:
    """The result of aggregating reflections for one component.

    Attributes:
        lessons: What was learned, in a stated order.
        rewrite: A whole new text, where the aggregator writes one; operators
            that insert lessons use it as it is.
        nodes: Output of every node, in (level, node) order.
        edits: What the aggregator says of these lessons and of those in the book, by their ids. An
            aggregator that says nothing adds its lessons and changes no other.
    """

    component: str
    lessons: tuple[Lesson, ...] = ()
    rewrite: str | None = None
    nodes: tuple[NodeOutput, ...] = ()
    edits: tuple[BookEdit, ...] = ()


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One worked example shown to the model, its fields as JSON values.

    ``example_id`` is the row hash of the training example it came from, else ``None``.
    """

    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    example_id: str | None = None


@dataclass(frozen=True, slots=True)
class Edit:
    """What an operator changes of a component's instruction, demonstrations and field descriptions.

    ``None`` leaves one as it is. ``field_descriptions`` are by the field's name; fields left out
    stay as they are.
    """

    instruction: str | None = None
    demonstrations: tuple[Demonstration, ...] | None = None
    field_descriptions: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why an operator made no edit, in one sentence for the log."""

    reason: str


# What services say with HTTP 400 or 413: OpenAI and vLLM, Anthropic, Gemini, llama.cpp, TGI,
# gateways.
_TOO_LONG = re.compile(
    r"ContextWindowExceededError|LMInvalidRequestError: .*(context"
    r" (length|window|size)|(prompt|input|request) (is )?"
    r"too (long|large)|input token count|exceeds? the (maximum number of tokens|available"
    r" context)|too many tokens"
    r"|`inputs` (tokens|must have less))",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class FailedCall:
    """An LM call that failed after all retries: ``"ClassName: message"``."""

    error: str

    @property
    def too_long(self) -> bool:
        """Whether the prompt was longer than the model, or its server, takes.

        DSPy knows it by some codes alone.
        """
        return _TOO_LONG.match(self.error) is not None

    @property
    def unparsed(self) -> bool:
        """Whether an answer came that the adapter could not read."""
        return self.error.startswith("AdapterParseError: ")


Cause = Literal["unparsed", "raised", "unscored", "refused", "timed out"]
"""Why a rollout or an LM call failed: its answer did not parse, it raised, the metric raised, or
the service's part.
"""


@dataclass(frozen=True, slots=True)
class FailureCount:
    """How many effects of one kind failed for one cause: a sum over the journal.

    Attributes:
        kind: What they are, such as ``"train rollouts"``, ``"held-out rollouts"``, ``"reflector
            calls"`` or ``"evaluator feedback"``.
        role: Whose failure it was.
        failed: How many failed so.
        of: How many effects of that kind there are.
        error: What one of them failed with.
    """

    kind: str
    role: Role
    cause: Cause
    failed: int
    of: int
    error: str

    def __str__(self) -> str:
        """Return the figures, without the error."""
        return f"{self.failed} of {self.of} {self.kind} {self.cause}"


@dataclass(frozen=True, slots=True)
class Measurement:
    """The delay of one iteration at one batch size, from first rollout to last check."""

    batch_size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class PowerLawFit:
    """T(bs) = scale · bs^(−exponent), seconds an epoch (Combee §3.3).

    Attributes:
        scale: A, seconds.
        exponent: α, without unit.
        tau: τ, seconds an epoch that one more example a batch must save.
        plateau: (αA/τ)^(1/(α+1)), examples, before rounding and clamps.
    """

    scale: float
    exponent: float
    tau: float
    plateau: float


@dataclass(frozen=True, slots=True)
class Clamp:
    """One bound that changed a batch size, such as ``"budget"``, and its reason in figures."""

    name: str
    before: int
    after: int
    reason: str


@dataclass(frozen=True, slots=True)
class BatchDecision:
    """How many examples the next minibatch holds, at least 1, and why.

    Attributes:
        reason: One sentence.
        fit: The fit it came from, where there was one.
        clamps: Every bound that changed it, in order.
    """

    size: int
    reason: str
    fit: PowerLawFit | None = None
    clamps: tuple[Clamp, ...] = ()
