"""What a reader sees of a trace: GEPA's reflective record, cut by what decides. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from combee_dspy.records import PredictorCall, Reflection
from combee_dspy.reflections import estimate_record_tokens, fit_reflections
from combee_dspy.rollouts import with_texts
from combee_dspy.texts import normalised
from combee_dspy.traces._records import Trace

__all__ = [
    "describe_outcome",
    "has_steps",
    "is_right",
    "read_call",
    "read_trace",
    "redact_trace",
]

INPUTS, STEPS, ANSWER, FEEDBACK, ERROR = (
    "Inputs",
    "Steps",
    "Generated Outputs",
    "Feedback",
    "Error",
)
LEFT_OUT = "Left out"
OTHER_STEPS, RESULT = "Other Steps", "Result of the Whole Program"

_TROUBLE = re.compile(
    r"\b(error|exception|traceback|fail(ed|ure)|denied|not found|invalid|refused|timed? ?out)\b",
    re.IGNORECASE,
)
# An error is named where a result begins or ends.
_LOOKED_AT = 2_000
# The most of a record that one step may take.
_STEP_SHARE = 4
_FEWEST_STEP_TOKENS = 64
# Between two calls of an agent's model stand a few of its tools.
_NEAR = 8


def redact_trace(trace: Trace, scrub: Callable[[str], str]) -> Trace:
    """Return a trace with every text of it changed, but for its id, cursor, prompt and model."""

    def fields(values: Mapping[str, object]) -> dict[str, object]:
        return {name: with_texts(value, scrub) for name, value in values.items()}

    calls = tuple(
        replace(
            call,
            inputs=fields(call.inputs),
            outputs=None if call.outputs is None else fields(call.outputs),
            completion=scrub(call.completion),
        )
        for call in trace.calls
    )
    return replace(
        trace,
        inputs=fields(trace.inputs),
        outputs=None if trace.outputs is None else fields(trace.outputs),
        calls=calls,
        feedback=scrub(trace.feedback),
        expected=fields(trace.expected),
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
        outcome[ANSWER] = dict(trace.outputs)
    if trace.error:
        outcome[ERROR] = trace.error
    outcome[FEEDBACK] = describe_outcome(trace, perfect)
    if has_steps(trace):
        steps = [_step(call, trace, place) for place, call in enumerate(trace.calls)]
        room = tokens - estimate_record_tokens({**record, **outcome})
        record[STEPS] = _cut_steps(steps, max(room, tokens // 2), tokens // _STEP_SHARE)
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
    last = places[-1]
    call = trace.calls[last]
    answer = {"Unreadable answer": call.completion} if call.outputs is None else call.outputs
    record: dict[str, object] = {INPUTS: dict(call.inputs), ANSWER: dict(answer)}
    if trace.error:
        record[ERROR] = trace.error
    others = [
        _step(other, trace, place) for place, other in enumerate(trace.calls) if place != last
    ]
    if others:
        room = tokens - estimate_record_tokens(record)
        record[OTHER_STEPS] = _cut_steps(others, max(room, tokens // 2), tokens // _STEP_SHARE)
        record[RESULT] = dict(trace.outputs or {})
    record[FEEDBACK] = describe_outcome(trace, perfect)
    whole = Reflection(0, record, trace.id, perfect=is_right(trace, perfect))
    return fit_reflections([whole], tokens, lambda note: None, max_parts=1)[0]


def _step(call: PredictorCall, trace: Trace, place: int) -> dict[str, object]:
    """Return a call as a step, without inputs that stand elsewhere in the record.

    Agents hand on all that happened so far: what one of the next calls begins with is left to it.
    """
    later = trace.calls[place + 1 : place + 1 + _NEAR]
    inputs = {
        name: value
        for name, value in call.inputs.items()
        if value != trace.inputs.get(name) and not any(_continues(value, name, on) for on in later)
    }
    outputs = {"Unreadable answer": call.completion} if call.outputs is None else call.outputs
    step: dict[str, object] = {"Step": call.predictor} if call.predictor else {}
    if inputs:
        step[INPUTS] = inputs
    return {**step, ANSWER: dict(outputs)}


def _continues(value: object, name: str, later: PredictorCall) -> bool:
    text, other = value, later.inputs.get(name)
    return isinstance(text, str) and isinstance(other, str) and other.startswith(text)


def _cut_steps(
    steps: Sequence[Mapping[str, object]], room: int, step_tokens: int
) -> list[Mapping[str, object]]:
    """Return the steps that decide, in their order, with a mark where others are left out."""
    most = max(step_tokens, _FEWEST_STEP_TOKENS)
    cut = [
        part.record
        for place, step in enumerate(steps)
        for part in fit_reflections([Reflection(place, step)], most, lambda note: None, max_parts=1)
    ]
    chosen: set[int] = set()
    for place in _by_weight(cut):
        size = estimate_record_tokens(cut[place])
        if size <= room:
            chosen.add(place)
            room -= size
    lines: list[Mapping[str, object]] = []
    skipped = 0
    for place, step in enumerate(cut):
        if place not in chosen:
            skipped += 1
            continue
        if skipped:
            lines.append({LEFT_OUT: f"{skipped} steps"})
        lines.append(step)
        skipped = 0
    return [*lines, {LEFT_OUT: f"{skipped} steps"}] if skipped else lines


def _by_weight(steps: Sequence[Mapping[str, object]]) -> list[int]:
    """Return positions: the last step, steps in trouble and those before them, tools, the rest."""
    last = len(steps) - 1
    trouble = {place for place, step in enumerate(steps) if _is_trouble(step)}
    causes = {place - 1 for place in trouble if place}

    def weight(place: int) -> tuple[int, int]:
        if place == last:
            return 0, 0
        if place in trouble:
            return 1, -place
        if place in causes:
            return 2, -place
        is_tool = "tool" in str(steps[place].get("Step", "")).casefold()
        return (3 if is_tool else 4), -place

    return sorted(range(len(steps)), key=weight)


def _is_trouble(step: Mapping[str, object]) -> bool:
    text = str(step.get(ANSWER, ""))
    return bool(_TROUBLE.search(text[:_LOOKED_AT]) or _TROUBLE.search(text[-_LOOKED_AT:]))
