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
from combee_dspy.lessons import Book, Taught, lesson_id
from combee_dspy.lessons._records import Decision
from combee_dspy.weighers import Posterior

WORDS = (
    "marble",
    "copper",
    "velvet",
    "timber",
    "saffron",
    "granite",
    "cobalt",
    "linen",
    "amber",
    "walnut",
)
TEXTS = [f"Deliveries of {word} go through the {word} door." for word in WORDS]
IDS = [lesson_id(text) for text in TEXTS]
UNKNOWN = lesson_id("no such lesson")


def book_of(*texts: str, sources: int = 1) -> Book:
    return Book().add(
        [
            Taught(text, tuple(f"row {place}.{n}" for n in range(sources)))
            for place, text in enumerate(texts)
        ],
        0,
    )


rows = st.lists(st.sampled_from(["row 0.0", "row 1.0", "row x"]), max_size=3).map(tuple)
lesson = st.sampled_from([*IDS, UNKNOWN])
groups = st.lists(lesson, min_size=0, max_size=5).map(tuple)
edits: st.SearchStrategy[list[BookEdit]] = st.lists(
    st.one_of(
        groups.map(Unite),
        groups.map(Contradict),
        st.builds(Narrow, lesson, lesson),
        st.builds(Retire, lesson, st.just("a test")),
        st.builds(Restore, lesson, st.just("a test")),
        st.builds(Remove, lesson),
        st.builds(Credit, lesson, rows, rows),
    ),
    max_size=12,
)


@given(edits)
def test_no_edit_loses_a_wording_or_an_example(changes: list[BookEdit]) -> None:
    before = book_of(*TEXTS)
    after = before.edit(changes).book
    wordings = [wording for one in after.lessons for wording in one.wordings]
    assert sorted(wordings) == sorted(IDS)
    examples = {example for one in after.lessons for example in (*one.sources, *one.against)}
    assert examples >= {source for one in before.lessons for source in one.sources}


@given(edits)
def test_relations_name_lessons_of_the_book_and_rivals_are_mutual(changes: list[BookEdit]) -> None:
    lessons = {one.id: one for one in book_of(*TEXTS).edit(changes).book.lessons}
    for one in lessons.values():
        assert set(one.rivals) <= lessons.keys() - {one.id}
        assert all(one.id in lessons[rival].rivals for rival in one.rivals)
        assert one.rule == "" or (one.rule in lessons and one.rule != one.id)


few = st.sampled_from(IDS[:4])
chained: st.SearchStrategy[list[BookEdit]] = st.lists(
    st.one_of(st.tuples(few, few).map(Unite), st.builds(Narrow, few, few)), min_size=3, max_size=8
)


@given(edits | chained)
def test_every_served_lesson_stands_once_and_behind_its_rule(changes: list[BookEdit]) -> None:
    book = book_of(*TEXTS).edit(changes).book
    served = [one.id for one in book.served]
    assert len(served) == len(set(served))
    assert set(served) == {one.id for one in book.lessons if one.state == "served"}
    for one in book.served:
        if one.rule in served:
            assert served.index(one.rule) < served.index(one.id)


@given(edits, edits)
def test_what_a_user_removed_never_returns(before: list[BookEdit], after: list[BookEdit]) -> None:
    book = book_of(*TEXTS).edit([*before, Remove(IDS[0]), *after]).book
    removed = book.find(IDS[0])
    assert removed is not None and removed.state == "removed_by_user"
    again = book.add([Taught(TEXTS[0].upper(), ("another row",))], 9).find(IDS[0])
    assert again is not None and again.state == "removed_by_user"


@given(edits)
def test_refused_and_accepted_edits_are_all_of_them(changes: list[BookEdit]) -> None:
    edited = book_of(*TEXTS).edit(changes)
    assert len(edited.edits) + len(edited.refused) == len(changes)
    assert book_of(*TEXTS).edit(edited.edits).book == edited.book


def test_a_wording_that_is_there_brings_its_examples_alone() -> None:
    book = book_of("Give a unit.").add(
        [Taught("give a unit", ("row 7",)), Taught("Round late.", ("row 8",))], 3
    )
    assert [(one.text, one.sources, one.born) for one in book.lessons] == [
        ("Give a unit.", ("row 0.0", "row 7"), 0),
        ("Round late.", ("row 8",), 3),
    ]


def test_united_lessons_have_the_first_wording_and_the_oldest_id() -> None:
    book = book_of(*TEXTS[:3]).edit([Unite((IDS[2], IDS[0]))]).book
    assert [(one.id, one.text) for one in book.lessons] == [(IDS[0], TEXTS[2]), (IDS[1], TEXTS[1])]
    assert book.find(IDS[2]) == book.find(IDS[0])


def test_lessons_with_other_numbers_are_not_united() -> None:
    first, second = "Round to 2 decimals.", "Give 4 decimals in any case."
    edited = book_of(first, second).edit([Unite((lesson_id(first), lesson_id(second)))])
    assert not edited.edits and "numbers differ" in edited.refused[0]


def test_lessons_that_contradict_each_other_are_not_united() -> None:
    edited = book_of(*TEXTS[:2]).edit([Contradict(tuple(IDS[:2])), Unite(tuple(IDS[:2]))])
    assert len(edited.book.lessons) == 2 and "contradicts" in edited.refused[0]


def test_an_exception_is_no_rival_of_its_rule_and_no_rule_of_it() -> None:
    book = book_of(*TEXTS[:2]).edit([Contradict(tuple(IDS[:2])), Narrow(IDS[0], IDS[1])]).book
    assert [one.text for one in book.served] == [TEXTS[1], TEXTS[0]]
    assert not any(one.rivals for one in book.lessons)
    assert "already" in book.edit([Narrow(IDS[1], IDS[0])]).refused[0]


def test_a_lesson_has_the_effect_that_the_last_test_of_it_alone_measured() -> None:
    alone, group = LessonEffect(-0.5, -0.9, 0.1, 4), None
    (lesson,) = (
        book_of("Go east.").edit([Retire(lesson_id("Go east."), "a test", 2, alone)]).book.lessons
    )
    assert (lesson.effect, lesson.decision) == (alone, Decision(rows=2, cited=1))
    (again,) = Book((lesson,)).edit([Restore(lesson.id, "a group", 1, group)]).book.lessons
    assert again.effect == alone


def test_united_lessons_have_what_was_decided_about_each() -> None:
    retired = [Retire(IDS[0], "a test", 2), Retire(IDS[1], "a test", 1)]
    book = book_of(*TEXTS[:3], sources=3).edit([*retired, Unite(tuple(IDS[:2]))]).book
    assert [(one.state, one.decision) for one in book.lessons] == [
        ("retired", Decision(3, 6)),
        ("served", None),
    ]
    # The examples of the third were never weighed against a test.
    (lesson,) = book.edit([Unite((IDS[0], IDS[2]))]).book.lessons
    assert (lesson.support, lesson.decision, lesson.state) == (9, Decision(3, 6), "retired")


def test_an_edit_of_what_the_book_lacks_is_refused_by_name() -> None:
    (refused,) = Book().edit([Retire(UNKNOWN, "a test")]).refused
    assert refused == f"Retire: the book holds no lesson '{UNKNOWN}'"


@given(edits, edits)
def test_an_example_stands_once_and_on_one_side(
    before: list[BookEdit], after: list[BookEdit]
) -> None:
    book = (
        book_of(*TEXTS)
        .edit(before)
        .book.add([Taught(TEXTS[1], ("row x", "row 9"))], 1)
        .edit(after)
        .book
    )
    for one in book.lessons:
        examples = [*one.sources, *one.against]
        assert len(examples) == len(set(examples))


@given(lesson, rows, rows)
def test_the_last_judgement_of_an_example_counts_and_judging_again_changes_nothing(
    judged: str, helped: tuple[str, ...], harmed: tuple[str, ...]
) -> None:
    edit = Credit(judged, helped, harmed)
    book = book_of(*TEXTS).edit([Credit(judged, harmed, helped), edit]).book
    assert book.edit([edit]).book == book
    held = book.find(judged)
    if held is not None:
        assert set(helped) - set(harmed) <= set(held.sources)
        assert set(harmed) - set(helped) <= set(held.against)


def test_a_lesson_that_is_taught_again_by_an_example_that_it_harmed_has_it_for_itself() -> None:
    book = book_of(TEXTS[0]).edit([Credit(IDS[0], (), ("row 0.0", "row 7"))]).book
    again = book.add([Taught(TEXTS[0], ("row 7",))], 1).lessons[0]
    assert (again.sources, again.against) == (("row 7",), ("row 0.0",))


def test_what_is_united_has_the_counts_of_all() -> None:
    lessons = [
        replace(one, helped=2, harmed=1, section=section)
        for one, section in zip(book_of(*TEXTS[:2]).lessons, ("", "RULES"), strict=True)
    ]
    (united,) = Book(tuple(lessons)).edit([Unite((IDS[0], IDS[1]))]).book.lessons
    assert (united.helpful, united.harmful, united.section) == (6, 2, "RULES")


def test_a_lesson_that_would_be_an_exception_to_its_own_exception_is_none() -> None:
    circle = [Narrow(IDS[0], IDS[1]), Narrow(IDS[2], IDS[0]), Unite((IDS[1], IDS[2]))]
    edited = book_of(*TEXTS[:4]).edit([*circle, Narrow(IDS[3], IDS[0])])
    assert not edited.refused
    assert {one.id: one.rule for one in edited.book.served} == {
        IDS[1]: "",
        IDS[0]: IDS[1],
        IDS[3]: IDS[0],
    }


OWN, NEW = (
    "Parcels from abroad go to the door in the east.",
    "The eastern door takes what comes from abroad.",
)


def owned(*more: str) -> Book:
    """Return a book with lines of the user's own, and lessons that an update taught."""
    return Book().add([Taught(OWN)], -1).add([Taught(text, ("row",)) for text in more], 0)


@given(
    st.lists(
        st.sampled_from(
            [
                Unite((lesson_id(NEW), lesson_id(OWN))),
                Retire(lesson_id(OWN), "it is empty", 9),
                Retire(lesson_id(NEW), "a test"),
                Contradict((lesson_id(OWN), lesson_id(NEW))),
                Credit(lesson_id(OWN), (), tuple("abcdefgh")),
            ]
        )
    )
)
def test_a_users_line_stays_as_it_is_whatever_readers_and_votes_say(
    changes: list[BookEdit],
) -> None:
    book = Posterior().applied(owned(NEW).edit(changes).book)
    held = book.find(lesson_id(OWN))
    assert held is not None and (held.text, held.state) == (OWN, "served")
    removed = Posterior().applied(book.edit([Remove(held.id)]).book).find(held.id)
    assert removed is not None and removed.state == "removed_by_user"


def test_lines_of_the_users_own_are_never_one() -> None:
    book = Book().add([Taught(OWN), Taught(NEW)], -1)
    assert "user's own" in book.edit([Unite((lesson_id(NEW), lesson_id(OWN)))]).refused[0]


LINE = "Round every amount in the table of results to {} decimals before you add the tax to it."


@pytest.mark.parametrize(
    "texts", [(LINE, LINE.replace("before", "just before")), (LINE, LINE + " Please.")]
)
def test_lines_of_the_users_own_that_are_alike_stay_apart(texts: tuple[str, str]) -> None:
    lines = [text.format("two") for text in texts]
    assert [one.text for one in Book().add(map(Taught, lines), -1).served] == lines


def test_number_words_are_numbers() -> None:
    first, second, digits = (LINE.format(number) for number in ("two", "four", "2"))
    assert len(Book().add([Taught(first), Taught(second)], 0).lessons) == 2
    book = book_of("Give two decimals.", "Round to four decimals.", "Use 2 decimals.")
    two, four, digits = (one.id for one in book.lessons)
    assert "numbers differ" in book.edit([Unite((two, four))]).refused[0]
    assert not book.edit([Unite((two, digits))]).refused


def test_what_is_like_any_wording_of_a_lesson_joins_it() -> None:
    other = (
        "Whatever is sent from another country has to be handed over at the gate in the east of the"
        " yard."
    )
    book = (
        book_of(OWN, other)
        .edit([Unite((lesson_id(OWN), lesson_id(other))), Remove(lesson_id(OWN))])
        .book
    )
    again = book.add([Taught(other + " Now.", ("row",))], 1)
    assert [one.state for one in again.lessons] == ["removed_by_user"]
    assert len(again.add([Taught(other + " Now please.")], 2).lessons) == 1


def test_a_users_line_does_not_go_with_a_lesson_that_the_user_removed() -> None:
    edited = owned(NEW).edit([Remove(lesson_id(NEW)), Unite((lesson_id(NEW), lesson_id(OWN)))])
    assert [one.state for one in edited.book.lessons] == [
        "served",
        "removed_by_user",
    ] and edited.refused


def test_lessons_with_other_numbers_are_not_united_through_one_without() -> None:
    texts = [
        "Round amounts to decimals",
        "Round amounts to 2 decimals",
        "Round amounts to 4 decimals",
    ]
    ids = [lesson_id(text) for text in texts]
    book = Book().add((Taught(text, (text,)) for text in texts), 0)
    assert book.edit([Unite(tuple(ids))]).refused
    chained = book.edit([Unite((ids[0], ids[1])), Unite((ids[0], ids[2]))])
    assert len(chained.refused) == 1
    assert len(chained.book.lessons) == 2


def test_lines_of_the_users_own_that_differ_in_a_mark_stay_two() -> None:
    lines = ['End with ".".', 'End with ",".', "Write Yes.", "Write YES!"]
    book = Book().add(map(Taught, lines), -1)
    assert [lesson.text for lesson in book.served] == lines


def test_nothing_moves_a_line_of_the_users_own_or_serves_what_contradicts_it() -> None:
    book = (
        Book()
        .add([Taught("Round every amount down.")], -1)
        .add([Taught("Round every amount up.", ("a",))], 0)
    )
    own, new = (lesson.id for lesson in book.lessons)
    contradicted = book.edit([Contradict((own, new))]).book
    assert book.edit([Narrow(own, new)]).refused
    assert contradicted.edit([Restore(new, "a test", 9)]).refused
    assert book.served[0].text == "Round every amount down."


def test_a_united_exception_does_not_contradict_its_rule() -> None:
    texts = ["Rule for copper", "Exception of copper", "Copper is an exception"]
    rule, first, second = map(lesson_id, texts)
    book = Book().add((Taught(text, (text,)) for text in texts), 0)
    edits = [Narrow(first, rule), Contradict((second, rule)), Unite((first, second))]
    united = book.edit(edits).book.find(first)
    assert united is not None
    assert (united.rule, united.rivals) == (rule, ())
