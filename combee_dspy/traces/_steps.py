"""The steps of a trajectory as a reader sees them, cut by what decides. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from combee_dspy.records import PredictorCall, Reflection
from combee_dspy.reflections import estimate_record_tokens, fit_reflections, texts_in
from combee_dspy.traces._records import Trace

__all__ = ["ANSWER", "INPUTS", "answer_of", "cut_steps", "read_inputs", "read_steps", "untold"]

INPUTS, ANSWER = "Inputs", "Generated Outputs"
LEFT_OUT, AS_BEFORE = "Left out", "(as before, then:)"

_TROUBLE = re.compile(
    r"\b(\w*errors?|\w*exceptions?|traceback|fail(s|ed|ures?)?|denied|not found|no such|invalid"
    r"|refused|timed? ?out)\b",
    re.IGNORECASE,
)
# An error is named where a result begins or ends.
_LOOKED_AT = 2_000
# The most of a record that one step may take.
_STEP_SHARE = 4
_FEWEST_STEP_TOKENS = 64
# Between two calls of an agent's model stand a few of its tools.
_NEAR = 8
# A shorter text may begin like another one by chance, and is cheap to repeat.
_LONG = 80
_NOTHING = object()


def read_steps(trace: Trace, subject: int | None = None) -> list[Mapping[str, object]]:
    """Return the calls of a trace as steps, without inputs that stand elsewhere in the record.

    Agents hand on all that happened so far. Of such an input a step has what was added since a call
    before; nothing, where a tool's step between them has it.

    Args:
        trace: The trace.
        subject: Position of the call that the record is about, and which is no step; ``None`` for
            none.
    """
    about = trace.inputs if subject is None else {**trace.inputs, **trace.calls[subject].inputs}
    steps: list[Mapping[str, object]] = []
    for place, call in enumerate(trace.calls):
        if place == subject:
            continue
        inputs: dict[str, object] = {}
        for name, value in call.inputs.items():
            before, added = _since(trace.calls, place, name)
            between = trace.calls[before + 1 : place]
            is_new = added is value or (added and not any(map(_is_tool, between)))
            if is_new and not _is_equal(value, about.get(name, _NOTHING)):
                inputs[name] = added
        step: dict[str, object] = {"Step": call.predictor} if call.predictor else {}
        steps.append({**step, **({INPUTS: inputs} if inputs else {}), ANSWER: answer_of(call)})
    return steps


def read_inputs(calls: Sequence[PredictorCall], place: int) -> dict[str, object]:
    """Return the inputs of a call; of those that grow from call to call, what was added last."""
    inputs = calls[place].inputs
    each = ((name, value, _since(calls, place, name)[1]) for name, value in inputs.items())
    return {name: added if added is value or added else value for name, value, added in each}


def answer_of(call: PredictorCall) -> dict[str, object]:
    """Return what a call returned, or what could not be read of it."""
    return {"Unreadable answer": call.completion} if call.outputs is None else dict(call.outputs)


def untold(outputs: Mapping[str, object], calls: Sequence[PredictorCall]) -> dict[str, object]:
    """Return the outputs of a program without what its last calls were handed: the steps tell."""
    handed = {name: value for call in calls for name, value in call.inputs.items()}
    rest: dict[str, object] = {}
    for name, value in outputs.items():
        before = handed.get(name)
        added = _added(value, before)
        if isinstance(value, Mapping) and isinstance(before, str) and len(before) >= _LONG:
            added = "" if all(text in before for text in texts_in(value)) else value
        if added is value or added:
            rest[name] = added
    return rest


def _is_equal(value: object, other: object) -> bool:
    try:
        return bool(value == other)
    except ValueError:  # arrays and tables have no one answer
        return False


def _since(calls: Sequence[PredictorCall], place: int, name: str) -> tuple[int, object]:
    """Return the last call near by whose input a call goes on from, and what was added to it.

    Where there is none: the position before, and the whole input.
    """
    value = calls[place].inputs[name]
    for before in range(place - 1, max(place - 1 - _NEAR, 0) - 1, -1):
        added = _added(value, calls[before].inputs.get(name))
        if added is not value:
            return before, added
    return place - 1, value


def _added(value: object, before: object) -> object:
    """Return what a value adds to one that it begins with; the value itself where it does not."""
    if isinstance(value, str) and isinstance(before, str):
        if len(before) < _LONG or not value.startswith(before):
            return value
        added = value[len(before) :].strip()
        return f"{AS_BEFORE}\n{added}" if added else ""
    if isinstance(value, (list, tuple)) and isinstance(before, (list, tuple)):
        if not before or not _is_equal(list(value[: len(before)]), list(before)):
            return value
        return [AS_BEFORE, *value[len(before) :]] if len(value) > len(before) else []
    return value


def _is_tool(call: PredictorCall) -> bool:
    return "tool" in call.predictor.casefold()


def cut_steps(
    steps: Sequence[Mapping[str, object]], room: int, tokens: int
) -> list[Mapping[str, object]]:
    """Return the steps that decide, in their order, with a mark where others are left out.

    Args:
        steps: All of them.
        room: Estimated tokens that the rest of the record leaves.
        tokens: Those that the whole record may take: steps get half of it at least.
    """
    room = max(room, tokens // 2)
    most = max(tokens // _STEP_SHARE, _FEWEST_STEP_TOKENS)
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
    texts = [str(step.get(part, "")) for part in (INPUTS, ANSWER)]
    ends = [end for text in texts for end in (text[:_LOOKED_AT], text[-_LOOKED_AT:])]
    return any(map(_TROUBLE.search, ends))
