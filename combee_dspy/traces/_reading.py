"""What a reader sees of a trace: GEPA's reflective record, cut by what decides. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from combee_dspy.records import Reflection
from combee_dspy.reflections import estimate_record_tokens, fit_reflections
from combee_dspy.rollouts import call_with_texts, fields_with_texts
from combee_dspy.texts import normalised
from combee_dspy.traces._records import Trace
from combee_dspy.traces._steps import (
    ANSWER,
    INPUTS,
    answer_of,
    cut_steps,
    read_inputs,
    read_steps,
    untold,
)

__all__ = [
    "RECORD_TOKENS",
    "describe_outcome",
    "has_steps",
    "is_right",
    "read_call",
    "read_others",
    "read_trace",
    "redact_trace",
]

RECORD_TOKENS = 3_000
"""Estimated tokens that what a reader sees of one rollout may take."""

STEPS, FEEDBACK, ERROR = "Steps", "Feedback", "Error"
OTHER_STEPS, RESULT = "Other Steps", "Result of the Whole Program"


def redact_trace(trace: Trace, scrub: Callable[[str], str]) -> Trace:
    """Return a trace with every text of it changed, but for its id, cursor, prompt and model."""
    return replace(
        trace,
        inputs=fields_with_texts(trace.inputs, scrub),
        outputs=None if trace.outputs is None else fields_with_texts(trace.outputs, scrub),
        calls=tuple(call_with_texts(call, scrub) for call in trace.calls),
        feedback=scrub(trace.feedback),
        expected=fields_with_texts(trace.expected, scrub),
        error=scrub(trace.error),
        tags={name: scrub(value) for name, value in trace.tags.items()},
    )


def is_right(trace: Trace, perfect: float = 1.0) -> bool:
    """Return whether what is said of a trace leaves nothing to mend.

    Its score decides; without one, whether the outputs are the expected ones. Feedback alone tells
    of something to mend.

    Args:
        trace: The trace.
        perfect: The score from which nothing is to mend.
    """
    if trace.error:
        return False
    if trace.score is not None:
        return trace.score >= perfect
    return bool(trace.expected) and _is_expected(trace)


def _is_expected(trace: Trace) -> bool:
    outputs = trace.outputs or {}
    return all(
        normalised(str(outputs.get(name))) == normalised(str(value))
        for name, value in trace.expected.items()
    )


def has_steps(trace: Trace) -> bool:
    """Return whether a trace's calls say more than its outputs do."""
    return len(trace.calls) > 1 or any(call.outputs != trace.outputs for call in trace.calls)


def describe_outcome(trace: Trace, perfect: float = 1.0) -> str:
    """Return how a trace went, as a reader is told: feedback, what was right, the score.

    Args:
        trace: The trace.
        perfect: The score from which nothing is to mend.
    """
    lines = [trace.feedback] if trace.feedback else []
    expected = {
        name: value
        for name, value in trace.expected.items()
        if normalised(str(value)) not in normalised(trace.feedback)
    }
    if expected:
        right = "; ".join(f"{name} = {value}" for name, value in expected.items())
        # Outputs as expected that still scored low, or failed, are neither.
        verdict = "" if _is_expected(trace) else "Wrong. "
        verdict = "Right. " if is_right(trace, perfect) else verdict
        lines.append(f"{verdict}The right answer: {right}.")
    if not lines and trace.score is not None:
        lines.append(f"It was scored {trace.score:g}.")
    return "\n".join(lines)


def read_trace(trace: Trace, tokens: int, position: int = 0, perfect: float = 1.0) -> Reflection:
    """Return what a reader sees of a trace, in so many estimated tokens.

    Steps are there where they say more than inputs and outputs do. Of a long trajectory the steps
    that decide stay: those with errors, the last ones, what tools returned; a mark says how many
    are left out. What is still too long loses the middle of its longest texts.

    Args:
        trace: The trace, redacted.
        tokens: Estimated tokens that its record may take.
        position: Its position among those that are read.
        perfect: The score from which nothing is to mend.
    """
    record: dict[str, object] = {INPUTS: dict(trace.inputs)}
    outcome: dict[str, object] = {}
    if trace.outputs is not None:
        outcome[ANSWER] = untold(trace.outputs, trace.calls)
    if trace.error:
        outcome[ERROR] = trace.error
    outcome[FEEDBACK] = describe_outcome(trace, perfect)
    if has_steps(trace):
        room = tokens - estimate_record_tokens({**record, **outcome})
        record[STEPS] = cut_steps(read_steps(trace), room, tokens)
    whole = Reflection(position, {**record, **outcome}, trace.id, perfect=is_right(trace, perfect))
    return fit_reflections([whole], tokens, lambda note: None, max_parts=1)[0]


def read_call(trace: Trace, predictor: str, tokens: int, perfect: float = 1.0) -> Reflection | None:
    """Return what a reader of a predictor sees of a trace: its last call, and the other steps.

    Args:
        trace: The trace, redacted, with calls that name predictors.
        predictor: The predictor's path.
        tokens: Estimated tokens that the record may take.
        perfect: The score from which nothing is to mend.

    Returns:
        The reflection, at position 0; ``None`` where the predictor was not called.
    """
    places = [place for place, call in enumerate(trace.calls) if call.is_of(predictor)]
    if not places:
        return None
    subject = places[-1]
    record: dict[str, object] = {
        INPUTS: read_inputs(trace.calls, subject),
        ANSWER: answer_of(trace.calls[subject]),
    }
    if trace.error:
        record[ERROR] = trace.error
    record |= read_others(trace, subject, record, tokens)
    record[FEEDBACK] = describe_outcome(trace, perfect)
    whole = Reflection(0, record, trace.id, perfect=is_right(trace, perfect))
    return fit_reflections([whole], tokens, lambda note: None, max_parts=1)[0]


def read_others(
    trace: Trace, subject: int, record: Mapping[str, object], tokens: int
) -> dict[str, object]:
    """Return what a record about a call gets of the others: their steps, and the result.

    Args:
        trace: The trace.
        subject: Position of the call that the record is about.
        record: The record so far.
        tokens: Estimated tokens that the whole record may take.
    """
    steps = read_steps(trace, subject)
    if not steps:
        return {}
    room = tokens - estimate_record_tokens(record)
    result = untold(trace.outputs or {}, trace.calls)
    return {OTHER_STEPS: cut_steps(steps, room, tokens), RESULT: result}
