"""What readers of numbered lessons say, as edits of a book: checked, never trusted. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from combee_dspy.lessons import BookEdit, BookLesson, Contradict, Narrow, Retire, Unite
from combee_dspy.reflections import Vocabulary, word_likeness

__all__ = ["LessonRelations", "read_relations"]

# So many opinions on one question are none.
_MOST_OPINIONS = 12
# Lessons that say nothing are few, and of those that more examples teach none is believed to be
# such.
_MOST_EMPTY = 1 / 8
_MOST_EXAMPLES = 1
# Likeness to the first lesson of those that are said to be the same: what unlike lessons share is
# less.
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
        answer: What the LM returned by output field of ``RelateLessons``; anything may stand there.
        lessons: The lessons that were shown.
        vocabulary: That of the book.
    """
    ids = [lesson.id for lesson in lessons]
    void: list[str] = []
    groups = {
        name: _groups(answer.get(name), len(ids), name, void)
        for name in ("same", "contradictory", "narrower")
    }
    useless = next(iter(_groups([answer.get("empty")], len(ids), "empty", void)), ())
    relations = sum(map(len, groups.values())) + len(useless)
    if len(void) > max(relations, 1):
        return LessonRelations(
            void=(f"all of an answer: {len(void)} of its parts name no lessons",)
        )
    if relations > 3 * len(ids):
        return LessonRelations(
            void=(f"all of an answer: {relations} relations among {len(ids)} lessons",)
        )
    subjects = [vocabulary.subject(lesson.text) for lesson in lessons]
    alike = _coherent(groups["same"], subjects)
    edits: list[BookEdit] = [Unite(tuple(ids[number] for number in group)) for group in alike]
    void += [
        f"same: {len(group)} of {len(ids)} lessons that share few words"
        for group in groups["same"]
        if group not in alike
    ]
    for pair in groups["narrower"]:
        if len(pair) == 2 and _share_subject(pair, subjects):
            edits.append(Narrow(ids[pair[0]], ids[pair[1]]))
        else:
            void.append("narrower: no pair of lessons about one thing")
    for group in groups["contradictory"]:
        if len(group) <= _MOST_OPINIONS and _share_subject(group, subjects):
            edits.append(Contradict(tuple(ids[number] for number in group)))
        else:
            void.append(f"contradictory: {len(group)} of {len(ids)} lessons, not about one thing")
    untaught = [
        number
        for number in useless
        if not lessons[number].own and lessons[number].helpful <= _MOST_EXAMPLES
    ]
    if len(untaught) > max(1, _MOST_EMPTY * len(ids)):
        void.append(f"empty: {len(untaught)} of {len(ids)} lessons")
        untaught = []
    if len(untaught) < len(useless):
        void.append(
            f"empty: {len(useless) - len(untaught)} lessons that examples or the user speak for"
        )
    edits += [Retire(ids[number], EMPTY) for number in untaught]
    return LessonRelations(tuple(edits), tuple(void))


def _groups(value: object, lessons: int, name: str, void: list[str]) -> list[tuple[int, ...]]:
    """Return groups of positions from 0, each position once a group and each group once."""
    groups: dict[tuple[int, ...], None] = {}
    for item in value if isinstance(value, (list, tuple)) else ():
        if not isinstance(item, (list, tuple)):
            void.append(f"{name}: {item!r:.40} is no list of numbers")
            continue
        numbers = list(dict.fromkeys(number for number in item if type(number) is int))
        valid = tuple(number - 1 for number in numbers if 1 <= number <= lessons)
        if len(valid) < len(item):
            void.append(
                f"{name}: {len(item) - len(valid)} numbers that no lesson has, or that repeat"
            )
        if len(valid) > (name != "empty"):
            groups.setdefault(valid)
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


def _coherent(
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
