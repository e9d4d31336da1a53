"""Whether an answer passed over its examples: none is cited, and no line says what they teach. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from combee_dspy.aggregators._kept import Coverage, teaches, text_lines
from combee_dspy.records import Lesson, Reflection
from combee_dspy.reflections import feedback_text

__all__ = ["is_passed_over"]

# A small model keeps all of what a call reads, or nothing. What lies between is not read again.
_MOST = 0.75
# Share of a feedback that a line must hold to say the same.
_SAME = 0.5
_MOST_CHARS = 20_000


def is_passed_over(items: Sequence[Reflection], lessons: Sequence[Lesson], text: str) -> bool:
    """Return whether an answer passed over more than three quarters of what its call could teach.

    A mistake can teach where its feedback says something in words. It did where a lesson cites it,
    or has what the feedback says. Where the program's text has it already, there was nothing to add.

    Args:
        items: What the call read, in parts where a record was too long.
        lessons: What it returned, with the indices of the reflections that teach each.
        text: What the program was told.
    """
    feedback = {item.index: feedback_text(item)[:_MOST_CHARS] for item in items if not item.perfect}
    telling = {index: said for index, said in feedback.items() if teaches(said)}
    cited = {source for lesson in lessons for source in lesson.sources}
    open_feedback = [said for index, said in telling.items() if index not in cited]
    if len(open_feedback) <= _MOST * len(telling):
        return False
    lines = [*(lesson.text for lesson in lessons), *text_lines(text)]
    coverage = Coverage([*open_feedback, *lines])
    count = len(open_feedback)
    most, _ = coverage.best(range(count), range(count, count + len(lines)))
    return int((most < _SAME).sum()) > _MOST * len(telling)
