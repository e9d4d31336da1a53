"""From the spans of one trace to a :class:`Trace`. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from combee_dspy.records import PredictorCall
from combee_dspy.traces._records import Trace, as_fields

__all__ = ["Span", "trace_of_spans"]

_STEPS = frozenset(("LLM", "CHAT_MODEL", "TOOL", "RETRIEVER", "AGENT"))


@dataclass(frozen=True, slots=True)
class Span:
    """One span, whoever wrote it.

    Attributes:
        id: Its id.
        parent: Id of the span that it is part of; empty for a root.
        name: What ran.
        kind: MLflow's span type, such as ``"LLM"`` or ``"TOOL"``; empty where nobody says.
        inputs: What went in, JSON values.
        outputs: What came out; ``None`` for nothing.
        signature: DSPy's signature, ``"question -> answer"``; empty for what is no predictor.
        error: What it failed with; empty where it did not.
        started: Unix seconds.
        model: The model that was asked; empty for none.
    """

    id: str
    parent: str
    name: str
    kind: str = ""
    inputs: object = None
    outputs: object = None
    signature: str = ""
    error: str = ""
    started: float = 0.0
    model: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was said of a trace: see the attributes of :class:`Trace` with these names."""

    score: float | None = None
    feedback: str = ""
    expected: Mapping[str, object] = field(default_factory=dict)


def trace_of_spans(
    name: str,
    spans: Sequence[Span],
    judgement: Judgement,
    tags: Mapping[str, str],
    cursor: str,
) -> Trace | None:
    """Return the trace of some spans; ``None`` where they have no root with inputs.

    Its calls are those of DSPy predictors, and of tools. Where there is no predictor, they are the
    innermost steps of models, tools and retrievers.

    Args:
        name: The trace's id.
        spans: Its spans, in any order.
        judgement: What was said of it.
        tags: What else is known of it.
        cursor: What the source goes on from, behind it.
    """
    ordered = sorted(spans, key=lambda span: (span.started, span.id))
    ids = {span.id for span in ordered}
    root = next((span for span in ordered if span.parent not in ids), None)
    inputs = {} if root is None else as_fields(root.inputs, "input")
    if root is None or not inputs:
        return None
    failure = root.error or next((span.error for span in ordered if span.error), "")
    return Trace(
        name,
        inputs,
        as_fields(root.outputs, "output") or None,
        tuple(map(_call, _choose_steps(root, ordered))),
        judgement.score,
        judgement.feedback,
        judgement.expected,
        failure if root.error or root.outputs is None else "",
        root.started or None,
        model=next((span.model for span in ordered if span.model), ""),
        tags=tags,
        cursor=cursor,
    )


def _choose_steps(root: Span, spans: Sequence[Span]) -> list[Span]:
    predictors = _innermost([span for span in spans if span.signature], spans)
    tools = [span for span in spans if span.kind == "TOOL"]
    if predictors:
        chosen = {span.id for span in (*predictors, *tools)}
        return [span for span in spans if span.id in chosen]
    steps = [span for span in spans if span.kind in _STEPS and span.id != root.id]
    return _innermost(steps, spans)


def _innermost(chosen: Sequence[Span], spans: Sequence[Span]) -> list[Span]:
    """Return the chosen spans that no other chosen one is part of."""
    parents = {span.id: span.parent for span in spans}
    outer: set[str] = set()
    for span in chosen:
        parent = span.parent
        while parent in parents and parent not in outer:
            outer.add(parent)
            parent = parents[parent]
    return [span for span in chosen if span.id not in outer]


def _call(span: Span) -> PredictorCall:
    outputs = None if span.outputs is None else as_fields(span.outputs, "output")
    if outputs is None and span.error and not span.signature:
        outputs = {"error": span.error}
    return PredictorCall(
        span.name, as_fields(span.inputs, "input"), outputs, span.error if span.signature else ""
    )
