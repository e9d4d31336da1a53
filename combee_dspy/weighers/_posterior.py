"""Votes of distinct examples: a contradiction is decided where the posterior is clear."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import Field

from combee_dspy.lessons import Book, BookLesson, certainty
from combee_dspy.strategies import parameters
from combee_dspy.weighers._base import Standing, Weigher
from combee_dspy.weighers._departures import Departures


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
        """Return the standings of all lessons that neither a test nor a user has decided."""
        standings = {
            lesson.id: Standing(
                "retired",
                f"{_count_examples(lesson.harmful)} against it and {lesson.helpful} for it",
            )
            for lesson in book.lessons
            if not lesson.decided and lesson.harmful - lesson.helpful >= self.leave_at
        }
        decided = {lesson.id: lesson for lesson in book.lessons if lesson.decided}
        tested = {home: lesson for home, lesson in decided.items() if lesson.state == "served"}
        lessons = {
            lesson.id: lesson
            for lesson in book.lessons
            if lesson.id not in standings.keys() | decided.keys()
        }
        departures = Departures(book, lessons | tested)
        standings |= self._weigh_contradictions(lessons, tested, departures)
        served = {home for home in lessons if standings[home].state == "served"} | tested.keys()
        repeated = Standing("waiting", "a rule that is served says so without a condition")
        for lesson in lessons.values():
            if lesson.id in served and departures.is_repeated(lesson, served):
                standings[lesson.id] = repeated
                served.remove(lesson.id)
        open_lessons = [lesson for home, lesson in lessons.items() if home in served]
        standings |= self._find_lone(open_lessons, departures)
        return standings | self._find_sole(book, standings)

    def _weigh_contradictions(
        self,
        lessons: Mapping[str, BookLesson],
        tested: Mapping[str, BookLesson],
        departures: Departures,
    ) -> dict[str, Standing]:
        """Return standings by votes: the better supported side of a contradiction is served."""
        votes = {home: max(len(departures.votes(lesson)), 1) for home, lesson in lessons.items()}
        standings: dict[str, Standing] = {}
        # Of equals the one that entered first comes first, as the sort is stable.
        for lesson in sorted(lessons.values(), key=lambda lesson: -votes[lesson.id]):
            decided = [tested[rival] for rival in lesson.rivals if rival in tested]
            rivals = [
                rival for rival in lesson.rivals if standings.get(rival) == Standing("served")
            ]
            if decided:
                is_own = any(rival.own for rival in decided)
                speaker = "the user's own line says what" if is_own else "a test speaks for what"
                standing = Standing("waiting", f"{speaker} contradicts it")
            elif rivals:
                standing = self._weigh_loser(
                    votes[lesson.id], max(votes[rival] for rival in rivals)
                )
            else:
                standing = Standing("served")
            standings[lesson.id] = standing
        return standings

    def _weigh_loser(self, votes: int, winner: int) -> Standing:
        """Return the standing of a lesson that a better supported one contradicts."""
        teaches = "teaches" if winner == 1 else "teach"
        reason = f"{_count_examples(winner)} {teaches} the opposite and {votes} this"
        return Standing("retired" if certainty(winner, votes) >= self.clear else "waiting", reason)

    def _find_lone(
        self, served: Sequence[BookLesson], departures: Departures
    ) -> dict[str, Standing]:
        """Return the exceptions that wait since too many depart from a rule in ways of their own.

        One departs in a way of its own where fewer than ``least`` examples depart so.
        """
        exceptions = [lesson for lesson in served if lesson.rule in departures.lessons]
        lone = [lesson for lesson in exceptions if len(departures.examples(lesson)) < self.least]
        if len(lone) <= max(self.few, self.lone * (len(exceptions) - len(lone))):
            return {}
        reason = f"one example alone departs from the rule so, as {len(lone)} do in other ways"
        return {lesson.id: Standing("waiting", reason) for lesson in lone}

    def _find_sole(self, book: Book, standings: Mapping[str, Standing]) -> dict[str, Standing]:
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
