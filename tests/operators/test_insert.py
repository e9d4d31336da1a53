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


WORDS = ("marble", "copper", "velvet", "timber", "saffron", "granite", "cobalt", "linen", "amber", "walnut")


def worded(fact, number):
    """One of several wordings of a fact, too unlike for code to see that they say the same."""
    frames = ("Deliveries of {} go to gate {}.", "Whoever brings {} is sent to gate {}.", "For {}, use only gate {}!",
              "At gate {1} we take {0} and nothing else.", "Mind that {} must enter by gate {}.")  # fmt: skip
    word = WORDS[fact]
    return frames[number % len(frames)].format(f"{word} and {word}-like goods ({word} stones, {word} dust)", fact)


def reads(inputs):
    """A call that merges what is about one fact, and takes in twelve lessons at most."""
    found = {word: next(one for one in inputs["lessons"][:12] if word in one) for word in WORDS
             if any(word in one for one in inputs["lessons"][:12])}  # fmt: skip
    return {"shorter_lessons": list(found.values())}


@pytest.mark.parametrize("present", [0, 20])
def test_what_says_the_same_in_other_words_is_joined_by_topic(bench, present):
    wordings = [worded(fact, number) for number in range(5) for fact in range(len(WORDS))]
    parent = write_section("Answer.", wordings[:present])
    edit = bench.apply(Insert(max_tokens=500), reads, instruction=parent, lessons=wordings[present:])
    own, kept = read_section(edit.instruction)
    assert own == "Answer." and estimate_tokens(write_section("", kept)) <= 500
    assert all(any(word in lesson for lesson in kept) for word in WORDS)
    assert not bench.warnings
    # Never one call over everything: groups of eight, in flight at once.
    assert {len(values["lessons"]) <= 8 for _, values, _, _ in bench.asked} == {True}
    assert [place[:3] for _, _, place, _ in bench.asked[:7]] == [("route", "condense", 0)] * 7
    ((kind, said),) = bench.said
    assert kind == "shortened" and (said["lessons"], said["left"]) == (50, len(kept))
    # What was told in other words counts among what may be lost.
    assert 50 - len(kept) >= said["lost"] > 0


def test_what_more_reflections_stand_behind_gets_more_of_the_budget(bench):
    found = tuple(
        Lesson(f"{number}: {f'{WORDS[number % 2]} ' * 20}.", tuple(range(5 if number % 2 else 1)))
        for number in range(32)
    )
    bench.apply(Insert(max_tokens=600), LATE, lessons=Lessons("route", lessons=found))
    second = [values for _, values, place, _ in bench.asked if place[2] == 2]
    words = {name: sum(one["most_words"] for one in second if name in "".join(one["lessons"])) for name in WORDS[:2]}
    assert words["copper"] > 2 * words["marble"] > 0


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (LATE, "TimeoutError: x"),
        ({"shorter_lessons": []}, ""),
        ({"shorter_lessons": None}, "cannot be read"),
        ({"shorter_lessons": "Use percent."}, "cannot be read"),
        ({"shorter_lessons": [f"{LONG} in {year}" for year in range(2000, 2020)]}, ""),
    ],
)
def test_what_does_not_fit_is_left_out_whole_and_said(bench, answer, reason):
    edit = bench.apply(Insert(max_tokens=60), answer, lessons=TEN)
    own, kept = read_section(edit.instruction)
    assert own == "Answer."
    assert kept and set(kept) < {*TEN}
    assert estimate_tokens(write_section("", kept)) <= 60
    (said,) = bench.warnings
    assert said.startswith("route: 10 lessons take") and reason in said and f"{10 - len(kept)} are left out" in said
    assert [one["lost"] for _, one in bench.said] == [10 - len(kept)]


def test_what_an_answer_tells_nothing_of_is_put_back(bench):
    rare = "Jellyfish glow when they are touched at night."
    edit = bench.apply(Insert(max_tokens=230), {"shorter_lessons": [LONG]}, lessons=[*TEN, rare])
    assert rare in edit.instruction and LONG in edit.instruction


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
    assert 0 < len(old) < 6
    assert len(kept) > len(old)


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
    kept = read_section(edit.instruction)[1]
    assert kept[0] == "Never name a customer. Ever." and "Use percent." in kept
    assert estimate_tokens(edit.instruction) <= 60
    assert "Never name" not in "".join(bench.asked[0][1]["lessons"])
    assert sum(values["most_words"] for _, values, place, _ in bench.asked if place[2] == 2) < 40
    tight = bench.apply(Insert(), lessons=["x"], instruction=seed, guards=Guards(max_tokens=estimate_tokens(seed)))
    assert isinstance(tight, Refusal) and "no room" in tight.reason


@pytest.mark.parametrize("params", [{"max_tokens": 0}, {"similarity": 0.0}, {"similarity": 1.5}])
def test_parameters_out_of_range_are_refused(params):
    with pytest.raises(ArgumentValueError):
        Insert(**params)
