"""What the learner decided, as events of its journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from combee_dspy.events import Event

__all__ = ["Action", "Decision"]

Action = Literal[
    "learn",
    "skip",
    "fail",
    "drift",
    "forget",
    "refuse",
    "propose",
    "approve",
    "reject",
    "remove",
    "promote",
    "withdraw",
    "roll back",
]


@dataclass(frozen=True, slots=True)
class Decision(Event):
    """One decision: a line of the audit.

    Attributes:
        at: Unix time by the clock.
        session: The learning session that it is about, from 1; 0 for none.
        action: What was decided.
        why: The reason, in a sentence.
        version: The version in the registry that it is about; ``None`` for none.
        who: Who decided, where it was a person; else empty.
        text: The lesson that it is about; empty for none.
        line: The line of ``people.jsonl`` that it carries out; 0 for none.
    """

    kind: ClassVar[str] = "live"
    at: float
    session: int
    action: Action
    why: str
    version: int | None = None
    who: str = ""
    text: str = ""
    line: int = 0
