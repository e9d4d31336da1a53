"""Votes of distinct examples: a contradiction is decided where the posterior is clear."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from combee_dspy.lessons import Book, BookLesson
from combee_dspy.strategies import parameters
from combee_dspy.texts import normalised
from combee_dspy.weighers._base import Standing, Weigher

_WORD = re.compile(r"\w+")
# A word that more lessons hold belongs to the way they are worded.
_COMMON = 0.1


@parameters
class Posterior(Weigher):
    """Serves the better supported side of a contradiction, and exceptions that are more than noise.

    Each example votes once for a lesson, however often it was read. With f examples for one side and a against it,
    θ, the share of examples that teach the first, has the posterior Beta(1 + f, 1 + a). Where P(θ > ½) reaches
    ``clear``, the other side is retired; until then it waits, and both stay in the book. A later example counts on
    either side, so a decision can be overturned.

    An exception is served under its rule where ``least`` distinct examples depart from the rule in the same way, under
    one condition or several: those that share a rare word which the rule lacks. A lone one may be an example with a
    wrong label, which looks the same. What tells the two apart is the book as a whole: wrong labels are drawn anew each
    time, so they depart from a rule in ever other ways, where true exceptions come again. So lone exceptions are served
    while at most ``lone`` of them stand beside each departure that came again, and wait beyond that. A few lone ones
    (up to ``few``) say nothing about the labels, and are served.

    A lesson that harms is retired, whatever it contradicts.

    Args:
        clear: Posterior from which a contradiction is decided, above ½ and below 1.
        least: Distinct examples from which a departure counts as seen again.
        lone: Lone exceptions for each one seen again that a book without wrong labels may hold.
        few: Lone exceptions that say nothing about the labels.
        leave_at: Net harm at which a lesson is retired: examples that it harmed beyond those that speak for it.
    """

    name: ClassVar[str] = "posterior"

    clear: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    least: Annotated[int, Field(ge=2)] = 2
    lone: Annotated[float, Field(ge=0)] = 2.0
    few: Annotated[int, Field(ge=0)] = 3
    leave_at: Annotated[int, Field(ge=1)] = 3

    def weigh(self, book: Book) -> Mapping[str, Standing]:
        """Return the standings of lessons that harm, of contradicted ones, and of exceptions."""
        lessons = {lesson.id: lesson for lesson in book.lessons if not lesson.decided}
        standings: dict[str, Standing] = {}
        # Of equals the one that entered first, as the sort is stable.
        for lesson in sorted(lessons.values(), key=lambda lesson: -lesson.support):
            if lesson.harmful - lesson.helpful >= self.leave_at:
                reason = f"it harmed {lesson.harmful} examples and helped {lesson.helpful}"
                standings[lesson.id] = Standing("retired", reason)
                continue
            rivals = [lessons[rival] for rival in lesson.rivals if standings.get(rival) == Standing("served")]
            winner = max(rivals, key=lambda rival: rival.support, default=None)
            standings[lesson.id] = Standing("served") if winner is None else self._against(lesson, winner)
        again, lone = self._exceptions(lessons)
        if len(lone) > max(self.few, self.lone * len(again)):
            reason = f"one example alone departs from the rule so, as {len(lone)} do in other ways"
            for lesson in lone:
                if standings[lesson.id].state == "served":
                    standings[lesson.id] = Standing("waiting", reason)
        return standings

    def _against(self, lesson: BookLesson, winner: BookLesson) -> Standing:
        """Return the standing of a lesson that a better supported one contradicts."""
        from scipy.stats import beta

        votes = f"{winner.support} examples teach the opposite and {lesson.support} this"
        certain = float(beta.sf(0.5, 1 + winner.support, 1 + lesson.support)) >= self.clear
        return Standing("retired" if certain else "waiting", votes)

    def _exceptions(self, lessons: Mapping[str, BookLesson]) -> tuple[list[BookLesson], list[BookLesson]]:
        """Return the exceptions whose departure from their rule was seen again, and the lone ones."""
        words = {lesson.id: set(_WORD.findall(normalised(lesson.text))) for lesson in lessons.values()}
        holders = Counter(word for held in words.values() for word in held)
        rare = {word for word, count in holders.items() if count <= max(2, _COMMON * len(lessons))}
        by_rule: dict[str, list[BookLesson]] = {}
        for lesson in lessons.values():
            if lesson.rule in lessons:
                by_rule.setdefault(lesson.rule, []).append(lesson)
        again: list[BookLesson] = []
        lone: list[BookLesson] = []
        for rule, exceptions in by_rule.items():
            departures = {lesson.id: (words[lesson.id] - words[rule]) & rare for lesson in exceptions}
            for lesson in exceptions:
                alike = [other for other in exceptions if departures[other.id] & departures[lesson.id]]
                examples = {source for other in (lesson, *alike) for source in other.sources}
                (again if len(examples) >= self.least else lone).append(lesson)
        return again, lone
