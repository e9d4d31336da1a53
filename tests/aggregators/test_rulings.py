"""Where no reader says how lessons relate, the words of their examples do."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from combee_dspy.aggregators import ReferenceScan
from combee_dspy.aggregators._rulings import Rulings, find_opposed
from combee_dspy.edits import Contradict, Restore, Retire, Unite
from combee_dspy.lessons import Book, Taught, lesson_id
from combee_dspy.records import FailedCall, Reflection
from combee_dspy.weighers import Posterior
from tests.aggregators.doubles import World

ROWS = [
    ("a torn invoice from Oslo", "The queue is billing."),
    ("an invoice from Turin", "The queue is billing."),
    ("a parcel from Oslo", "The queue is freight."),
    ("a parcel from Turin", "The queue is freight."),
    ("a torn parcel from Lima", "The queue is claims."),
    ("a letter from Lima", "The queue is post."),
]
INVOICE, OTHER_WORDS = "Every invoice goes to billing.", "Send every invoice to billing."
RIVAL, LETTER = "An invoice is for post.", "Any letter is for post."
PARCEL, TORN = "Parcels are freight.", "Torn parcels are claims."


def reflections(rows=ROWS):
    return [
        Reflection(
            place,
            {
                "Inputs": {"text": text},
                "Generated Outputs": {"queue": "unknown"},
                "Feedback": feedback,
            },
        )
        for place, (text, feedback) in enumerate(rows)
    ]


def relations(texts, rows=ROWS):
    """Return each relation with the lessons that it is of."""
    relations = Rulings.of(reflections(rows)).relate(texts)
    return {
        name: [[texts[number - 1] for number in group] for group in groups]
        for name, groups in relations.items()
        if groups
    }


def ids(*texts):
    return tuple(map(lesson_id, texts))


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ([INVOICE, OTHER_WORDS], {"same": [[INVOICE, OTHER_WORDS]]}),
        ([INVOICE, RIVAL], {"contradictory": [[INVOICE, RIVAL]]}),
        ([PARCEL, TORN], {"narrower": [[TORN, PARCEL]]}),
        ([INVOICE, PARCEL], {}),
        ([INVOICE, "Read an invoice twice."], {}),
        ([RIVAL, "An invoice is for post, not for billing."], {}),
        ([INVOICE, "Never send an invoice to billing."], {}),
        (["A parcel over 5 kg is freight.", "A parcel under 5 kg is post."], {}),
        (["A parcel of 5 kg is freight.", "A parcel of 9 kg is post."], {}),
    ],
)
def test_lessons_on_one_subject_relate_by_the_answers_that_they_ask_for(texts, expected):
    assert relations(texts) == expected


def test_feedback_that_explains_names_no_answer():
    explained = [(text, f"{answer} Whoever opens it reads the header.") for text, answer in ROWS]
    assert relations([INVOICE, RIVAL], explained)  # what all feedback says tells nothing
    reasons = ["read the stamp", "mind the weight", "ask the clerk", "see page nine", "a", "b"]
    explained = [
        (text, f"{answer} Please {reason} before you decide on it")
        for (text, answer), reason in zip(ROWS, reasons, strict=True)
    ]
    assert not relations([INVOICE, "An invoice has to mind the weight."], explained)


def test_answers_that_do_not_come_again_are_no_choices():
    numbers = ("100", "2", "12.5", "365", "2", "7")
    rows = [(text, f"It is {number}.") for (text, _), number in zip(ROWS, numbers, strict=True)]
    assert not relations(["An invoice is times 100.", "Round an invoice to 2 decimals."], rows)


def test_an_article_is_no_choice():
    letters = "AABBCC"
    rows = [(text, f"It is {letter}.") for (text, _), letter in zip(ROWS, letters, strict=True)]
    assert not relations(["Look for a stamp on the invoice.", "The invoice is B."], rows)
    assert relations(["Any invoice is C.", "The invoice is B."], rows)


def teach(text):
    if "invoice" in text:
        return RIVAL if "Lima" in text else INVOICE
    return PARCEL if "parcel" in text else LETTER


def script(answer):
    def say(name, inputs):
        if name == "RelateLessons":
            return answer
        rows = [record["Inputs"]["text"] for record in inputs["examples_with_feedback"]]
        return {"lessons": list(map(teach, rows))}

    return say


NOTHING = {"same": [], "contradictory": [], "narrower": [], "empty": []}
ABSURD = {**NOTHING, "same": [[1, 2, 3, 99, 100, 101, 102]]}


@pytest.mark.parametrize("answer", [FailedCall("AdapterParseError: no fields"), NOTHING, ABSURD])
def test_a_comparison_without_a_usable_answer_leaves_its_lessons_to_their_examples(answer):
    rows = [
        *ROWS[:4],
        ("an invoice from Lima", "The queue is post."),
        ("a letter from Lima", "The queue is post."),
        ("a letter from Turin", "The queue is post."),
    ]
    world = World(script(answer))
    result = world.run(ReferenceScan(), reflections(rows))
    assert result.edits == (Contradict(ids(INVOICE, RIVAL)),)
    assert len(result.lessons) == 4
    assert any("from the words of the examples" in text for text in world.warnings)


@pytest.mark.parametrize("fails", [False, True])
def test_an_empty_answer_of_a_reader_that_relates_others_stands(fails):
    def answer(name, inputs):
        texts = [text.partition(" ")[2] for text in inputs["lessons"]]
        if INVOICE in texts:
            return FailedCall("Timeout: 60 s") if fails else NOTHING
        return {**NOTHING, "same": [[1, 2]]}

    taught = [INVOICE, RIVAL, "Letters are post.", "Letters are for post."]
    book = Book().add((Taught(text, (text,)) for text in taught), born=0)
    world = World(answer, book=book)
    context = replace(world.context, reflections=tuple(reflections()))
    scan = ReferenceScan(compared=2)
    edits = asyncio.run(scan.relate(taught, context))
    assert len(world.calls) > 1
    assert Unite(ids(*taught[2:])) in edits
    assert (Contradict(ids(INVOICE, RIVAL)) in edits) == fails


def test_a_host_that_relates_later_shows_the_examples():
    book = Book().add([Taught(INVOICE, ("a",)), Taught(RIVAL, ("b",))], born=0)
    world = World(script(NOTHING), book=book)
    scan = ReferenceScan()
    context = replace(world.context, reflections=tuple(reflections()))
    assert asyncio.run(scan.relate([RIVAL], world.context)) == ()
    assert asyncio.run(scan.relate([RIVAL], context)) == (Contradict(ids(INVOICE, RIVAL)),)


PLACES = ("Oslo", "Turin", "Lima")
MANY = [
    (f"a {thing} from {place}, desk {number}", f"The queue is {queue}.")
    for number in range(3)
    for place in PLACES
    for thing, queue in (("invoice", "billing"), ("parcel", "freight"), ("letter", "post"))
]
OF_A_PLACE = "What comes from Oslo is freight."
RIGHT = ("Every invoice goes to billing.", "Parcels are freight.", "Any letter is for post.")


def opposed(rows, lessons, perfect=(), edits=()):
    """Return the lessons that the words of rows speak against."""
    read = [
        replace(item, example_id=f"row {item.index}", perfect=item.index in perfect)
        for item in reflections(rows)
    ]
    book = Book().add([Taught(text, sources) for text, sources in lessons.items()], 0)
    book = book.edit(edits).book
    texts = {lesson.id: lesson.text for lesson in book.lessons}
    return [texts[credit.lesson] for credit in find_opposed(book.lessons, read)]


def taught_by(text):
    return tuple(f"row {place}" for place, (_, feedback) in enumerate(MANY) if text in feedback)


TAUGHT = dict(zip(RIGHT, map(taught_by, ("billing", "freight", "post")), strict=True))


def test_a_line_about_a_word_that_decides_nothing_is_opposed_by_the_examples_that_hold_it():
    assert opposed(MANY, {**TAUGHT, OF_A_PLACE: ("row 1",)}) == [OF_A_PLACE]


def test_an_exception_and_the_examples_of_exceptions_speak_against_nothing():
    rows = [*MANY, *(("a torn parcel from Oslo", "The queue is claims."),) * 6]
    torn = tuple(f"row {place}" for place in range(len(MANY), len(rows)))
    assert not opposed(rows, {**TAUGHT, RIGHT[1]: ("row 1",), TORN: torn})
    assert not opposed(MANY, {**TAUGHT, "A parcel from Oslo is for post.": ("row 1",)})


def test_an_exception_that_a_test_served_is_one_still():
    rows = [*MANY, *(("a torn parcel from Oslo", "The queue is claims."),) * 6]
    torn = tuple(f"row {place}" for place in range(len(MANY), len(rows)))
    lessons = {**TAUGHT, RIGHT[1]: ("row 1",), TORN: torn}
    served, retired = Restore(lesson_id(TORN), "", 3), Retire(lesson_id(TORN), "", 3)
    assert not opposed(rows, lessons, edits=[served])
    assert opposed(rows, lessons, edits=[retired]) == [RIGHT[1]]


def test_a_test_outweighs_the_words_of_examples():
    lessons = {**TAUGHT, OF_A_PLACE: ("row 1",)}
    assert not opposed(MANY, lessons, edits=[Restore(lesson_id(OF_A_PLACE), "", 3)])


@pytest.mark.parametrize("queue", ["billing", "the billing team or post"])
def test_an_answer_by_a_part_of_its_name_or_with_others_is_not_opposed(queue):
    names = {"billing": "billing team", "freight": "freight hall", "post": "post"}
    rows = [(text, f"The queue is {names[answer[13:-1]]}.") for text, answer in MANY]
    lessons = {text: sources for text, sources in TAUGHT.items() if "invoice" not in text}
    assert not opposed(rows, {**lessons, f"Every invoice goes to {queue}.": ("row 0",)})
    assert opposed(rows, {**lessons, "Every invoice goes to the freight hall.": ("row 0",)})


def test_feedback_that_names_one_of_several_demands_speaks_against_no_lesson():
    demands = {"invoice": "billing", "Oslo": "freight", "red": "post"}
    rows = [("a red invoice from Oslo", f"Add {wanted}.") for wanted in demands.values()] * 6
    plain = [("a letter from Lima", "Add claims.")] * 18
    lessons = {
        f"For {cue} add {wanted}.": tuple(f"row {place}" for place in range(number, 18, 3))
        for number, (cue, wanted) in enumerate(demands.items())
    }
    assert not opposed([*rows, *plain], {**lessons, "For red add billing.": ("row 0",)})


def test_a_line_that_the_examples_oppose_leaves_the_prompt():
    book = Book().add([Taught(*lesson) for lesson in {**TAUGHT, OF_A_PLACE: ("row 1",)}.items()], 0)
    read = [replace(item, example_id=f"row {item.index}") for item in reflections(MANY)]
    world = World(script(NOTHING), book=book, related_later=True)
    context = replace(world.context, reflections=tuple(read))
    edits = asyncio.run(ReferenceScan().relate([OF_A_PLACE], context))
    after = Posterior().applied(book.edit(edits).book)
    assert {lesson.text for lesson in after.lessons if lesson.state == "retired"} == {OF_A_PLACE}
