"""The LMs of a program: finding them, and further draws of the same rollout."""

from __future__ import annotations

from typing import Any

import dspy

__all__ = ["another_draw", "draw_again", "lms_of", "predictors_of", "repeats_itself"]

# DSPy's own modules count up from an LM's rollout_id by one for each of a few attempts: far enough from those.
_STRIDE = 1_000_000
# These grow with every call, and hold no part of a program.
_RECORDS = frozenset({"callbacks", "demos", "history", "traces", "train"})


def predictors_of(program: dspy.Module) -> list[Any]:
    """Return every predictor of a program, those of frozen parts too, each once."""
    found: list[Any] = []
    queue: list[Any] = [program]
    seen: set[int] = set()
    while queue:
        item = queue.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, dspy.Predict):
            found.append(item)
        if isinstance(item, dspy.Module):
            queue.extend(value for name, value in vars(item).items() if name not in _RECORDS)
        elif isinstance(item, (list, tuple, dict)):
            queue.extend(item.values() if isinstance(item, dict) else item)
    return found


def lms_of(program: dspy.Module) -> list[Any]:
    """Return the LMs that a program's predictors ask, DSPy's setting where it has none; each once."""
    lms = [predictor.lm or dspy.settings.lm for predictor in predictors_of(program)] or [dspy.settings.lm]
    return list({id(lm): lm for lm in lms if lm is not None}.values())


def repeats_itself(program: dspy.Module) -> bool:
    """Whether every LM of a program is asked at temperature 0, so that a further draw tells nothing new.

    An LM without a temperature counts as sampling, since services then do.
    """
    return all((getattr(lm, "kwargs", None) or {}).get("temperature") == 0 for lm in lms_of(program))


def another_draw(lm: Any, replicate: int) -> Any:
    """Return a copy of an LM whose answers are a draw of their own; the LM itself for ``None`` or replicate 0.

    DSPy's cache then keeps each replicate's answers apart. At temperature 0
    the answer of a service stays what it was.
    """
    if lm is None or replicate == 0:
        return lm
    first = (getattr(lm, "kwargs", None) or {}).get("rollout_id")
    return lm.copy(rollout_id=(first if isinstance(first, int) else 0) + replicate * _STRIDE)


def draw_again(program: dspy.Module, replicate: int) -> dspy.Module:
    """Give every predictor's own LM another draw, in place, and return the program.

    Args:
        program: A copy that belongs to the caller. Predictors that use DSPy's
            setting are left alone: the setting is the caller's to change.
        replicate: 0 changes nothing.
    """
    for predictor in predictors_of(program) if replicate else ():
        predictor.lm = another_draw(predictor.lm, replicate)
    return program
