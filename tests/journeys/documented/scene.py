"""What the documented programs share: how a page is run, and how a teacher answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dspy
from dspy.teleprompt.teleprompt import Teleprompter

from tests.journeys.minds import written
from tests.journeys.server import Asked, Mind, Server

__all__ = ["Optimizer", "Page", "Scores", "score", "teach"]

Optimizer = Callable[..., Teleprompter]
"""``dspy.GEPA`` or what stands in its place."""

NEW_TEXT = ("new_instruction", "improved_instruction")


@dataclass(frozen=True)
class Scores:
    """Mean validation score before and after the page's optimization."""

    untouched: float
    learned: float


@dataclass(frozen=True)
class Page:
    """A script of the documentation, and the service that answers its models."""

    script: Callable[[Optimizer, Server], Scores]
    mind: Mind


def score(program: dspy.Module, rows: Sequence[dspy.Example], metric: Callable[..., Any]) -> float:
    """Evaluate as the pages do, in percent."""
    return float(dspy.Evaluate(devset=list(rows), metric=metric, num_threads=4)(program).score)


def teach(asked: Asked, *lessons: str) -> str:
    """Answer a reflection: lessons to add, or the whole instruction where one is asked for."""
    if asked.last == "Reply with OK.":
        return "OK"
    name = next((name for name in NEW_TEXT if f"`{name}`" in asked.system), None)
    if name is None:
        return written(asked, {"lessons": list(lessons)})
    earlier = re.findall(r"^- .+$", asked.last, re.MULTILINE)
    lines = dict.fromkeys(["Do the task.", *earlier, *(f"- {lesson}" for lesson in lessons)])
    return written(asked, {"reasoning": "From the feedback.", name: "\n".join(lines)})
