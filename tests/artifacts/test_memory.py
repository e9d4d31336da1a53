"""The memory artifact: what stands always, what is looked up, and what evidence that makes."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import dspy

from combee_dspy.aggregators import Union
from combee_dspy.artifacts import Memory
from combee_dspy.lessons import Book, Taught, lesson_id
from combee_dspy.memory import BM25, read_example, read_memory, shelf_of
from combee_dspy.records import Reflection
from combee_dspy.reflections import estimate_tokens, fit_reflections
from combee_dspy.testing import ScriptedAsk, ScriptedLM, arriving, as_chat, context

COMMON = "Write every answer in capital letters."
RULES = [f"Code for {thing} is {thing[0].upper()}7." for thing in ("apples", "bells", "clocks")]
_THINGS = "tent lamp sofa drill watch guitar mirror puzzle wallet carpet ladder jacket"
THINGS = _THINGS.split()
ASKED = {
    f"{thing}{number}": Reflection(0, {"Inputs": {"question": f"Which code for {thing}?"}})
    for thing in ("apples", "bells", "clocks")
    for number in range(2)
}


def book(*common):
    taught = [Taught(rule, (f"{rule.split()[2]}0",)) for rule in RULES]
    return Book().add([*taught, Taught(COMMON, common)], born=0)


def test_what_lookup_misses_for_most_examples_stands_always():
    memory, lessons = Memory(k=1), book("apples0", "bells0", "clocks1")
    text = memory.arranged(memory.serve("Answer.", lessons), lessons, ASKED)
    assert read_memory(text, 1).always == (COMMON,)
    assert read_memory(text, 1).lessons == (COMMON, *RULES)
    for example in ASKED.values():
        assert lesson_id(COMMON) in memory.shows(text, example.record["Inputs"])
    assert memory.arranged(text, lessons, ASKED) == text


WORDINGS = (
    "The code for a kettle is K7.",
    "When answering a message about a kettle, use the code K7.",
    "A message about a kettle gets the code K7.",
)
OTHERS = [f"A message about a {thing} gets the code {thing[:1].upper()}3." for thing in THINGS]
SOFA = OTHERS[2]


def test_wordings_of_one_rule_take_one_place_of_a_lookup():
    lessons = Book().add(map(Taught, [*WORDINGS, *OTHERS]), born=0)
    text = Memory(k=2).serve("Answer.", lessons)
    seen = Memory(k=2).shows(text, {"message": "My kettle leaks. Which code is it? And the sofa?"})
    assert set(seen) == {lesson_id(WORDINGS[0]), lesson_id(SOFA)}
    own = f"Answer.\n\nLessons learned:\n- {WORDINGS[1]}"
    seen = Memory(k=1).shows(
        Memory(k=1).serve(own, lessons), {"message": "A code for my kettle and sofa?"}
    )
    assert seen == (lesson_id(WORDINGS[1]), lesson_id(SOFA)), "a line that stands always says it"


def test_a_rule_that_a_call_is_shown_in_other_words_is_not_missed():
    taught = [Taught(rule, ("a", "b", "c")) for rule in WORDINGS]
    lessons = Book().add([*taught, *map(Taught, OTHERS)], born=0)
    asked = {
        name: Reflection(0, {"Inputs": {"message": f"My {thing} came late. Which code?"}})
        for name, thing in zip("abcdefg", ["kettle"] * 3 + THINGS[:4], strict=True)
    }
    memory = Memory(k=1)
    text = memory.arranged(memory.serve("Answer.", lessons), lessons, asked)
    assert read_memory(text, 1).always == ()


def test_lessons_of_one_form_are_no_wordings_of_one_rule():
    lessons = Book().add(map(Taught, RULES), born=0)
    text = Memory(k=3).serve("Answer.", lessons)
    assert len(Memory(k=3).shows(text, {"question": "Code for apples, bells, clocks?"})) == 3


def test_the_users_own_stand_always_whatever_lookup_finds():
    own = f"Answer.\n\nLessons learned:\n- {RULES[0]}"
    memory = Memory(k=1)
    lessons = memory.read(own).add([Taught(RULES[1], ("bells0",))], born=0)
    text = memory.arranged(memory.serve(own, lessons), lessons, ASKED)
    assert read_memory(text, 1).always == (RULES[0],)
    assert all(
        RULES[0] in other.text.split("Lessons to look up")[0]
        for other in memory.arrangements(text, lessons)
    )


def test_validation_may_choose_how_many_are_looked_up_unless_that_is_set():
    lessons = book("apples0", "bells0")
    text = Memory().serve("Answer.", Book((*lessons.lessons, *many(9).lessons)))
    assert [
        (read_memory(other.text, 0).k, other.shows_fewer)
        for other in Memory().arrangements(text, lessons)
    ] == [(8, False), (2, True)]
    assert Memory(k=3).arrangements(text, lessons) == []


def many(count):
    return Book().add(
        [Taught(f"Thing {number} weighs {number} kilos.") for number in range(count)], 0
    )


def test_a_lesson_is_found_by_the_words_of_the_examples_that_teach_it():
    lessons = Book().add(
        [
            Taught("Use formula nine.", ("a", "b")),
            Taught("Use formula ten.", ("c", "d")),
        ],
        born=0,
    )
    questions = (
        "What does the beta of Ada's stock say?",
        "A stock has a beta of two.",
        "Yearly interest on a loan?",
        "The loan of Bo bears interest.",
    )
    asked = {
        name: Reflection(0, {"Inputs": {"question": question}})
        for name, question in zip("abcd", questions, strict=True)
    }
    memory = Memory(k=1)
    text = memory.arranged(memory.serve("Answer.", lessons), lessons, asked)
    (nine,) = memory.shows(text, {"question": "Which return, at this beta?"})
    (ten,) = memory.shows(text, {"question": "What is the interest?"})
    assert (nine, ten) == tuple(lesson.id for lesson in lessons.lessons)
    assert "ada" not in text.casefold(), "a word of one example alone may be a name"
    assert memory.read(text).lessons[0].text == "Use formula nine."
    assert memory.serve(text, lessons) == text
    without = lessons.with_states({nine: ("retired", "")})
    assert "nine" not in memory.serve(text, without)


def test_words_of_the_form_of_inputs_hide_no_lesson():
    forms = (
        "How long is the warranty on my {}?",
        "Please send the {} to my new address.",
        "I was charged twice for the {}.",
        "I want to return a {} that I never used.",
    )
    asked = {
        f"{thing} {form}": Reflection(
            0, {"Inputs": {"message": forms[(place + form) % 4].format(thing)}}
        )
        for place, thing in enumerate(THINGS)
        for form in (0, 1)
    }
    rules = {thing: f"The code for a {thing} is {thing[:2]}7." for thing in THINGS}
    lessons = Book().add(
        [Taught(rule, (f"{thing} 0", f"{thing} 1")) for thing, rule in rules.items()], born=0
    )
    memory = Memory(k=2)
    text = memory.arranged(memory.serve("Answer.", lessons), lessons, asked)
    for place, thing in enumerate(THINGS):
        for form in (2, 3):
            message = forms[(place + form) % 4].format(thing)
            assert lesson_id(rules[thing]) in memory.shows(text, {"message": message})


def test_what_every_input_lists_finds_no_lesson():
    labels = ("apples", "bells", "clocks", "drums")
    listed = f"Labels: {', '.join(labels)}."
    lessons = Book().add(
        [
            Taught(
                f"[{label[0].upper()}1] What has a {part} is of {label}.",
                (f"{label}0", f"{label}1"),
            )
            for label, part in zip(labels, ("core", "rope", "hand", "skin"), strict=True)
        ],
        born=0,
    )
    asked = {
        f"{label}{number}": Reflection(0, {"Inputs": {"text": f"{thing} {number}. {listed}"}})
        for label, thing in zip(labels, ("fruit", "tower", "hour", "beat"), strict=True)
        for number in range(2)
    }
    memory = Memory(k=1)
    text = memory.arranged(memory.serve("Answer.", lessons), lessons, asked)
    for lesson, thing in zip(lessons.lessons, ("fruit", "tower", "hour", "beat"), strict=True):
        assert memory.shows(text, {"text": f"One {thing}. {listed}"}) == (lesson.id,)
        assert lesson.text in text


def asked(question, code, *, perfect=True):
    record = {"Inputs": {"question": question}, "Generated Outputs": {"code": code}}
    return Reflection(0, record, question, perfect=perfect)


def test_a_lesson_that_ends_like_cues_keeps_its_identity():
    lessons = Book().add([Taught("Use code L2. [cues: every word]"), Taught("Be brief.")], born=0)
    memory, text = Memory(), "Answer."
    for _ in range(3):
        text = memory.arranged(memory.serve(text, lessons), lessons, {})
    (own, _) = lessons.lessons
    assert [lesson.id for lesson in memory.read(text).lessons] == [
        lesson.id for lesson in lessons.lessons
    ]
    assert own.id in memory.shows(text, {"question": "Which code?"})
    retired = lessons.with_states({own.id: ("retired", "")})
    assert read_memory(memory.serve(text, retired), 1).lessons == ("Be brief.",)


def test_worked_examples_take_no_place_of_a_lesson():
    rows = {
        str(number): asked(f"Parcel to the islands by boat, sender {number}.", "L1")
        for number in range(8)
    }
    wrong = asked("Parcel to the islands by boat, heavy.", "X", perfect=False)
    lessons = Book().add([Taught("Islands and heavy: L7.", ("wrong",))], born=0)
    memory = Memory(examples=True)
    text = memory.serve("Answer.", lessons)
    text = memory.arranged(text, lessons, {**rows, "wrong": wrong})
    assert memory.shows(text, wrong.record["Inputs"]) == (lessons.lessons[0].id,)
    assert len(shelf_of(text, BM25(), 400).entries(wrong.record["Inputs"])[1]) == 4


def test_what_does_not_fit_ends_no_lookup():
    lessons = [Taught("Boats to islands: " + "boats islands " * 40), Taught("Islands: L7.")]
    memory = Memory(budget_tokens=40)
    text = memory.serve("Answer.", Book().add(lessons, born=0))
    assert memory.shows(text, {"question": "boats islands"}) == (lesson_id("Islands: L7."),)


def test_a_row_that_was_cut_is_no_worked_example():
    whole = asked("Which code? " + "lorem ipsum " * 3_000, "L2")
    (cut,) = fit_reflections([whole], 500, lambda note: None, max_parts=1)
    rows = {"cut": cut, "whole": asked("Which code?", "L3")}
    memory = Memory(examples=True)
    (line,) = read_memory(memory.arranged("Answer.", Book(), rows), 1).examples
    assert read_example(line) == {"question": "Which code?", "code": "L3"}


def test_without_examples_none_of_an_earlier_memory_are_shown():
    rows = {"a": asked("Say apples.", "A7")}
    text = Memory(examples=True).arranged("Answer.", Book(), rows)
    student = dspy.Predict(dspy.Signature("question -> code", text))
    seeds = {examples: Memory(examples=examples).seed(student) for examples in (True, False)}
    assert seeds == {True: {"self": text}, False: {"self": "Answer."}}
    lm = ScriptedLM(lambda request: as_chat({"code": "A7"}))
    with dspy.context(lm=lm):
        Memory().build(student, seeds[False])(question="Say apples.")
    assert "A7" not in lm.requests[0].text


def test_readers_see_what_their_examples_were_shown():
    own = f"Answer.\n\nLessons learned:\n- {COMMON}"
    lessons = Book().add([Taught(rule) for rule in RULES] + [Taught("Say please.")], born=0)
    memory, ask = Memory(k=1, examples=True), ScriptedAsk()
    text = memory.arranged(memory.serve(own, lessons), lessons, {"a": asked("Say apples.", "A7")})
    rows = [asked(f"Which code for {thing}?", "?", perfect=False) for thing in ("apples", "bells")]
    here = replace(context(ask), text=text)

    async def learn():
        await memory.learn(arriving(rows), Union(), here)

    asyncio.run(learn())
    (seen,) = {str(call.inputs["current_instruction"]) for call in ask.calls}
    assert seen == f"{own}\n- {RULES[0]}\n- {RULES[1]}"


def test_what_readers_see_of_a_memory_is_bounded():
    lessons = Book().add([Taught(f"Case {word}: " + f"{word} " * 300) for word in NAMES], born=0)
    memory = Memory(k=1, budget_tokens=1_000)
    text = memory.serve("Answer.", lessons)
    calls = [{"question": word} for word in (*NAMES, NAMES[-1])]
    seen = memory.excerpt(text, calls)
    assert estimate_tokens(seen) < 4_100 < estimate_tokens(text)
    assert f"Case {NAMES[-1]}" in seen, "two calls were shown it"


NAMES = [f"{first}{second}" for first in "abcde" for second in "uvwxyz"]
