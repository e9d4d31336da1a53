"""The predictors of a program and the LMs that they ask."""

from __future__ import annotations

from typing import Any

import dspy

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
