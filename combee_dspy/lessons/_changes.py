"""A book that is being changed: lessons by id and by wording. For one thread."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import combinations

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
from combee_dspy.texts import NearDuplicates, numbers_in

__all__ = ["Changes"]

# Jaccard similarity of word pairs from which code takes two wordings for one lesson.
_SIMILARITY = 0.8


class Changes:
    """The lessons of a book, changed one edit at a time."""

    def __init__(self, lessons: Sequence[BookLesson]) -> None:
        self._lessons = {lesson.id: lesson for lesson in lessons}
        # The lesson of each wording, and a wording of each text that says something else to code.
        self._home = {wording: lesson.id for lesson in lessons for wording in lesson.wordings}
        self._near: NearDuplicates | None = None
        self._at_place: dict[int, str] = {}

    @property
    def lessons(self) -> tuple[BookLesson, ...]:
        """The lessons as they are now."""
        return tuple(self._lessons.values())

    def add(self, taught: Taught, born: int) -> None:
        """Add a wording and its examples to the lesson that says the same, or as a new lesson.

        Lines of the user's own are one where they are equal, and not where they are nearly so.
        """
        wording, place = lesson_id(taught.text), self._place(taught.text)
        home = self._home.get(wording)
        if home is None and born >= 0:
            home = self._home.get(self._at_place.get(place, ""))
        if born < 0 and home is not None and self._lessons[home].text != taught.text:
            # Two lines that differ in a mark or a capital have the same id.
            wording, home = f"{wording}-{len(self._lessons)}", None
        if home is None:
            self._lessons[wording] = BookLesson(
                wording,
                taught.text,
                _distinct(taught.sources),
                section=taught.section,
                born=born,
                wordings=(wording,),
                worded=born,
                own=born < 0,
            )
            home = wording
        else:
            lesson = self._lessons[home]
            if wording not in lesson.wordings:
                lesson = replace(
                    lesson,
                    texts=(*lesson.texts, taught.text),
                    worded=max(lesson.worded, born),
                    wordings=(*lesson.wordings, wording),
                )
            self._put(
                replace(
                    lesson,
                    sources=_distinct((*lesson.sources, *taught.sources)),
                    against=_without(lesson.against, taught.sources),
                )
            )
        self._home[wording] = home
        self._at_place.setdefault(place, home)

    def _place(self, text: str) -> int:
        """Return the number of a text among those that say different things to code."""
        if self._near is None:
            self._near = NearDuplicates(_SIMILARITY)
            for lesson in self._lessons.values():
                for wording in (lesson.text, *lesson.texts):
                    self._at_place.setdefault(self._near.place(wording), lesson.id)
        return self._near.place(text)

    def make(self, edit: BookEdit) -> str:
        """Make an edit; return why it cannot be made, the empty text where it was."""
        named = _named(edit)
        homes = [self._home.get(lesson, "") for lesson in named]
        if "" in homes:
            return f"the book holds no lesson {named[homes.index('')]!r}"
        ids = list(dict.fromkeys(homes))
        lessons = [self._lessons[home] for home in ids]
        if isinstance(edit, (Unite, Contradict, Narrow)) and len(lessons) < 2:
            return "it relates fewer than two lessons"
        if isinstance(edit, Unite):
            return self._unite(lessons)
        if isinstance(edit, Narrow):
            return self._narrow(*lessons)
        if isinstance(edit, Contradict):
            for lesson in lessons:
                rivals = _distinct((*lesson.rivals, *_without(ids, [lesson.id])))
                self._put(replace(lesson, rivals=rivals))
            return ""
        if isinstance(edit, Credit):
            return self._credit(lessons[0], edit)
        return self._decide(lessons[0], edit)

    def _unite(self, members: Sequence[BookLesson]) -> str:
        """Make one of several lessons: the oldest id, the first wording, the evidence of all.

        A line of the user's own stays as it is, and the others join it.
        """
        own = [lesson for lesson in members if lesson.own]
        removed = [lesson for lesson in members if lesson.state == "removed_by_user"]
        if len(own) > 1 or (own and removed):
            return f"{own[0].text[:60]!r} is the user's own"
        first = [*own, *members][0]
        texts = [text for lesson in members for text in (lesson.text, *lesson.texts)]
        for text, other in combinations(texts, 2):
            numbers, rest = numbers_in(text), numbers_in(other)
            # A number decides what a lesson says, as in "two decimals" or "code 7".
            if not (numbers <= rest or rest <= numbers):
                return f"numbers differ in {text[:60]!r} and {other[:60]!r}"
        ids = [lesson.id for lesson in members]
        if any(rival in ids for lesson in members for rival in lesson.rivals):
            return f"{first.text[:60]!r} contradicts one of the others"
        home = next(lesson for lesson in self._lessons if lesson in ids)
        decided = [lesson for lesson in members if lesson.decided]
        settled = [*own, *removed, *decided, self._lessons[home]][0]
        # What was decided of another does not settle the user's own.
        decisions = [
            lesson.decision
            for lesson in members
            if lesson.decision and lesson.state == settled.state and not own
        ]
        sources = _distinct(source for lesson in members for source in lesson.sources)
        # An exception to what is now its own exception would be a circle, which nobody could serve.
        rules = [
            lesson.rule for lesson in members if lesson.rule and not self._leads(lesson.rule, ids)
        ]
        wordings = dict.fromkeys(
            wording for lesson in (self._lessons[home], *members) for wording in lesson.wordings
        )
        self._put(
            replace(
                settled,
                id=home,
                decision=Decision(
                    sum(each.rows for each in decisions), sum(each.cited for each in decisions)
                )
                if decisions
                else None,
                text=first.text,
                sources=sources,
                against=_without(
                    _distinct(harmed for lesson in members for harmed in lesson.against), sources
                ),
                helped=sum(lesson.helped for lesson in members),
                harmed=sum(lesson.harmed for lesson in members),
                section=next((lesson.section for lesson in members if lesson.section), ""),
                born=min(lesson.born for lesson in members),
                rule=rules[0] if rules else "",
                rivals=_without(
                    _distinct(rival for lesson in members for rival in lesson.rivals), rules[:1]
                ),
                wordings=tuple(wordings),
                texts=tuple(text for text in dict.fromkeys(texts) if text != first.text),
                worded=max(lesson.worded for lesson in members),
            )
        )
        self._home.update(dict.fromkeys(wordings, home))
        gone = set(ids) - {home}
        for old in gone:
            del self._lessons[old]
        for lesson in self.lessons:
            if gone & {lesson.rule, *lesson.rivals}:
                rivals = _distinct(self._home.get(rival, rival) for rival in lesson.rivals)
                rule = self._home.get(lesson.rule, lesson.rule)
                self._put(replace(lesson, rivals=rivals, rule=rule))
        return ""

    def _narrow(self, exception: BookLesson, rule: BookLesson) -> str:
        if exception.own:
            return f"{exception.text[:60]!r} is the user's own, and stays where it is"
        if self._leads(rule.id, [exception.id]):
            return f"{rule.text[:60]!r} is an exception to {exception.text[:60]!r} already"
        self._put(replace(exception, rule=rule.id, rivals=_without(exception.rivals, [rule.id])))
        self._put(replace(rule, rivals=_without(rule.rivals, [exception.id])))
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
        helped, harmed = _without(edit.helped, edit.harmed), _without(edit.harmed, edit.helped)
        sources = _distinct((*_without(lesson.sources, harmed), *helped))
        against = _distinct((*_without(lesson.against, helped), *harmed))
        self._put(replace(lesson, sources=sources, against=against))
        return ""

    def _decide(self, lesson: BookLesson, edit: Retire | Restore | Remove) -> str:
        if lesson.state == "removed_by_user":
            return f"a user removed {lesson.text[:60]!r}"
        if isinstance(edit, Remove):
            self._put(
                replace(
                    lesson,
                    state="removed_by_user",
                    reason="a user removed it",
                    decision=None,
                    own=False,
                )
            )
            return ""
        if lesson.own:
            return f"{lesson.text[:60]!r} is the user's own"
        rivals = [self._lessons[rival] for rival in lesson.rivals if rival in self._lessons]
        if isinstance(edit, Restore) and any(rival.own for rival in rivals):
            return f"{lesson.text[:60]!r} contradicts a line of the user's own"
        state: State = "served" if isinstance(edit, Restore) else "retired"
        decision = Decision(max(edit.rows, 1), len(opposing(lesson, state, self._lessons)))
        effect = edit.effect or lesson.effect
        self._put(
            replace(lesson, state=state, reason=edit.reason, decision=decision, effect=effect)
        )
        return ""

    def _put(self, lesson: BookLesson) -> None:
        self._lessons[lesson.id] = lesson


def _named(edit: BookEdit) -> tuple[str, ...]:
    if isinstance(edit, (Unite, Contradict)):
        return edit.lessons
    return (edit.exception, edit.rule) if isinstance(edit, Narrow) else (edit.lesson,)


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(texts)))


def _without(texts: Iterable[str], left_out: Iterable[str]) -> tuple[str, ...]:
    gone = set(left_out)
    return tuple(text for text in texts if text not in gone)
