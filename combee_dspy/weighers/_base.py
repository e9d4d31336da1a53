"""The weigher contract: a book in, and which of its lessons are served."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from combee_dspy.lessons import Book, State
from combee_dspy.strategies import Strategy

__all__ = ["Standing", "Weigher"]


@dataclass(frozen=True, slots=True)
class Standing:
    """A lesson's state by its evidence, and why; no reason where nothing speaks against it."""

    state: State
    reason: str = ""


class Weigher(Strategy):
    """Decides by the evidence which lessons of a book are served. Pure."""

    kind: ClassVar[str] = "weigher"

    @abstractmethod
    def weigh(self, book: Book) -> Mapping[str, Standing]:
        """Return a standing for lessons by id; a lesson that is left out is served.

        What is decided already, by a test or a user, stays as it is, whatever is returned.
        """

    def applied(self, book: Book) -> Book:
        """Return a book in which every lesson has the state that its evidence comes to.

        A decision by a test is evidence too: it stands until later examples outweigh it.
        """
        book = book.reopened()
        standings = self.weigh(book)
        states: dict[str, tuple[State, str]] = {}
        for lesson in book.lessons:
            if not lesson.decided:
                standing = standings.get(lesson.id, Standing("served"))
                states[lesson.id] = standing.state, standing.reason
        return book.with_states(states)
