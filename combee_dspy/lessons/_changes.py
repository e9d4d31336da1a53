"""The lessons of a book while they are changed: wordings join lessons, edits relate them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from combee_dspy.edits import (
    BookEdit,
    Contradict,
    Credit,
    Narrow,
    Remove,
    Restore,
    Retire,
    Unite,
)
from combee_dspy.lessons._records import BookLesson, Decision, State, Taught, lesson_id, opposing
from combee_dspy.lessons._uniting import distinct, quoted, united_lesson, why_apart, without
from combee_dspy.texts import NearDuplicates

# Jaccard similarity of word pairs from which on code takes two wordings for one lesson.
_SIMILARITY = 0.8


class Changes:
    """The lessons of a book, changed one edit at a time. For one thread."""

    def __init__(self, lessons: Sequence[BookLesson]) -> None:
        self._lessons = {lesson.id: lesson for lesson in lessons}
        self._home = {wording: lesson.id for lesson in lessons for wording in lesson.wordings}
        # Made once a wording comes in: texts that say different things to code, by number.
        self._near: NearDuplicates | None = None
        self._home_at: dict[int, str] = {}

    @property
    def lessons(self) -> tuple[BookLesson, ...]:
        """The lessons as they are now."""
        return tuple(self._lessons.values())

    def add(self, taught: Taught, born: int) -> None:
        """Add a wording and its examples to the lesson that says the same, or as a new lesson.

        Lines of the user's own (``born`` below 0) are one only where they are equal: two that
        differ in a mark or a capital have the same id, so the second gets another.
        """
        wording = lesson_id(taught.text)
        home, place = self._home.get(wording), None
        # Whoever reads a text adds its lines and nothing else: no likeness is asked for.
        if born >= 0:
            place = self._place(taught.text)
            if home is None:
                home = self._home.get(self._home_at.get(place, ""))
        elif home is not None and self._lessons[home].text != taught.text:
            wording, home = f"{wording}-{len(self._lessons)}", None
        if home is None:
            lesson = _new_lesson(wording, taught, born)
        else:
            lesson = _join(self._lessons[home], wording, taught, born)
        self._put(lesson)
        self._home[wording] = lesson.id
        if place is not None:
            self._home_at.setdefault(place, lesson.id)

    def _place(self, text: str) -> int:
        """Return the number of a text among those that say different things to code."""
        if self._near is None:
            self._near = NearDuplicates(_SIMILARITY)
            for lesson in self._lessons.values():
                for wording in (lesson.text, *lesson.texts):
                    self._home_at.setdefault(self._near.place(wording), lesson.id)
        return self._near.place(text)

    def make(self, edit: BookEdit) -> str:
        """Make an edit; return why it cannot be made, the empty text where it was."""
        named = _lessons_of(edit)
        homes = [self._home.get(lesson, "") for lesson in named]
        if "" in homes:
            return f"the book holds no lesson {named[homes.index('')]!r}"
        lessons = [self._lessons[home] for home in dict.fromkeys(homes)]
        if isinstance(edit, (Unite, Contradict, Narrow)) and len(lessons) < 2:
            return "it relates fewer than two lessons"
        match edit:
            case Unite():
                return self._unite(lessons)
            case Contradict():
                return self._contradict(lessons)
            case Narrow():
                return self._narrow(*lessons)
            case Credit():
                return self._credit(lessons[0], edit)
            case Remove():
                return self._remove(lessons[0])
            case _:
                return self._decide(lessons[0], edit)

    def _unite(self, members: Sequence[BookLesson]) -> str:
        """Make one of several lessons: the oldest id, the evidence of all."""
        problem = why_apart(members)
        if problem:
            return problem
        ids = [lesson.id for lesson in members]
        oldest = next(lesson for lesson in self.lessons if lesson.id in ids)
        # An exception to what is now its own exception would be a circle.
        rules = [
            lesson.rule for lesson in members if lesson.rule and not self._leads(lesson.rule, ids)
        ]
        united = united_lesson(members, oldest, rules[0] if rules else "")
        self._put(united)
        self._home.update(dict.fromkeys(united.wordings, united.id))
        gone = set(ids) - {united.id}
        for old in gone:
            del self._lessons[old]
        related = [
            lesson
            for lesson in self.lessons
            if lesson.id == united.id or gone & {lesson.rule, *lesson.rivals}
        ]
        rule_of = {lesson.id: self._home.get(lesson.rule, lesson.rule) for lesson in related}
        for lesson in related:
            # A rival of one may be the rule of another, or an exception to it: both may be right.
            rivals = distinct(
                rival
                for rival in (self._home.get(name, name) for name in lesson.rivals)
                if rival != rule_of[lesson.id] and rule_of.get(rival) != lesson.id
            )
            self._put(replace(lesson, rivals=rivals, rule=rule_of[lesson.id]))
        return ""

    def _contradict(self, lessons: Sequence[BookLesson]) -> str:
        ids = [lesson.id for lesson in lessons]
        for lesson in lessons:
            rivals = distinct((*lesson.rivals, *without(ids, [lesson.id])))
            self._put(replace(lesson, rivals=rivals))
        return ""

    def _narrow(self, exception: BookLesson, rule: BookLesson) -> str:
        if exception.own:
            return f"{quoted(exception)} is the user's own, and stays where it is"
        if self._leads(rule.id, [exception.id]):
            return f"{quoted(rule)} is an exception to {quoted(exception)} already"
        self._put(replace(exception, rule=rule.id, rivals=without(exception.rivals, [rule.id])))
        self._put(replace(rule, rivals=without(rule.rivals, [exception.id])))
        return ""

    def _leads(self, lesson: str, ids: Collection[str]) -> bool:
        """Return whether a lesson, its rule, that rule's rule and so on are any of these."""
        passed: set[str] = set()
        while lesson in self._lessons and lesson not in passed:
            if lesson in ids:
                return True
            passed.add(lesson)
            lesson = self._lessons[lesson].rule
        return False

    def _credit(self, lesson: BookLesson, edit: Credit) -> str:
        """Move judged examples to their side; the latest judgement of an example counts."""
        helped, harmed = without(edit.helped, edit.harmed), without(edit.harmed, edit.helped)
        sources = distinct((*without(lesson.sources, harmed), *helped))
        against = distinct((*without(lesson.against, helped), *harmed))
        self._put(replace(lesson, sources=sources, against=against))
        return ""

    def _remove(self, lesson: BookLesson) -> str:
        if lesson.state == "removed_by_user":
            return f"a user removed {quoted(lesson)}"
        state: State = "removed_by_user"
        reason = "a user removed it"
        self._put(replace(lesson, state=state, reason=reason, decision=None, own=False))
        return ""

    def _decide(self, lesson: BookLesson, edit: Retire | Restore) -> str:
        if lesson.state == "removed_by_user":
            return f"a user removed {quoted(lesson)}"
        if lesson.own:
            return f"{quoted(lesson)} is the user's own"
        rivals = [self._lessons[rival] for rival in lesson.rivals if rival in self._lessons]
        if isinstance(edit, Restore) and any(rival.own for rival in rivals):
            return f"{quoted(lesson)} contradicts a line of the user's own"
        state: State = "served" if isinstance(edit, Restore) else "retired"
        decision = Decision(max(edit.rows, 1), len(opposing(lesson, state, self._lessons)))
        effect = edit.effect or lesson.effect
        self._put(
            replace(lesson, state=state, reason=edit.reason, decision=decision, effect=effect)
        )
        return ""

    def _put(self, lesson: BookLesson) -> None:
        self._lessons[lesson.id] = lesson


def _new_lesson(wording: str, taught: Taught, born: int) -> BookLesson:
    return BookLesson(
        wording,
        taught.text,
        distinct(taught.sources),
        section=taught.section,
        born=born,
        wordings=(wording,),
        worded=born,
        own=born < 0,
    )


def _join(lesson: BookLesson, wording: str, taught: Taught, born: int) -> BookLesson:
    """Return a lesson with another wording and the examples that teach it."""
    if wording not in lesson.wordings:
        lesson = replace(
            lesson,
            texts=(*lesson.texts, taught.text),
            worded=max(lesson.worded, born),
            wordings=(*lesson.wordings, wording),
        )
    return replace(
        lesson,
        sources=distinct((*lesson.sources, *taught.sources)),
        against=without(lesson.against, taught.sources),
    )


def _lessons_of(edit: BookEdit) -> tuple[str, ...]:
    if isinstance(edit, (Unite, Contradict)):
        return edit.lessons
    return (edit.exception, edit.rule) if isinstance(edit, Narrow) else (edit.lesson,)
