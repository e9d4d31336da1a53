"""The reference scan: lessons are related by number, and nothing that no answer names is lost."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.aggregators import ReferenceScan
from combee_dspy.aggregators._comparing import read_relations
from combee_dspy.edits import Contradict, Narrow, Remove, Retire, Unite
from combee_dspy.lessons import Book, Taught, lesson_id
from combee_dspy.records import FailedCall, Reflection
from combee_dspy.reflections import Vocabulary
from tests.aggregators.doubles import World

SAYS = {
    0: "Parcels go to the eastern door.",
    1: "The eastern door takes all parcels.",
    2: "Parcels go to the western door.",
    3: "Fragile parcels go to the cellar door.",
    4: "Letters are sorted by colour.",
}


def script(relations):
    """Readers teach by their examples; the comparer names texts, which become the numbers that it
    saw.
    """

    def answer(name, inputs):
        if name == "AddLessons":
            places = (int(record["Inputs"]["id"]) for record in inputs["examples_with_feedback"])
            return {"lessons": [SAYS[place] for place in places]}
        if isinstance(relations, FailedCall):
            return relations
        number = {
            line.partition(". ")[2]: int(line.partition(". ")[0]) for line in inputs["lessons"]
        }

        def numbered(value):
            if isinstance(value, list):
                return [named for item in value if (named := numbered(item)) not in (None, [])]
            return number.get(value, value if isinstance(value, int) else None)

        empty = {"same": [], "contradictory": [], "narrower": [], "empty": []}
        return {**empty, **{kind: numbered(value) for kind, value in relations.items()}}

    return answer


def gates(n=5, right=()):
    """Return reflections whose feedback says what their lesson says, in other words."""
    return [
        Reflection(
            place,
            {"Inputs": {"id": place}, "Feedback": f"Gate {place}: {SAYS[place].lower()}"},
            perfect=place in right,
        )
        for place in range(n)
    ]


def learned(relations, n=5, book=None):
    world = World(script(relations), book=book or Book())
    return world.run(ReferenceScan(), gates(n)), world


def test_lessons_come_with_the_examples_that_teach_them():
    result, _ = learned({})
    assert {lesson.text: lesson.sources for lesson in result.lessons} == {
        SAYS[n]: (n,) for n in range(5)
    }


def test_a_lesson_that_right_answers_alone_teach_is_refused_and_counted():
    world = World(script({}))
    result = world.run(ReferenceScan(copies=1), gates(5, right=(4,)))
    assert {lesson.text for lesson in result.lessons} == {SAYS[n] for n in range(4)}
    assert world.warnings == [f"right answers alone teach {SAYS[4]!r}"]


def test_what_says_the_same_becomes_one_with_the_clearest_wording_and_all_examples():
    result, _ = learned({"same": [[SAYS[1], SAYS[0]]]})
    assert {lesson.text: lesson.sources for lesson in result.lessons}[SAYS[1]] == (0, 1)
    assert len(result.lessons) == 4 and SAYS[0] not in {lesson.text for lesson in result.lessons}


def test_relations_are_edits_by_id():
    result, _ = learned({"contradictory": [[SAYS[0], SAYS[2]]], "narrower": [[SAYS[3], SAYS[0]]]})
    assert set(result.edits) == {
        Contradict((lesson_id(SAYS[0]), lesson_id(SAYS[2]))),
        Narrow(lesson_id(SAYS[3]), lesson_id(SAYS[0])),
    }
    assert len(result.lessons) == 5


def test_new_lessons_are_united_with_those_of_the_book():
    book = Book().add([Taught(SAYS[1], ("an earlier row",))], 0)
    result, _ = learned({"same": [[SAYS[0], SAYS[1]]]}, n=1, book=book)
    (lesson,) = result.lessons
    after = book.add([Taught(lesson.text, ("a new row",))], 1).edit(result.edits).book
    assert [(one.text, one.sources) for one in after.lessons] == [
        (SAYS[0], ("a new row", "an earlier row"))
    ]


def test_other_words_for_what_a_user_removed_do_not_return():
    book = (
        Book()
        .add([Taught(SAYS[1], ("an earlier row",))], 0)
        .edit([Remove(lesson_id(SAYS[1]))])
        .book
    )
    result, _ = learned({"same": [[SAYS[0], SAYS[1]]]}, n=1, book=book)
    after = book.add([Taught(result.lessons[0].text, ("a new row",))], 1).edit(result.edits).book
    assert [lesson.state for lesson in after.lessons] == ["removed_by_user"]


def test_a_comparison_that_fails_changes_nothing():
    result, _ = learned(FailedCall("TimeoutError: x"))
    assert len(result.lessons) == 5 and not result.edits


def test_a_host_that_relates_later_has_its_whole_book_compared_at_once():
    world = World(script({"same": [[SAYS[1], SAYS[0]]]}), related_later=True)
    aggregator = ReferenceScan()
    result = world.run(aggregator, gates())
    assert len(result.lessons) == 5 and "RelateLessons" not in world.counts
    book = Book().add([Taught(text) for text in SAYS.values()], 0)
    context = replace(world.context, book=book)
    edits = asyncio.run(aggregator.relate([SAYS[1]], context))
    assert edits == (Unite((lesson_id(SAYS[1]), lesson_id(SAYS[0]))),)
    assert world.counts["RelateLessons"] == 1, "one way to deal five lessons is as good as another"


TEXTS = [
    f"Deliveries of {word} go to gate {number}." for number, word in enumerate("abcdefghijklmnop")
]
IDS = list(map(lesson_id, TEXTS))


def related(answer, texts=TEXTS, examples=1, born=0):
    """Return what an answer about a book of its own says, and that book."""
    taught = [
        Taught(text, tuple(f"{place}.{n}" for n in range(examples)))
        for place, text in enumerate(texts)
    ]
    book = Book().add(taught, born)
    return read_relations(answer, book.lessons, Vocabulary.of(texts)), book


EVERYTHING = list(range(1, len(TEXTS) + 1))


@pytest.mark.parametrize(
    "answer",
    [
        {"same": [EVERYTHING]},
        {"contradictory": [EVERYTHING]},
        {"contradictory": [[a, b] for a in EVERYTHING for b in EVERYTHING if a < b]},
        {"same": [[3] * 1000]},
        {"same": [[99, 100], [101, 102], [-1, 0]]},
        {"same": "all of them", "contradictory": None, "narrower": 7, "empty": {"1": 2}},
        {"same": [["1", "2"], [1.0, 2.0], [True, True]]},
        {"narrower": [[1, 2, 3], [4]]},
        {"empty": EVERYTHING},
        {},
    ],
)
def test_an_absurd_answer_leaves_the_book_as_it_was(answer):
    relations, book = related(answer)
    assert book.edit(relations.edits).book == book
    assert relations.void or not any(answer.values()) or not relations.edits


UNLIKE_TEXT = """\
Amounts stand in euros.|Name the capital of a country first.|Quote the title of each source.
Dates have the year in front.|Spell colour as the British do.|Leave out greetings.
Addresses end with the postcode.|Temperatures are in kelvin.|Cite the paragraph of the law.
Abbreviations are spelt out.|Tables get a caption.|Vectors are bold.|Names of ships are italic.
Phone numbers have a prefix.|Refuse medical advice.|Code is indented.|Thank the customer.
Poems rhyme in couplets.|Recipes list ingredients.|Maps need a scale."""
UNLIKE = UNLIKE_TEXT.replace("\n", "|").split("|")
DOORS = [
    f"Deliveries of {name} go through the {name} door."
    for name in ("marble", "copper", "velvet", "timber")
]


@pytest.mark.parametrize(
    ("texts", "groups"),
    [
        (UNLIKE, [[n, n + 1] for n in range(1, 20)]),
        (UNLIKE, [list(range(n, n + 5)) for n in range(1, 17)]),
        (UNLIKE[:6], [[1, 2], [3, 4], [5, 6]]),
        ([*DOORS, *UNLIKE[:2]], [[1, 2, 3, 4, 5, 6]]),
        ([*DOORS, *UNLIKE[:2]], [[1, 2], [2, 3], [3, 4]]),
    ],
)
def test_unlike_lessons_are_not_united_in_whatever_groups_they_are_named(texts, groups):
    relations, book = related({"same": groups}, texts)
    assert book.edit(relations.edits).book == book and relations.void


CODES = [
    *(f"A message about a {name} gets the code {name[:1]}7." for name in ("tent", "lamp", "sofa")),
    "The code for a kettle is K1.",
    "The correct code for a message about a mirror is M2.",
]


@pytest.mark.parametrize("texts", [CODES, CODES[:3], CODES[2:]])
def test_lessons_in_one_form_of_words_are_no_contradiction(texts):
    everything = list(range(1, len(texts) + 1))
    relations, book = related({"contradictory": [everything, [1, 2]], "narrower": [[2, 3]]}, texts)
    assert book.edit(relations.edits).book == book and relations.void


@pytest.mark.parametrize(
    "rival", ["The code for a kettle is K9.", "A message about a kettle gets the correct code K9."]
)
def test_what_says_another_thing_of_one_subject_is_a_contradiction(rival):
    relations, _ = related({"contradictory": [[4, 6]]}, [*CODES, rival])
    assert relations.edits == (Contradict((lesson_id(CODES[3]), lesson_id(rival))),)


NAMED = [
    "The assistant got anvil wrong: it should have said D10.",
    "If the text mentions anvil, the answer is D10.",
    "Use D10 for anything that concerns anvil.",
    "For anvil, the answer that was wanted is D10.",
    "Set the answer to D10 whenever you see anvil.",
    "A case with anvil in it belongs to D10.",
    "anvil needs D10, as the feedback shows.",
    "Use D30 for anything that concerns anvil in Norden.",
    "If the text mentions anvil in Norden, the answer is D30.",
    "Whenever you see fjord, set the answer to D15.",
    "Use D17 for anything that concerns basalt.",
    "For garnet, the answer that was wanted is D16.",
    "A case with ember in it belongs to D14.",
]
NOTES = [
    f"A note about the {subject}. Wrong. Expected {code}."
    for subject, code in (
        ("anvil", "D10"), ("anvil, Norden", "D30"), ("fjord", "D15"),
        ("basalt", "D17"), ("garnet", "D16"), ("ember", "D14"),
    )
]  # fmt: skip


def named(answer, texts=NAMED):
    book = Book().add([Taught(text, (text,)) for text in texts], 0)
    return read_relations({"empty": [], **answer}, book.lessons, Vocabulary.of(texts, NOTES))


def test_many_wordings_of_one_lesson_are_united_however_common_its_subject_is_by_them():
    relations = named({"same": [[1, 2, 3, 4, 5, 6, 7], [8, 9]]})
    assert [len(edit.lessons) for edit in relations.edits] == [7, 2] and not relations.void


def test_an_exception_and_its_rule_meet_by_the_words_of_their_examples():
    relations = named({"narrower": [[8, 1], [8, 10]], "contradictory": [[1, 11]]})
    assert relations.edits == (Narrow(lesson_id(NAMED[7]), lesson_id(NAMED[0])),)
    assert len(relations.void) == 2


def test_what_is_unlike_the_others_of_a_group_is_left_out_alone():
    (edit,) = named({"same": [[1, 2, 3, 10]]}).edits
    assert set(edit.lessons) == {lesson_id(text) for text in NAMED[:3]}
    assert not named({"same": [[1, 2, 10, 11]]}).edits
    assert not named({"same": [[1, 2, 99, 100, 101]]}).edits


@pytest.mark.parametrize(
    ("examples", "named", "retired"),
    [(9, 20, 0), (9, 1, 0), (1, 20, 0), (1, 3, 0), (1, 2, 2), (0, 1, 1), (2, 1, 0)],
)
def test_few_lessons_are_empty_and_none_that_examples_speak_for(examples, named, retired):
    relations, _ = related({"empty": list(range(1, named + 1))}, UNLIKE, examples)
    assert len(relations.edits) == retired
    assert bool(relations.void) == (retired < named)


def test_a_line_of_the_users_own_is_never_empty():
    relations, _ = related({"empty": [1]}, UNLIKE, examples=0, born=-1)
    assert not relations.edits and relations.void


def test_lessons_that_the_book_has_word_for_word_buy_no_comparison():
    book = Book().add(map(Taught, SAYS.values()), 0)
    world = World(script({}), book=book, update=1)
    world.run(ReferenceScan(), gates())
    assert "RelateLessons" not in world.counts
    asyncio.run(ReferenceScan().relate(list(SAYS.values()), world.context))
    assert "RelateLessons" not in world.counts
    later = replace(
        world.context, book=book.add([Taught("Heavy parcels go to the eastern door.")], 1)
    )
    asyncio.run(
        ReferenceScan().relate(["Heavy parcels go to the eastern door.", *SAYS.values()], later)
    )
    assert world.counts["RelateLessons"] == 1


json = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 40) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4),
)


@given(
    st.dictionaries(st.sampled_from(["same", "contradictory", "narrower", "empty", "other"]), json)
)
def test_any_answer_gives_edits_of_lessons_that_were_shown(answer):
    for edit in related(answer)[0].edits:
        match edit:
            case Unite(lessons) | Contradict(lessons):
                named = set(lessons)
            case Narrow(exception, rule):
                named = {exception, rule}
            case Retire(lesson, _):
                named = {lesson}
        assert named <= set(IDS)


def test_an_answer_that_names_more_void_than_valid_parts_is_void():
    relations, _ = related({"same": [[1, 2], [50, 51], [60, 61], "x"]})
    assert not relations.edits and relations.void[0].startswith("all of an answer")


def test_the_words_of_long_examples_are_read_near_their_ends_and_beside_the_loop(monkeypatch):
    read, threads, vocabulary_of = [], [], Vocabulary.of

    def watched(lessons, examples=()):
        read.extend(examples)
        threads.append(threading.get_ident())
        return vocabulary_of(lessons, read)

    monkeypatch.setattr(Vocabulary, "of", watched)
    log = {"Inputs": {"log": "anvil " * 50_000}, "Feedback": "Wrong. Expected D10. " * 5_000}
    book = Book().add([Taught(text, (text,)) for text in NAMED[:2]], 0)
    world = World(lambda *_: {}, book=book)
    context = replace(world.context, reflections=(Reflection(0, log),))
    asyncio.run(ReferenceScan().relate(NAMED[:2], context))
    assert "anvil" in read[0] and "D10" in read[0] and len(read[0]) < 10_000
    assert threads and threading.get_ident() not in threads
