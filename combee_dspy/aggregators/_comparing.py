"""Answers about numbered lessons become edits of a book: checked, never trusted. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from combee_dspy.lessons import BookEdit, BookLesson, Contradict, Narrow, Retire, Unite
from combee_dspy.reflections import Vocabulary, word_likeness

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

    The answer is hostile. A number that no lesson has is void, and so is a group that has more of
    them than lessons, or is left with one. Where more is void than valid, or an answer asks for
    more relations than lessons have, all of it is void. Lessons that share too few words with the
    first of a group are not united with it, however many groups chain them, and only few that
    hardly an example teaches are retired.

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
    rarest = [vocabulary.rarest(lesson.text) for lesson in lessons]
    ids = [lesson.id for lesson in lessons]
    edits: list[BookEdit] = []
    for group, alike in zip(same, _find_coherent(same, subjects), strict=True):
        if len(alike) > 1:
            edits.append(Unite(tuple(ids[place] for place in alike)))
        if unlike := len(group) - len(alike):
            void.append(f"same: {unlike} of {len(group)} lessons share few words with the first")
    for group in narrower:
        if len(group) == 2 and _share_subject(group, subjects, rarest):
            edits.append(Narrow(ids[group[0]], ids[group[1]]))
        else:
            void.append("narrower: no pair of lessons about one thing")
    for group in opposed:
        if len(group) <= _MOST_OPINIONS and _share_subject(group, subjects, rarest):
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
        # Who mostly names what is not there did not read the rest either.
        if len(group) >= max(least, lost):
            groups.setdefault(group)
    return list(groups)


def _share_subject(
    group: Sequence[int], subjects: Sequence[Mapping[str, float]], rarest: Sequence[frozenset[str]]
) -> bool:
    """Return whether each lesson is about what the first is about.

    A lesson is about its two rarest words. What one form of words brings into every lesson of a
    small book, such as "code", tells no subject.
    """
    first, *others = group
    return all(
        rarest[first] & subjects[member].keys() or rarest[member] & subjects[first].keys()
        for member in others
    )


def _find_coherent(
    groups: Sequence[tuple[int, ...]], subjects: Sequence[Mapping[str, float]]
) -> list[tuple[int, ...]]:
    """Return the part of each group that may be about one thing, also once those that overlap are
    one.

    Every lesson must be like the first. Those that are not, and those that would chain others to
    what is unlike them, are left out. Who names more of those than others did not read the lessons.
    """
    coherent: list[tuple[int, ...]] = []
    united: list[tuple[int, ...]] = []
    for first, *others in groups:
        part: tuple[int, ...] = (first,)
        for other in others:
            touched = [each for each in united if not set(each).isdisjoint((*part, other))]
            head, *rest = dict.fromkeys(chain(*touched, (*part, other)))
            if all(word_likeness(subjects[head], subjects[each]) >= _PARAPHRASE for each in rest):
                part = (*part, other)
        if len(part) <= (1 + len(others)) / 2:
            part = (first,)
        else:
            touched = [each for each in united if not set(each).isdisjoint(part)]
            whole = tuple(dict.fromkeys(chain(*touched, part)))
            united = [*(each for each in united if each not in touched), whole]
        coherent.append(part)
    return coherent
