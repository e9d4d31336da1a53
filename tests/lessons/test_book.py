"""The book: lessons enter once, edits relate them, and nothing but a user's removal is final."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.edits import (
    BookEdit,
    Contradict,
    Credit,
    LessonEffect,
    Narrow,
    Remove,
    Restore,
    Retire,
    Unite,
)
from combee_dspy.lessons import Book, BookLesson, Decision, Taught, lesson_id
from combee_dspy.weighers import Posterior

WORDS = ("marble", "copper", "velvet", "timber", "saffron", "granite")
TEXTS = [f"Deliveries of {word} go through the {word} door." for word in WORDS]
IDS = [lesson_id(text) for text in TEXTS]
UNKNOWN = lesson_id("no such lesson")


def book_of(*texts: str, sources: int = 1) -> Book:
    return Book().add(
        [
            Taught(text, tuple(f"row {place}.{number}" for number in range(sources)))
            for place, text in enumerate(texts)
        ],
        0,
    )


def related(texts: list[str], *edits: BookEdit) -> Book:
    """Return a book of these texts after edits, all of which are made."""
    edited = book_of(*texts).edit(edits)
    assert not edited.refused
    return edited.book


def refusal(book: Book, *edits: BookEdit) -> str:
    """Return why the only edit that is refused was."""
    (reason,) = book.edit(edits).refused
    return reason


def held(book: Book, lesson: str) -> BookLesson:
    found = book.find(lesson)
    assert found is not None
    return found


rows = st.lists(st.sampled_from(["row 0.0", "row 1.0", "row x"]), max_size=3).map(tuple)
lesson = st.sampled_from([*IDS, UNKNOWN])
groups = st.lists(lesson, max_size=5).map(tuple)
any_edit = st.one_of(
    groups.map(Unite),
    groups.map(Contradict),
    st.builds(Narrow, lesson, lesson),
    st.builds(Retire, lesson, st.just("a test")),
    st.builds(Restore, lesson, st.just("a test")),
    st.builds(Remove, lesson),
    st.builds(Credit, lesson, rows, rows),
)
few = st.sampled_from(IDS[:4])
pair = st.tuples(few, few)
chained = st.one_of(pair.map(Unite), pair.map(Contradict), st.builds(Narrow, few, few))
edits: st.SearchStrategy[list[BookEdit]] = st.lists(any_edit, max_size=12) | st.lists(
    chained, min_size=3, max_size=8
)


@given(edits)
def test_whatever_is_edited_nothing_is_lost_and_relations_hold(changes: list[BookEdit]) -> None:
    before = book_of(*TEXTS)
    edited = before.edit(changes)
    assert len(edited.edits) + len(edited.refused) == len(changes)
    assert before.edit(edited.edits).book == edited.book, "a refused edit changes nothing"
    lessons = {lesson.id: lesson for lesson in edited.book.lessons}
    wordings = [wording for lesson in lessons.values() for wording in lesson.wordings]
    assert sorted(wordings) == sorted(IDS)
    examples = {row for lesson in lessons.values() for row in (*lesson.sources, *lesson.against)}
    assert examples >= {source for lesson in before.lessons for source in lesson.sources}
    for name, lesson in lessons.items():
        assert set(lesson.rivals) <= lessons.keys() - {name}
        assert all(name in lessons[rival].rivals for rival in lesson.rivals)
        assert lesson.rule == "" or (lesson.rule in lessons and lesson.rule != name)


@given(edits)
def test_every_served_lesson_stands_once_and_behind_its_rule(changes: list[BookEdit]) -> None:
    book = book_of(*TEXTS).edit(changes).book
    served = [lesson.id for lesson in book.served]
    assert sorted(served) == sorted(
        lesson.id for lesson in book.lessons if lesson.state == "served"
    )
    for lesson in book.served:
        if lesson.rule in served:
            assert served.index(lesson.rule) < served.index(lesson.id)


@given(edits, edits)
def test_what_a_user_removed_never_returns(before: list[BookEdit], after: list[BookEdit]) -> None:
    book = book_of(*TEXTS).edit([*before, Remove(IDS[0]), *after]).book
    assert held(book, IDS[0]).state == "removed_by_user"
    again = book.add([Taught(TEXTS[0].upper(), ("another row",))], 9)
    assert held(again, IDS[0]).state == "removed_by_user"


@given(edits, edits)
def test_an_example_stands_once_and_on_one_side(
    before: list[BookEdit], after: list[BookEdit]
) -> None:
    book = book_of(*TEXTS).edit(before).book.add([Taught(TEXTS[1], ("row x", "row 9"))], 1)
    for lesson in book.edit(after).book.lessons:
        examples = [*lesson.sources, *lesson.against]
        assert len(examples) == len(set(examples))


@given(few, rows, rows)
def test_the_last_judgement_of_an_example_counts_and_judging_again_changes_nothing(
    judged: str, helped: tuple[str, ...], harmed: tuple[str, ...]
) -> None:
    edit = Credit(judged, helped, harmed)
    book = related(TEXTS, Credit(judged, harmed, helped), edit)
    assert book.edit([edit]).book == book
    assert set(helped) - set(harmed) <= set(held(book, judged).sources)
    assert set(harmed) - set(helped) <= set(held(book, judged).against)


def test_a_wording_that_is_there_brings_its_examples_alone() -> None:
    again = [Taught("give a unit", ("row 7",)), Taught("Round late.", ("row 8",))]
    book = book_of("Give a unit.").add(again, 3)
    assert [(lesson.text, lesson.sources, lesson.born) for lesson in book.lessons] == [
        ("Give a unit.", ("row 0.0", "row 7"), 0),
        ("Round late.", ("row 8",), 3),
    ]


def test_a_lesson_that_is_taught_again_by_an_example_that_it_harmed_has_it_for_itself() -> None:
    book = related(TEXTS[:1], Credit(IDS[0], (), ("row 0.0", "row 7")))
    again = book.add([Taught(TEXTS[0], ("row 7",))], 1).lessons[0]
    assert (again.sources, again.against) == (("row 7",), ("row 0.0",))


def test_united_lessons_have_the_first_wording_and_the_oldest_id() -> None:
    book = related(TEXTS[:3], Unite((IDS[2], IDS[0])))
    assert [(lesson.id, lesson.text) for lesson in book.lessons] == [
        (IDS[0], TEXTS[2]),
        (IDS[1], TEXTS[1]),
    ]
    assert book.find(IDS[2]) == book.find(IDS[0])


def test_united_lessons_have_the_counts_of_all() -> None:
    lessons = [
        replace(lesson, helped=2, harmed=1, section=section)
        for lesson, section in zip(book_of(*TEXTS[:2]).lessons, ("", "RULES"), strict=True)
    ]
    (united,) = Book(tuple(lessons)).edit([Unite((IDS[0], IDS[1]))]).book.lessons
    assert (united.helpful, united.harmful, united.section) == (6, 2, "RULES")


def test_united_lessons_have_what_was_decided_about_each() -> None:
    retired = [Retire(IDS[0], "a test", 2), Retire(IDS[1], "a test", 1)]
    book = book_of(*TEXTS[:3], sources=3).edit([*retired, Unite(tuple(IDS[:2]))]).book
    assert [(lesson.state, lesson.decision) for lesson in book.lessons] == [
        ("retired", Decision(3, 6)),
        ("served", None),
    ]
    # The examples of the third were never weighed against a test.
    (lesson,) = book.edit([Unite((IDS[0], IDS[2]))]).book.lessons
    assert (lesson.support, lesson.decision, lesson.state) == (9, Decision(3, 6), "retired")


@pytest.mark.parametrize("united", ["exceptions", "rules"])
def test_what_is_united_does_not_contradict_its_rule_or_its_exception(united: str) -> None:
    texts = [
        "Rule for copper",
        "Copper has a rule",
        "Exception of copper",
        "Copper is an exception",
    ]
    rule, other_rule, exception, other = map(lesson_id, texts)
    opposed, pair = (other, rule), (exception, other)
    if united == "rules":
        opposed, pair = (exception, other_rule), (rule, other_rule)
    book = related(texts, Narrow(exception, rule), Contradict(opposed), Unite(pair))
    assert held(book, exception).rule == rule
    assert not any(lesson.rivals for lesson in book.lessons)


def test_a_lesson_that_would_be_an_exception_to_its_own_exception_is_none() -> None:
    circle = [Narrow(IDS[0], IDS[1]), Narrow(IDS[2], IDS[0]), Unite((IDS[1], IDS[2]))]
    book = related(TEXTS[:4], *circle, Narrow(IDS[3], IDS[0]))
    rules = {lesson.id: lesson.rule for lesson in book.served}
    assert rules == {IDS[1]: "", IDS[0]: IDS[1], IDS[3]: IDS[0]}


def test_an_exception_is_no_rival_of_its_rule_and_no_rule_of_it() -> None:
    book = related(TEXTS[:2], Contradict(tuple(IDS[:2])), Narrow(IDS[0], IDS[1]))
    assert [lesson.text for lesson in book.served] == [TEXTS[1], TEXTS[0]]
    assert not any(lesson.rivals for lesson in book.lessons)
    assert "already" in refusal(book, Narrow(IDS[1], IDS[0]))


def test_a_lesson_has_the_effect_that_the_last_test_of_it_alone_measured() -> None:
    alone = LessonEffect(-0.5, -0.9, 0.1, 4)
    book = related(TEXTS[:1], Retire(IDS[0], "a test", 2, alone))
    assert held(book, IDS[0]).effect == alone
    assert held(book, IDS[0]).decision == Decision(rows=2, cited=1)
    again = book.edit([Restore(IDS[0], "a group", 1, None)]).book
    assert held(again, IDS[0]).effect == alone


def test_an_edit_of_what_the_book_lacks_is_refused_by_name() -> None:
    reason = refusal(Book(), Retire(UNKNOWN, "a test"))
    assert reason == f"Retire: the book holds no lesson '{UNKNOWN}'"


def test_lessons_that_contradict_each_other_are_not_united() -> None:
    pair = tuple(IDS[:2])
    assert "contradicts" in refusal(book_of(*TEXTS[:2]), Contradict(pair), Unite(pair))


@pytest.mark.parametrize(
    "texts",
    [
        ("Round to 2 decimals.", "Give 4 decimals in any case."),
        ("Give two decimals.", "Round to four decimals."),
        ("Round amounts to decimals", "Round amounts to 2 decimals", "Round amounts to 4 decimals"),
    ],
)
def test_lessons_with_other_numbers_are_not_united(texts: tuple[str, ...]) -> None:
    ids = [lesson_id(text) for text in texts]
    assert "numbers differ" in refusal(book_of(*texts), Unite(tuple(ids)))
    # Nor through one without a number.
    pairs = [Unite((ids[0], other)) for other in ids[1:]]
    assert len(book_of(*texts).edit(pairs).book.lessons) == 2


def test_number_words_are_numbers() -> None:
    line = "Round every amount in the table of results to {} decimals before you add the tax to it."
    assert len(book_of(line.format("two"), line.format("four")).lessons) == 2
    texts = ["Give two decimals.", "Use 2 decimals."]
    assert len(related(texts, Unite(tuple(map(lesson_id, texts)))).lessons) == 1


OWN = "Parcels from abroad go to the door in the east."
NEW = "The eastern door takes what comes from abroad."
OWN_ID, NEW_ID = lesson_id(OWN), lesson_id(NEW)


def owned(*own: str, taught: tuple[str, ...] = ()) -> Book:
    """Return a book with lines of the user's own, and lessons that an update taught."""
    return Book().add(map(Taught, own), -1).add([Taught(text, ("row",)) for text in taught], 0)


@given(
    st.lists(
        st.sampled_from(
            [
                Unite((NEW_ID, OWN_ID)),
                Retire(OWN_ID, "it is empty", 9),
                Retire(NEW_ID, "a test"),
                Contradict((OWN_ID, NEW_ID)),
                Credit(OWN_ID, (), tuple("abcdefgh")),
            ]
        )
    )
)
def test_a_users_line_stays_as_it_is_whatever_readers_and_votes_say(
    changes: list[BookEdit],
) -> None:
    book = Posterior().applied(owned(OWN, taught=(NEW,)).edit(changes).book)
    assert (held(book, OWN_ID).text, held(book, OWN_ID).state) == (OWN, "served")
    removed = Posterior().applied(book.edit([Remove(OWN_ID)]).book)
    assert held(removed, OWN_ID).state == "removed_by_user"


LONG = "Round every amount in the table of results to two decimals before you add the tax to it."


@pytest.mark.parametrize(
    "lines",
    [
        [LONG, LONG.replace("before", "just before")],
        [LONG, LONG + " Please."],
        ['End with ".".', 'End with ",".', "Write Yes.", "Write YES!"],
    ],
)
def test_lines_of_the_users_own_that_are_alike_stay_apart(lines: list[str]) -> None:
    assert [lesson.text for lesson in owned(*lines).served] == lines


@pytest.mark.parametrize(
    ("book", "changes"),
    [
        (owned(OWN, NEW), [Unite((NEW_ID, OWN_ID))]),
        (owned(OWN, taught=(NEW,)), [Remove(NEW_ID), Unite((NEW_ID, OWN_ID))]),
        (owned(OWN, taught=(NEW,)), [Contradict((OWN_ID, NEW_ID)), Restore(NEW_ID, "a test", 9)]),
        (owned(OWN, taught=(NEW,)), [Narrow(OWN_ID, NEW_ID)]),
    ],
    ids=["united", "removed", "contradicted", "moved"],
)
def test_no_edit_moves_a_line_of_the_users_own(book: Book, changes: list[BookEdit]) -> None:
    assert "user's own" in refusal(book, *changes)
    assert book.edit(changes).book.served[0].text == OWN


def test_what_is_like_any_wording_of_a_lesson_joins_it() -> None:
    other = (
        "Whatever is sent from another country has to be handed over at the gate in the east of the"
        " yard."
    )
    book = related([OWN, other], Unite((OWN_ID, lesson_id(other))), Remove(OWN_ID))
    again = book.add([Taught(other + " Now.", ("row",))], 1)
    assert [lesson.state for lesson in again.lessons] == ["removed_by_user"]
    assert len(again.add([Taught(other + " Now please.")], 2).lessons) == 1
