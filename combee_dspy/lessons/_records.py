"""A lesson of a book, and what brings one in."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from combee_dspy.edits import LessonEffect
from combee_dspy.records import Lessons, Reflection
from combee_dspy.texts import normalised

State = Literal["served", "waiting", "retired", "removed_by_user"]
"""``served``: in the prompt. ``waiting``: undecided, out of the prompt until more evidence comes.
``retired``: evidence speaks against it. ``removed_by_user``: never served again."""


def lesson_id(text: str) -> str:
    """Return the id of a lesson with this wording: 12 hex digits, the same for the same words."""
    return hashlib.sha256(normalised(text).encode("utf-8", "surrogatepass")).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Taught:
    """A wording, the examples that teach it, and where it is filed."""

    text: str
    sources: tuple[str, ...] = ()
    section: str = ""


def taught(lessons: Lessons, reflections: Iterable[Reflection], update: int) -> list[Taught]:
    """Return what an aggregator learned from an update, by the examples that teach it."""
    names = {reflection.index: reflection.source(update) for reflection in reflections}
    return [
        Taught(
            " ".join(lesson.text.split()),
            tuple(names[index] for index in lesson.sources if index in names),
            lesson.section,
        )
        for lesson in lessons.lessons
        if lesson.text.strip()
    ]


def certainty(votes_for: int, votes_against: int) -> float:
    """Return P(θ > ½ | Beta(1 + for, 1 + against)): how sure votes make it that a side is right."""
    # For whole numbers it is a binomial's: exact, in Python's integers.
    votes = votes_for + votes_against + 1
    return sum(math.comb(votes, count) for count in range(votes_for + 1)) / 2**votes


@dataclass(frozen=True, slots=True)
class Decision:
    """What a test decided, or a reader who found that a lesson says nothing.

    Attributes:
        rows: The rows that show it; each weighs what an example does.
        cited: Examples on the other side at that time, which the decision knew of. Later ones speak
            against it.
    """

    rows: int
    cited: int


@dataclass(frozen=True, slots=True)
class BookLesson:
    """One lesson of a book.

    Attributes:
        id: Id of its first wording. It stays when wordings join.
        text: The wording that is served.
        sources: Examples that teach it or that it helped with, each once, ascending.
        against: Examples that it harmed, each once, ascending; none of them is a source.
        helped: How often it helped before this book, with examples that nobody knows any more.
        harmed: How often it harmed before this book.
        section: Where a playbook files it; empty for its last section.
        born: The update that taught it first; −1 where it stood in the student's prompt.
        state: Whether it is served.
        reason: Why it is in this state, in a sentence; empty for a lesson that nothing speaks
            against.
        decision: The edit that set the state; ``None`` where weighing does. Later examples may
            outweigh it.
        effect: What the last test of this lesson alone measured.
        rule: Id of the lesson that it is an exception to; empty where it is none.
        rivals: Ids of the lessons that contradict it, ascending.
        wordings: Ids of all its wordings, its own first.
        texts: The wordings that are not served, so that code knows them again.
        worded: The update that brought its newest wording.
        own: Whether it is a line of the user's own, which is served as it stands until the user
            removes it. Bullets of a playbook are not, since earlier runs wrote them and count what
            they do.
    """

    id: str
    text: str
    sources: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    helped: int = 0
    harmed: int = 0
    section: str = ""
    born: int = 0
    state: State = "served"
    reason: str = ""
    decision: Decision | None = None
    effect: LessonEffect | None = None
    rule: str = ""
    rivals: tuple[str, ...] = ()
    wordings: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    worded: int = -1
    own: bool = False

    @property
    def decided(self) -> bool:
        """Whether an edit or the user set the state. Weighing leaves it alone."""
        return self.own or self.decision is not None or self.state == "removed_by_user"

    @property
    def helpful(self) -> int:
        """How many distinct examples teach it or were helped by it."""
        return self.helped + len(self.sources)

    @property
    def harmful(self) -> int:
        """How many distinct examples it harmed."""
        return self.harmed + len(self.against)

    @property
    def support(self) -> int:
        """How many distinct examples speak for it. One that cites none counts as one."""
        return max(self.helpful, 1)


def opposing(lesson: BookLesson, state: State, lessons: Mapping[str, BookLesson]) -> set[str]:
    """Return the examples that speak against a decision.

    They are a retired lesson's own, or those of a served one's rivals.
    """
    if state == "retired":
        return set(lesson.sources)
    return {
        source for rival in lesson.rivals if rival in lessons for source in lessons[rival].sources
    }
