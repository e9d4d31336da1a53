"""A lesson of a book, and what brings one in."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from combee_dspy.texts import normalised

__all__ = ["BookLesson", "State", "Taught", "lesson_id"]

State = Literal["served", "waiting", "retired", "removed_by_user"]
"""``served``: in the prompt. ``waiting``: undecided, out of the prompt until more evidence comes.
``retired``: evidence speaks against it. ``removed_by_user``: never served again."""


def lesson_id(text: str) -> str:
    """Return the id of a lesson with this wording: 12 hex digits, the same for the same words."""
    return hashlib.sha256(normalised(text).encode("utf-8", "surrogatepass")).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Taught:
    """A wording, and the examples that teach it: row hashes, or what else tells examples apart."""

    text: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BookLesson:
    """One lesson of a book.

    Attributes:
        id: Id of its first wording. It stays when wordings join.
        text: The wording that is served.
        sources: Examples that teach it, each once, ascending.
        born: The update that taught it first; −1 where it stood in the student's prompt.
        state: Whether it is served.
        reason: Why it is in this state, in a sentence; empty for a lesson that nothing speaks against.
        decided: Whether an edit set the state. Weighing leaves it alone.
        rule: Id of the lesson that it is an exception to; empty where it is none.
        rivals: Ids of the lessons that contradict it, ascending.
        wordings: Ids of all its wordings, its own first.
    """

    id: str
    text: str
    sources: tuple[str, ...] = ()
    born: int = 0
    state: State = "served"
    reason: str = ""
    decided: bool = False
    rule: str = ""
    rivals: tuple[str, ...] = ()
    wordings: tuple[str, ...] = ()

    @property
    def support(self) -> int:
        """How many distinct examples teach it. One that cites none counts as one."""
        return max(len(self.sources), 1)
