"""Answers about numbered lessons become edits of a book: checked, never trusted. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from combee_dspy.lessons import BookEdit, BookLesson, Contradict, Narrow, Retire, Unite
from combee_dspy.reflections import Vocabulary, word_likeness

__all__ = ["LessonRelations", "read_relations"]

# So many opinions on one question are none.
_MOST_OPINIONS = 12
# Few lessons say nothing, and none that more examples teach.
_MOST_EMPTY = 1 / 8
_MOST_EXAMPLES = 1
# Lessons that are the same are at least so like the first of them; unlike lessons share less.
_PARAPHRASE = 0.2
EMPTY = "it tells the assistant nothing that it could do"


@dataclass(frozen=True, slots=True)
class LessonRelations:
    """One answer as edits, in the order in which they apply, and the parts that are void."""

    edits: tuple[BookEdit, ...] = ()
    void: tuple[str, ...] = ()


def read_relations(
    answer: Mapping[str, object], lessons: Sequence[BookLesson], vocabulary: Vocabulary
) -> LessonRelations:
    """Return the edits in an answer about lessons that were numbered from 1.

    The answer is hostile. A number that no lesson has is void, and so is a group that is left with
    one lesson. Where more is void than valid, or an answer asks for more relations than lessons
    have, all of it is void. Lessons that share too few words are not united, however many groups
    chain them, and only few that hardly an example teaches are retired.

    Args:
        answer: What the LM returned by output field of ``RelateLessons``; it may hold anything.
        lessons: The lessons that were shown.
        vocabulary: That of the book.
    """
    void: list[str] = []
    same, opposed, narrower = (
        _groups(answer.get(name), len(lessons), name, void)
        for name in ("same", "contradictory", "narrower")
    )
    empty = next(iter(_groups([answer.get("empty")], len(lessons), "empty", void, least=1)), ())
    relations = sum(map(len, (same, opposed, narrower, empty)))
    if len(void) > max(relations, 1):
        problem = f"all of an answer: {len(void)} of its parts name no lessons"
        return LessonRelations(void=(problem,))
    if relations > 3 * len(lessons):
        problem = f"all of an answer: {relations} relations among {len(lessons)} lessons"
        return LessonRelations(void=(problem,))
    subjects = [vocabulary.subject(lesson.text) for lesson in lessons]
    ids = [lesson.id for lesson in lessons]
    edits: list[BookEdit] = []
    alike = _find_coherent(same, subjects)
    for group in same:
        if group in alike:
            edits.append(Unite(tuple(ids[place] for place in group)))
        else:
            void.append(f"same: {len(group)} of {len(ids)} lessons that share few words")
    for group in narrower:
        if len(group) == 2 and _share_subject(group, subjects):
            edits.append(Narrow(ids[group[0]], ids[group[1]]))
        else:
            void.append("narrower: no pair of lessons about one thing")
    for group in opposed:
        if len(group) <= _MOST_OPINIONS and _share_subject(group, subjects):
            edits.append(Contradict(tuple(ids[place] for place in group)))
        else:
            void.append(f"contradictory: {len(group)} of {len(ids)} lessons, not about one thing")
    edits += _retire([lessons[place] for place in empty], len(ids), void)
    return LessonRelations(tuple(edits), tuple(void))


def _retire(named: Sequence[BookLesson], lessons: int, void: list[str]) -> list[Retire]:
    """Retire the lessons that say nothing: few at once, and none that examples speak for."""
    untaught = [lesson for lesson in named if not lesson.own and lesson.helpful <= _MOST_EXAMPLES]
    if len(untaught) > max(1, _MOST_EMPTY * lessons):
        void.append(f"empty: {len(untaught)} of {lessons} lessons")
        untaught = []
    if spoken_for := len(named) - len(untaught):
        void.append(f"empty: {spoken_for} lessons that examples or the user speak for")
    return [Retire(lesson.id, EMPTY) for lesson in untaught]


def _groups(
    value: object, lessons: int, name: str, void: list[str], least: int = 2
) -> list[tuple[int, ...]]:
    """Return groups of positions from 0, each position once a group and each group once."""
    groups: dict[tuple[int, ...], None] = {}
    for item in value if isinstance(value, (list, tuple)) else ():
        if not isinstance(item, (list, tuple)):
            void.append(f"{name}: {item!r:.40} is no list of numbers")
            continue
        numbers = dict.fromkeys(number for number in item if type(number) is int)
        group = tuple(number - 1 for number in numbers if 1 <= number <= lessons)
        if (lost := len(item) - len(group)) > 0:
            void.append(f"{name}: {lost} numbers that no lesson has, or that repeat")
        if len(group) >= least:
            groups.setdefault(group)
    return list(groups)


def _share_subject(group: Sequence[int], subjects: Sequence[Mapping[str, float]]) -> bool:
    """Return whether each lesson is about what the first is about.

    A lesson is about its two rarest words. What one form of words brings into every lesson of a
    small book, such as "code", tells no subject.
    """
    first = subjects[group[0]]
    return all(
        _rarest(first) & subjects[member].keys() or _rarest(subjects[member]) & first.keys()
        for member in group[1:]
    )


def _rarest(subject: Mapping[str, float]) -> set[str]:
    """Return the two rarest words of a lesson, and those that are as rare as the second."""
    least = min(sorted(subject.values())[-2:], default=0.0)
    return {word for word, weight in subject.items() if weight >= least}


def _find_coherent(
    groups: Sequence[tuple[int, ...]], subjects: Sequence[Mapping[str, float]]
) -> list[tuple[int, ...]]:
    """Return the groups that may each be about one thing, also once those that overlap are one.

    Every lesson must be like the first. A group that would chain others to what is unlike them is
    left out.
    """
    coherent: list[tuple[int, ...]] = []
    united: list[tuple[int, ...]] = []
    for group in groups:
        touched = [other for other in united if not set(other).isdisjoint(group)]
        first, *others = dict.fromkeys(number for part in (*touched, group) for number in part)
        if all(word_likeness(subjects[first], subjects[other]) >= _PARAPHRASE for other in others):
            coherent.append(group)
            united = [*(other for other in united if other not in touched), (first, *others)]
    return coherent
