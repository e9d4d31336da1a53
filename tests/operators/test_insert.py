import pytest

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.guards import Guards
from combee_dspy.operators import Insert, read_section, write_section
from combee_dspy.records import Edit, FailedCall, Lesson, Lessons, Refusal
from combee_dspy.reflections import estimate_tokens

LONG = "When the question asks for a margin divide the income by the revenue and give the result as a percentage"
TEN = [f"Lesson {number}: {LONG}." for number in range(10)]
LATE = FailedCall("TimeoutError: x")


def test_lessons_follow_the_instruction_as_bullets(bench):
    edit = bench.apply(Insert(), lessons=["Give a unit.", "Round\n  late."])
    assert edit == Edit(instruction="Answer.\n\nLessons learned:\n- Give a unit.\n- Round late.")
    assert bench.asked == []


def test_an_empty_instruction_gets_the_section_alone(bench):
    edit = bench.apply(Insert(), instruction="", lessons=["Give a unit."])
    assert edit == Edit(instruction="Lessons learned:\n- Give a unit.")


def test_present_lessons_keep_their_place_and_near_duplicates_go(bench):
    before = f"Answer.\n\nLessons learned:\n- Give a unit.\n- {LONG}."
    lessons = ["Round late.", LONG + ", please", "give a unit", "Round late!"]
    assert bench.apply(Insert(), instruction=before, lessons=lessons) == Edit(instruction=before + "\n- Round late.")


def test_nothing_new_is_refused(bench):
    before = "Answer.\n\nLessons learned:\n- Give a unit."
    result = bench.apply(Insert(), instruction=before, lessons=["give a unit"])
    assert result == Refusal("every lesson is in the instruction already")
    assert isinstance(bench.apply(Insert()), Refusal)


@pytest.mark.parametrize(
    ("rewrite", "made"), [(" Better.\nMuch.\n", "Better.\nMuch."), ("Answer.", None), (" ", None), ("", None)]
)
def test_a_rewrite_is_the_edit_where_it_changes_something(bench, rewrite, made):
    result = bench.apply(Insert(), lessons=Lessons("route", rewrite=rewrite))
    assert result == Edit(instruction=made) if made else isinstance(result, Refusal)


def test_a_section_over_budget_is_condensed_by_one_call(bench):
    edit = bench.apply(Insert(max_tokens=60), {"shorter_lessons": ["Use percent.", "use PERCENT"]}, lessons=TEN)
    assert edit == Edit(instruction="Answer.\n\nLessons learned:\n- Use percent.")
    ((name, values, place, role),) = bench.asked
    assert (name, place, role) == ("CondenseLessons", ("route", "condense"), "proposer")
    assert values == {"instruction": "Answer.", "lessons": TEN, "most_words": 45}
    assert bench.warnings == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (LATE, "TimeoutError: x"),
        ({"shorter_lessons": []}, "empty"),
        ({"shorter_lessons": None}, "cannot be read"),
        ({"shorter_lessons": "Use percent."}, "cannot be read"),
        ({"shorter_lessons": [LONG, LONG + " in 2020", LONG + " in 2021"]}, "still takes"),
    ],
)
def test_what_does_not_fit_is_left_out_whole_and_said(bench, answer, reason):
    edit = bench.apply(Insert(max_tokens=60), answer, lessons=TEN)
    own, kept = read_section(edit.instruction)
    assert own == "Answer."
    assert kept and set(kept) < {*TEN, LONG, LONG + " in 2020", LONG + " in 2021"}
    assert estimate_tokens(write_section("", kept)) <= 60
    (said,) = bench.warnings
    assert said.startswith("insert into route") and reason in said and "left out" in said


def test_where_not_one_lesson_fits_the_edit_is_refused(bench):
    result = bench.apply(Insert(max_tokens=6), LATE, lessons=[LONG, LONG + " in 2020"])
    assert isinstance(result, Refusal) and "TimeoutError: x" in result.reason


def test_lessons_that_more_reflections_stand_behind_stay(bench):
    found = tuple(Lesson(f"Lesson {number}: {LONG}.", tuple(range(number % 4))) for number in range(12))
    edit = bench.apply(Insert(max_tokens=110), LATE, lessons=Lessons("route", lessons=found))
    assert read_section(edit.instruction)[1] == [found[number].text for number in (3, 7, 11)]


def test_present_lessons_keep_their_share_and_do_not_keep_new_ones_out(bench):
    present = [f"Rule {number}: {LONG}." for number in range(6)]
    lessons = [f"Lesson {number}: {LONG}." for number in range(20, 26)]
    edit = bench.apply(Insert(max_tokens=200), LATE, instruction=write_section("Answer.", present), lessons=lessons)
    kept = read_section(edit.instruction)[1]
    old = [lesson for lesson in kept if lesson in present]
    assert old == present[: len(old)] and 0 < len(old) < 6
    assert len(kept) > len(old)


def test_no_more_lessons_are_shown_than_one_call_takes(bench):
    lessons = [f"Lesson {number}: {LONG} number {number}." for number in range(2_000)]
    assert isinstance(bench.apply(Insert(), {"shorter_lessons": ["Use percent."]}, lessons=lessons), Edit)
    shown = bench.asked[0][1]["lessons"]
    assert estimate_tokens("\n".join(shown)) <= 24_000
    (said,) = bench.warnings
    assert f"{2_000 - len(shown):,} are left out" in said


def test_the_users_own_text_does_not_count(bench):
    edit = bench.apply(Insert(max_tokens=100), instruction="word " * 10_000, lessons=["Give a unit."])
    assert edit == Edit(instruction="word " * 10_000 + "\n\nLessons learned:\n- Give a unit.")


def test_the_guards_room_counts_and_protected_lessons_are_not_condensed(bench):
    seed = "Route {ticket} in <reply>.\nNever name a customer."
    parent = write_section(seed, ["Give a unit.", "Never name a customer. Ever."])
    guards = Guards(max_tokens=60, keep=["Never name a customer."])
    values = {"instruction": parent, "guards": guards, "seed_instruction": seed}
    lessons = [f"Lesson {number} is about a thing." for number in range(20)]
    edit = bench.apply(Insert(), {"shorter_lessons": ["Use percent."]}, lessons=lessons, **values)
    assert edit == Edit(instruction=write_section(seed, ["Never name a customer. Ever.", "Use percent."]))
    assert "Never name" not in "".join(bench.asked[0][1]["lessons"])
    assert bench.asked[0][1]["most_words"] < 40
    tight = bench.apply(Insert(), lessons=["x"], instruction=seed, guards=Guards(max_tokens=estimate_tokens(seed)))
    assert isinstance(tight, Refusal) and "no room" in tight.reason


@pytest.mark.parametrize("params", [{"max_tokens": 0}, {"similarity": 0.0}, {"similarity": 1.5}])
def test_parameters_out_of_range_are_refused(params):
    with pytest.raises(ArgumentValueError):
        Insert(**params)
