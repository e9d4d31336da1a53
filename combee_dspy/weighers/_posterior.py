"""Votes of distinct examples: a contradiction is decided where the posterior is clear."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from combee_dspy.lessons import Book, BookLesson, certainty
from combee_dspy.strategies import parameters
from combee_dspy.texts import normalised
from combee_dspy.weighers._base import Standing, Weigher

_WORD = re.compile(r"\w+")
# A word that more lessons hold belongs to the way they are worded.
_COMMON = 0.1


def _count_examples(examples: int) -> str:
    return "1 example" if examples == 1 else f"{examples} examples"


@parameters
class Posterior(Weigher):
    """Serves the better supported side of a contradiction, and exceptions that are more than noise.

    Each example votes once for a lesson, however often it was read. With f examples for one side
    and a against it, θ, the share of examples that teach the first, has the posterior Beta(1 + f, 1
    + a). Where P(θ > ½) reaches ``clear``, the other side is retired; until then it waits, and both
    stay in the book. A later example counts on either side, so a decision can be overturned.

    A rule that was learned from a wrong example draws exceptions, each with another condition,
    where its rival would have said it all. So an exception votes for a rival of its rule that
    departs from the rule in the same way, and it waits beside a rival that is served, which it
    would repeat. So does what contradicts an exception and says what the exception's rule says,
    while the rule is served and the exception is not.

    An exception is served under its rule where ``least`` distinct examples depart from the rule in
    the same way, under one condition or several: those that share a rare word which the rule lacks.
    A lone one may be an example with a wrong label, which looks the same. What tells the two apart
    is the book as a whole: wrong labels are drawn anew each time, so they depart from a rule in
    ever other ways, where true exceptions come again. So lone exceptions are served while at most
    ``lone`` of them stand beside each departure that came again, and wait beyond that. A few lone
    ones (up to ``few``) say nothing about the labels, and are served.

    A lesson that harms is retired, whatever it contradicts. A line of the user's own is no matter
    of votes: it is served, and what contradicts it waits, since a prompt that says both teaches
    neither. The reason names the line's side, so a user who sees the examples may remove the line.

    Example:
        >>> from combee_dspy.lessons import Book, Contradict, Taught, lesson_id
        >>> from combee_dspy.weighers import Posterior
        >>> left, right = Taught("Go left.", tuple("abcdefg")), Taught("Go right.", ("h",))
        >>> book = Book().add([left, right], born=0)
        >>> book = book.edit([Contradict((lesson_id("Go left."), lesson_id("Go right.")))]).book
        >>> [(lesson.text, lesson.state) for lesson in Posterior().applied(book).lessons]
        [('Go left.', 'served'), ('Go right.', 'retired')]

    Args:
        clear: Posterior from which a contradiction is decided, above ½ and below 1.
        least: Distinct examples from which a departure counts as seen again.
        lone: Lone exceptions for each one seen again that a book without wrong labels may hold.
        few: Lone exceptions that say nothing about the labels.
        leave_at: Net harm at which a lesson is retired: examples that it harmed beyond those that
            speak for it.
        sole: Other examples in the book from which on a lesson that one example alone teaches
            waits; ``None`` for no such rule. For training rows that nobody vouches for: one of them
            cannot order a line into the prompt. Where each row teaches something of its own,
            nothing is served.
    """

    name: ClassVar[str] = "posterior"

    clear: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    least: Annotated[int, Field(ge=2)] = 2
    lone: Annotated[float, Field(ge=0)] = 2.0
    few: Annotated[int, Field(ge=0)] = 3
    leave_at: Annotated[int, Field(ge=1)] = 3
    sole: Annotated[int, Field(ge=1)] | None = None

    def weigh(self, book: Book) -> Mapping[str, Standing]:
        """Return the standings of lessons that harm, of contradicted ones, and of exceptions."""
        undecided = [lesson for lesson in book.lessons if not lesson.decided]
        standings = {
            lesson.id: Standing(
                "retired",
                f"it harmed {_count_examples(lesson.harmful)} and helped {lesson.helpful}",
            )
            for lesson in undecided
            if lesson.harmful - lesson.helpful >= self.leave_at
        }
        lessons = {lesson.id: lesson for lesson in undecided if lesson.id not in standings}
        tested = {
            lesson.id: lesson
            for lesson in book.lessons
            if lesson.decided and lesson.state == "served"
        }
        view = _View(book, lessons | tested)
        votes = {lesson.id: max(len(view.votes(lesson)), 1) for lesson in lessons.values()}
        # Of equals the one that entered first, as the sort is stable.
        for lesson in sorted(lessons.values(), key=lambda lesson: -votes[lesson.id]):
            rivals = [
                rival for rival in lesson.rivals if standings.get(rival) == Standing("served")
            ]
            winner = max(rivals, key=votes.__getitem__, default=None)
            if not tested.keys().isdisjoint(lesson.rivals):
                is_own = any(rival in tested and tested[rival].own for rival in lesson.rivals)
                speaker = "the user's own line says what" if is_own else "a test speaks for what"
                standings[lesson.id] = Standing("waiting", f"{speaker} contradicts it")
            elif winner is None:
                standings[lesson.id] = Standing("served")
            else:
                standings[lesson.id] = self._against(votes[lesson.id], votes[winner])
        served = {
            home for home, standing in standings.items() if standing.state == "served"
        } | tested.keys()
        for lesson in lessons.values():
            if lesson.id in served and view.is_repeated(lesson, served):
                standings[lesson.id] = Standing(
                    "waiting", "a rule that is served says so without a condition"
                )
                served.remove(lesson.id)
        again, lone = self._exceptions(view, [lessons[home] for home in lessons if home in served])
        if len(lone) > max(self.few, self.lone * len(again)):
            reason = f"one example alone departs from the rule so, as {len(lone)} do in other ways"
            standings.update(
                dict.fromkeys((lesson.id for lesson in lone), Standing("waiting", reason))
            )
        return standings | self._sole(book, standings)

    def _sole(self, book: Book, standings: Mapping[str, Standing]) -> dict[str, Standing]:
        """Return the lessons that wait since one example alone teaches them."""
        examples = {source for lesson in book.lessons for source in lesson.sources}
        if self.sole is None or len(examples) <= self.sole:
            return {}
        others = len(examples) - 1
        reason = f"one example alone teaches it, and {others} others do not"
        return {
            lesson.id: Standing("waiting", reason)
            for lesson in book.lessons
            if standings.get(lesson.id) == Standing("served") and lesson.support == 1
        }

    def _against(self, votes: int, winner: int) -> Standing:
        """Return the standing of a lesson that a better supported one contradicts."""
        reason = (
            f"{_count_examples(winner)} {'teaches' if winner == 1 else 'teach'} the opposite and"
            f" {votes} this"
        )
        return Standing("retired" if certainty(winner, votes) >= self.clear else "waiting", reason)

    def _exceptions(
        self, view: _View, served: Sequence[BookLesson]
    ) -> tuple[list[BookLesson], list[BookLesson]]:
        """Return the served exceptions whose departure was seen again, and the lone ones."""
        again: list[BookLesson] = []
        lone: list[BookLesson] = []
        for lesson in served:
            if lesson.rule in view.lessons:
                alike = [
                    other
                    for other in view.exceptions[lesson.rule]
                    if view.is_alike(lesson, other, lesson.rule)
                ]
                examples = {source for other in (lesson, *alike) for source in other.sources}
                (again if len(examples) >= self.least else lone).append(lesson)
        return again, lone


class _View:
    """The lessons that no test has retired, and which depart from a rule alike."""

    def __init__(self, book: Book, lessons: Mapping[str, BookLesson]) -> None:
        self.book = {lesson.id: lesson for lesson in book.lessons}
        self.lessons = lessons
        self.exceptions: dict[str, list[BookLesson]] = {}
        for lesson in lessons.values():
            self.exceptions.setdefault(lesson.rule, []).append(lesson)
        self._words = {
            lesson.id: set(_WORD.findall(normalised(lesson.text))) for lesson in book.lessons
        }
        holders = Counter(word for home in lessons for word in self._words[home])
        self._rare = {
            word for word, count in holders.items() if count <= max(2, _COMMON * len(lessons))
        }

    def is_alike(self, first: BookLesson, second: BookLesson, rule: str) -> bool:
        """Return whether two lessons depart from a rule in the same way."""
        return bool(self._departure(first, rule) & self._departure(second, rule))

    def _departure(self, lesson: BookLesson, rule: str) -> set[str]:
        """Return the words in which a lesson departs from a rule: its numbers, else rare words."""
        words = self._words[lesson.id] - self._words[rule]
        return {word for word in words if any(map(str.isdigit, word))} or words & self._rare

    def votes(self, lesson: BookLesson) -> set[str]:
        """Return the examples that teach a lesson.

        An exception that departs from the lesson's rival in the same way votes for it.
        """
        votes = set(lesson.sources)
        for rival in lesson.rivals:
            if rival in self.lessons:
                agreeing = (
                    exception
                    for exception in self.exceptions.get(rival, ())
                    if self.is_alike(exception, lesson, rival)
                )
                votes.update(source for exception in agreeing for source in exception.sources)
        return votes

    def is_repeated(self, lesson: BookLesson, served: Collection[str]) -> bool:
        """Return whether a rule that is served says what a lesson says.

        That is a rival of the rule that lost, for an exception to that rule; or, for what
        contradicts an exception that is not served, the exception's rule.
        """
        rule = self.book.get(lesson.rule)
        if rule is not None and rule.id not in served:
            rivals = [rival for rival in rule.rivals if rival in served and rival != lesson.id]
            if any(self.is_alike(lesson, self.book[rival], rule.id) for rival in rivals):
                return True
        exceptions = [self.book[rival] for rival in lesson.rivals if rival in self.book]
        return any(
            exception.rule in served
            and exception.id not in served
            and exception.rule != lesson.id
            and self.is_alike(lesson, self.book[exception.rule], exception.id)
            for exception in exceptions
        )
