import pytest

from combee_dspy.edits import Contradict, Narrow, Retire
from combee_dspy.guards import Guards
from combee_dspy.lessons import Book, Taught, lesson_id, read_section, write_section
from combee_dspy.operators import Insert
from combee_dspy.records import Edit, Lesson, Lessons, Refusal
from combee_dspy.reflections import estimate_tokens
from combee_dspy.weighers import Posterior

LONG = (
    "When the question asks for a margin divide the income by the revenue and give the result as a"
    " percentage"
)


def book_of(*texts, edits=(), supported=()):
    """A book of lessons; those that are supported have as many examples as their place, from 2."""
    taught = [
        Taught(text, tuple(f"{text} {n}" for n in range(1 + (text in supported)))) for text in texts
    ]
    return Posterior().applied(Book().add(taught, 0).edit(edits).book)


def test_lessons_follow_the_instruction_as_bullets(bench):
    edit = bench.apply(Insert(), lessons=["Give a unit.", "Round\n  late."])
    assert edit == Edit(instruction="Answer.\n\nLessons learned:\n- Give a unit.\n- Round late.")
    assert bench.calls == []


def test_present_lessons_keep_their_place_and_near_duplicates_go(bench):
    before = f"Answer.\n\nLessons learned:\n- Give a unit.\n- {LONG}."
    lessons = ["Round late.", LONG + ", please", "give a unit", "Round late!"]
    assert bench.apply(Insert(), instruction=before, lessons=lessons) == Edit(
        instruction=before + "\n- Round late."
    )


def test_nothing_new_is_refused(bench):
    before = "Answer.\n\nLessons learned:\n- Give a unit."
    assert bench.apply(Insert(), instruction=before, lessons=["give a unit"]) == Refusal(
        "the edit changes nothing"
    )
    assert bench.apply(Insert()) == Refusal("there are no lessons to insert")


@pytest.mark.parametrize(
    ("rewrite", "instruction"),
    [(" Better.\nMuch.\n", "Better.\nMuch."), ("Answer.", None), (" ", None), ("", None)],
)
def test_a_rewrite_is_the_edit_where_it_changes_something(bench, rewrite, instruction):
    result = bench.apply(Insert(), lessons=Lessons("route", rewrite=rewrite))
    assert result == Edit(instruction=instruction) if instruction else isinstance(result, Refusal)


EAST, WEST, HEAVY = "Parcels go east.", "Parcels go west.", "Heavy parcels go down."


def test_the_section_holds_what_the_book_serves_in_its_order(bench):
    edits = [
        Contradict((lesson_id(EAST), lesson_id(WEST))),
        Narrow(lesson_id(HEAVY), lesson_id(WEST)),
    ]
    book = book_of(HEAVY, EAST, WEST, "Give a unit.", edits=edits, supported=(WEST,))
    edit = bench.apply(Insert(), book=book)
    assert read_section(edit.instruction)[1] == [WEST, HEAVY, "Give a unit."]


def test_a_line_that_the_book_no_longer_serves_leaves_and_one_that_it_does_not_hold_stays(bench):
    before = write_section("Answer.", ["Somebody else wrote this.", EAST, WEST])
    book = book_of(EAST, WEST, edits=[Retire(lesson_id(EAST), "a test")])
    edit = bench.apply(Insert(), instruction=before, book=book)
    assert read_section(edit.instruction) == ("Answer.", ["Somebody else wrote this.", WEST])


def test_where_the_budget_is_short_lessons_that_more_examples_teach_stay(bench):
    result = tuple(
        Lesson(f"Lesson {number}: {LONG}.", tuple(range(number % 4))) for number in range(12)
    )
    edit = bench.apply(Insert(max_tokens=110), lessons=Lessons("route", lessons=result))
    section = read_section(edit.instruction)[1]
    assert section == [result[number].text for number in (3, 7, 11)]
    assert estimate_tokens(write_section("", section)) <= 110
    (warning,) = bench.warnings
    assert warning.startswith("route: 9 of 12 lessons are left out to keep 110 tokens: 'Lesson 0: ")
    assert warning.endswith("; and 6 more")


def test_where_the_budget_is_short_lines_of_the_users_own_stay(bench):
    own, taught = (
        [f"Line {name}: {LONG}." for name in "ab"],
        Taught(f"Lesson: {LONG}.", tuple("abcdef")),
    )
    book = Book().add([taught], 0).add(map(Taught, own), -1)
    assert read_section(bench.apply(Insert(max_tokens=70), book=book).instruction)[1] == own


def test_where_not_one_lesson_fits_the_edit_is_refused(bench):
    result = bench.apply(Insert(max_tokens=6), lessons=[LONG, LONG + " in 2020"])
    assert isinstance(result, Refusal) and "6 tokens" in result.reason


def test_the_guards_room_counts_and_protected_lessons_stay(bench):
    seed = "Route {ticket} in <reply>.\nNever name a customer."
    parent = write_section(seed, ["Give a unit.", "Never name a customer. Ever."])
    guards = Guards(max_tokens=60, keep=["Never name a customer."])
    values = {"instruction": parent, "guards": guards, "seed_instruction": seed}
    lessons = [f"Lesson {number} is about a thing." for number in range(20)]
    edit = bench.apply(Insert(), lessons=lessons, **values)
    assert "Never name a customer. Ever." in read_section(edit.instruction)[1]
    assert estimate_tokens(edit.instruction) <= 60
    tight = bench.apply(
        Insert(), lessons=["x"], instruction=seed, guards=Guards(max_tokens=estimate_tokens(seed))
    )
    assert isinstance(tight, Refusal) and "there is room for" in tight.reason
