"""A weigher that believes everything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from combee_dspy.lessons import Book
from combee_dspy.strategies import parameters
from combee_dspy.weighers._base import Standing, Weigher


@parameters
class Trusting(Weigher):
    """Serves every lesson, contradictory ones too: what a book without votes comes to.

    Example:
        >>> from combee_dspy.lessons import Book, Taught
        >>> from combee_dspy.weighers import Trusting
        >>> book = Book().add([Taught("Go left.", ("a",))], born=0)
        >>> [lesson.state for lesson in Trusting().applied(book).lessons]
        ['served']
    """

    name: ClassVar[str] = "trusting"

    def weigh(self, book: Book) -> Mapping[str, Standing]:
        """Return no standings."""
        return {}
