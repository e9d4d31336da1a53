"""The memory artifact: what every call is shown, and what is looked up."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import dspy
import pytest

from combee_dspy.aggregators import Union
from combee_dspy.artifacts import Memory
from combee_dspy.diversity import DSPyEmbedder
from combee_dspy.exceptions import ArgumentTypeError
from combee_dspy.lessons import Book, Taught, lesson_id
from combee_dspy.memory import BM25, Embeddings, read_example, read_memory, shelf_of
from combee_dspy.records import Reflection
from combee_dspy.reflections import estimate_tokens, fit_reflections
from combee_dspy.testing import ScriptedAsk, ScriptedLM, arriving, as_chat, context

COMMON = "Write every answer in capital letters."
RULES = [f"Code for {thing} is {thing[0].upper()}7." for thing in ("apples", "bells", "clocks")]
_THINGS = "tent lamp sofa drill watch guitar mirror puzzle wallet carpet ladder jacket"
THINGS = _THINGS.split()


def example(text, code="", *, perfect=False):
    record = {"Inputs": {"question": text}, "Generated Outputs": {"code": code}}
    return Reflection(0, record, text, perfect=perfect)


ASKED = {
    f"{thing}{number}": example(f"Which code for {thing}?")
    for thing in ("apples", "bells", "clocks")
    for number in range(2)
}


def book(*common):
    rules = [Taught(rule, (f"{rule.split()[2]}0",)) for rule in RULES]
    return Book().add([*rules, Taught(COMMON, common)], born=0)


def arranged(memory, lessons, examples, text="Answer."):
    return memory.arranged(memory.serve(text, lessons), lessons, examples)


@pytest.mark.parametrize(
    ("k", "budget", "taught_by", "always"),
    [
        (1, 400, ("apples0", "bells0", "clocks1"), (COMMON,)),
        (1, 400, ("apples0",), ()),
        (1, 16, ("apples0", "bells0", "clocks1"), ()),
    ],
    ids=["missed", "by one example", "half of the budget is for lookup"],
)
def test_what_lookup_misses_for_most_examples_is_shown_to_every_call(k, budget, taught_by, always):
    memory, lessons = Memory(k=k, budget_tokens=budget), book(*taught_by)
    text = arranged(memory, lessons, ASKED)
    assert read_memory(text, 1).always == always
    assert set(read_memory(text, 1).lessons) == {COMMON, *RULES}
    for examples in ASKED.values():
        ids = memory.shows(text, examples.record["Inputs"])
        assert {lesson_id(line) for line in always} <= set(ids)
    assert memory.arranged(text, lessons, ASKED) == text
    later = book("apples0")
    assert read_memory(arranged(memory, later, ASKED, text), 1).always == ()


def test_the_users_own_are_shown_to_every_call_whatever_lookup_finds():
    own = f"Answer.\n\nLessons learned:\n- {RULES[0]}"
    memory = Memory(k=1)
    lessons = memory.read(own).add([Taught(RULES[1], ("bells0",))], born=0)
    text = arranged(memory, lessons, ASKED, own)
    assert read_memory(text, 1).always == (RULES[0],)
    for other in memory.arrangements(text, lessons):
        assert RULES[0] in other.text.split("Lessons to look up")[0]


def test_each_lesson_of_one_form_takes_a_place_of_its_own():
    text = Memory(k=3).serve("Answer.", Book().add(map(Taught, RULES), born=0))
    assert len(Memory(k=3).shows(text, {"question": "Code for apples, bells, clocks?"})) == 3


def test_validation_may_choose_how_many_are_looked_up_unless_that_is_set():
    lessons = Book().add([Taught(f"Thing {n} weighs {n} kilos.") for n in range(13)], 0)
    text = Memory().serve("Answer.", lessons)
    others = Memory().arrangements(text, lessons)
    assert [(read_memory(other.text, 0).k, other.shows_fewer) for other in others] == [
        (8, False),
        (2, True),
    ]
    assert Memory(k=3).arrangements(text, lessons) == []


def test_a_lesson_is_found_by_the_words_of_the_examples_that_teach_it():
    rules = [Taught("Use formula nine.", ("a", "b")), Taught("Use formula ten.", ("c", "d"))]
    lessons = Book().add(rules, born=0)
    examples = {
        "a": example("What does the beta of Ada's stock say?"),
        "b": example("A stock has a beta of two."),
        "c": example("Yearly interest on a loan?"),
        "d": example("The loan of Bo bears interest."),
    }
    memory = Memory(k=1)
    text = arranged(memory, lessons, examples)
    ids = [
        memory.shows(text, {"question": question})
        for question in ("Which return, at this beta?", "What is the interest?")
    ]
    assert ids == [(lesson.id,) for lesson in lessons.lessons]
    assert "ada" not in text.casefold(), "a word of one example alone may be a name"
    assert memory.read(text).lessons[0].text == "Use formula nine."
    assert memory.serve(text, lessons) == text
    without = lessons.with_states({lessons.lessons[0].id: ("retired", "")})
    assert "nine" not in memory.serve(text, without)


def test_words_of_the_form_of_inputs_hide_no_lesson():
    forms = (
        "How long is the warranty on my {}?",
        "Please send the {} to my new address.",
        "I was charged twice for the {}.",
        "I want to return a {} that I never used.",
    )
    examples = {
        f"{thing} {form}": example(forms[(place + form) % 4].format(thing))
        for place, thing in enumerate(THINGS)
        for form in (0, 1)
    }
    rules = {thing: f"The code for a {thing} is {thing[:2]}7." for thing in THINGS}
    taught = [Taught(rule, (f"{thing} 0", f"{thing} 1")) for thing, rule in rules.items()]
    memory = Memory(k=2)
    text = arranged(memory, Book().add(taught, born=0), examples)
    for place, thing in enumerate(THINGS):
        for form in (2, 3):
            message = forms[(place + form) % 4].format(thing)
            assert lesson_id(rules[thing]) in memory.shows(text, {"message": message})


def test_what_every_input_lists_finds_no_lesson():
    labels = ("apples", "bells", "clocks", "drums")
    parts, things = ("core", "rope", "hand", "skin"), ("fruit", "tower", "hour", "beat")
    listed = f"Labels: {', '.join(labels)}."
    rules = [
        Taught(
            f"[{label[0].upper()}1] What has a {part} is of {label}.", (f"{label}0", f"{label}1")
        )
        for label, part in zip(labels, parts, strict=True)
    ]
    examples = {
        f"{label}{number}": example(f"{thing} {number}. {listed}")
        for label, thing in zip(labels, things, strict=True)
        for number in range(2)
    }
    lessons, memory = Book().add(rules, born=0), Memory(k=1)
    text = arranged(memory, lessons, examples)
    for lesson, thing in zip(lessons.lessons, things, strict=True):
        assert memory.shows(text, {"text": f"One {thing}. {listed}"}) == (lesson.id,)
        assert lesson.text in text


def test_a_lesson_that_ends_like_cues_keeps_its_identity():
    lessons = Book().add([Taught("Use code L2. [cues: every word]"), Taught("Be brief.")], born=0)
    memory, text = Memory(), "Answer."
    for _ in range(3):
        text = arranged(memory, lessons, {}, text)
    own, other = lessons.lessons
    assert [lesson.id for lesson in memory.read(text).lessons] == [own.id, other.id]
    assert own.id in memory.shows(text, {"question": "Which code?"})
    retired = lessons.with_states({own.id: ("retired", "")})
    assert read_memory(memory.serve(text, retired), 1).lessons == ("Be brief.",)


def test_worked_examples_take_no_place_of_a_lesson():
    rows = {
        str(number): example(f"Parcel to islands by boat, sender {number}.", "L1", perfect=True)
        for number in range(8)
    }
    rows["wrong"] = example("Parcel to the islands by boat, heavy.", "X")
    lessons = Book().add([Taught("Islands and heavy: L7.", ("wrong",))], born=0)
    memory, inputs = Memory(examples=True), rows["wrong"].record["Inputs"]
    text = arranged(memory, lessons, rows)
    assert memory.shows(text, inputs) == (lessons.lessons[0].id,)
    assert len(shelf_of(text, BM25(), 400).entries(inputs)[1]) == 4


@pytest.mark.parametrize(
    ("row", "asked"), [("北京的天气怎么样", "北京今天冷吗"), ("Dear all,\nBells ring.", "bells?")]
)
def test_a_worked_example_is_found_by_the_words_of_its_row(row, asked):
    rows = {"row": example(row, "B7", perfect=True)}
    text = Memory(examples=True).arranged("Answer.", Book(), rows)
    _, nearest = shelf_of(text, BM25(), 400).entries({"question": asked})
    assert nearest == [{"question": row, "code": "B7"}]


def test_a_row_of_lists_and_numbers_is_a_worked_example_and_one_with_an_object_is_none():
    def row(tags):
        record = {"Inputs": {"tags": tags}, "Generated Outputs": {"count": 2}}
        return Reflection(0, record, str(tags), perfect=True)

    rows = {"lists": row(["bells", "clocks"]), "object": row(dspy.History(messages=[]))}
    text = Memory(examples=True).arranged("Answer.", Book(), rows)
    assert len(read_memory(text, 1).examples) == 1
    _, nearest = shelf_of(text, BM25(), 400).entries({"tags": ["clocks"]})
    assert nearest == [{"tags": ["bells", "clocks"], "count": 2}]


def test_what_does_not_fit_ends_no_lookup():
    lessons = [Taught("Boats to islands: " + "boats islands " * 40), Taught("Islands: L7.")]
    memory = Memory(budget_tokens=40)
    text = memory.serve("Answer.", Book().add(lessons, born=0))
    assert memory.shows(text, {"question": "boats islands"}) == (lesson_id("Islands: L7."),)


def test_a_row_that_was_cut_is_no_worked_example():
    long = example("Which code? " + "lorem ipsum " * 3_000, "L2", perfect=True)
    (cut,) = fit_reflections([long], 500, lambda note: None, max_parts=1)
    rows = {"cut": cut, "whole": example("Which code?", "L3", perfect=True)}
    (line,) = read_memory(Memory(examples=True).arranged("Answer.", Book(), rows), 1).examples
    assert read_example(line) == {"question": "Which code?", "code": "L3"}


def test_without_examples_none_of_an_earlier_memory_are_shown():
    rows = {"a": example("Say apples.", "A7", perfect=True)}
    text = Memory(examples=True).arranged("Answer.", Book(), rows)
    student = dspy.Predict(dspy.Signature("question -> code", text))
    assert Memory(examples=True).seed(student) == {"self": text}
    seed = Memory().seed(student)
    assert seed == {"self": "Answer."}
    lm = ScriptedLM(lambda request: as_chat({"code": "A7"}))
    with dspy.context(lm=lm):
        Memory().build(student, seed)(question="Say apples.")
    assert "A7" not in lm.requests[0].text


def test_readers_see_what_their_examples_were_shown():
    own = f"Answer.\n\nLessons learned:\n- {COMMON}"
    lessons = Book().add([*map(Taught, RULES), Taught("Say please.")], born=0)
    memory, ask = Memory(k=1, examples=True), ScriptedAsk()
    text = arranged(memory, lessons, {"a": example("Say apples.", "A7", perfect=True)}, own)

    async def learn():
        rows = [example(f"Which code for {thing}?", "?") for thing in ("apples", "bells")]
        await memory.learn(arriving(rows), Union(), replace(context(ask), text=text))

    asyncio.run(learn())
    (seen,) = {str(call.inputs["current_instruction"]) for call in ask.calls}
    assert seen == f"{own}\n- {RULES[0]}\n- {RULES[1]}"


def test_what_readers_see_of_a_memory_is_bounded():
    names = [f"{first}{second}" for first in "abcde" for second in "uvwxyz"]
    lessons = Book().add([Taught(f"Case {name}: " + f"{name} " * 300) for name in names], born=0)
    memory = Memory(k=1, budget_tokens=1_000)
    text = memory.serve("Answer.", lessons)
    seen = memory.excerpt(text, [{"question": name} for name in (*names, names[-1])])
    assert estimate_tokens(seen) < 4_100 < estimate_tokens(text)
    assert f"Case {names[-1]}" in seen, "two calls were shown it"


def test_a_retriever_that_no_file_can_name_is_refused_before_anything_is_paid():
    with pytest.raises(ArgumentTypeError, match="by its path"):
        Memory(retriever=Embeddings(DSPyEmbedder(lambda texts: [[1.0] for _ in texts])))
    assert Memory(retriever=Embeddings(DSPyEmbedder("package.module:function")))
