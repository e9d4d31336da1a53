"""Which children an archive refuses: near copies of what is there."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from combee_dspy.diversity import Archive, CharNgrams, Diversity, Embedder
from combee_dspy.diversity._likeness import likeness, statements
from combee_dspy.operators import encode_demonstrations, encode_fields
from combee_dspy.records import Demonstration, Refusal

PARENT = "Answer the question.\n\nLessons learned:\n" + "\n".join(
    f"- {lesson}"
    for lesson in (
        "Look for the answer in tables before the running text.",
        "Round the result to two decimals.",
        "Use the figures of the year that the question names.",
        "Quote the sentence that supports the answer.",
        "Amounts in thousands must be scaled before they are compared.",
    )
)
FOOTNOTES = "Footnotes may restate a figure of the table above them."
PRONOUNS = "Resolve pronouns to the last person named."
MOVED = "\n".join([*PARENT.splitlines()[:3], *reversed(PARENT.splitlines()[3:])])


def with_lesson(lesson, parent=PARENT):
    return f"{parent}\n- {lesson}"


REWORDED = with_lesson("Remember that footnotes may restate a figure of the table above them!")


def judge(text, *others, parent=PARENT, near_parent=False, options=None):
    archive = Archive(options or Diversity())
    for other in others:
        archive.add({"a": other})
    return archive.refuses({"a": text}, {"a": parent}, near_parent)


def alike(first, second):
    return likeness(*map(statements, (first, second)), Archive(Diversity())._vectors)


@pytest.mark.parametrize(
    "text",
    [
        with_lesson(FOOTNOTES),
        PARENT.replace("- Quote the sentence that supports the answer.\n", ""),
        PARENT.replace("two decimals", "four decimals"),
        PARENT.replace("Quote the", "Do not quote the"),
        with_lesson(FOOTNOTES, PARENT.replace("- Look", "- Always look")),
        f"{PARENT} {PRONOUNS}",
    ],
    ids=["a lesson", "one fewer", "a number", "a negation", "among rewordings", "in one line"],
)
def test_a_child_that_says_something_new_passes(text):
    assert judge(text) is None


@pytest.mark.parametrize(
    "text",
    [
        PARENT,
        PARENT.upper(),
        PARENT.replace("- ", "* ").replace(".", "!"),
        PARENT.replace("- Look", "- Always look").replace("- Quote", "- Make sure to quote"),
        MOVED,
        with_lesson("Always round the result to two decimals."),
    ],
    ids=["itself", "case", "punctuation", "rewordings", "order", "a lesson again"],
)
def test_a_child_that_says_nothing_new_is_refused_with_the_figures(text):
    refusal = judge(text, "Something else altogether.")
    assert isinstance(refusal, Refusal)
    assert "to its parent exceeds 0.728 (char-ngrams)" in refusal.reason


def test_the_same_edit_in_other_words_is_refused_beside_a_candidate_that_is_there():
    assert judge(REWORDED) is None
    refusal = judge(REWORDED, with_lesson(FOOTNOTES), "Something else.")
    assert refusal is not None
    assert "the candidate 2 before it" in refusal.reason


def test_one_more_lesson_is_seen_however_long_the_prompt_has_grown():
    grown = PARENT
    for number in range(300):
        grown = with_lesson(f"Question type {number} needs method {number * 7}.", grown)
    assert judge(with_lesson(FOOTNOTES, grown), parent=grown) is None
    whole = CharNgrams().embed([grown, with_lesson(FOOTNOTES, grown)])
    assert float(whole[0] @ whole[1]) > 0.98


def test_a_repeated_text_is_refused_whatever_its_age_and_a_similar_one_while_it_is_recent():
    later = [f"Text number {number} about something." for number in range(5)]
    options, text = Diversity(recent=3), with_lesson(FOOTNOTES)
    repeats = Refusal("it repeats a candidate that is there already")
    assert judge(text, text, *later, options=options) == repeats
    assert judge(REWORDED, text, *later, options=options) is None
    assert judge(REWORDED, text, *later[:2], options=options) is not None


def test_an_operator_of_other_words_or_order_is_refused_for_a_repeat_alone():
    assert judge(MOVED, PARENT) is not None
    assert judge(MOVED, PARENT, near_parent=True) is None
    assert judge(MOVED.upper(), PARENT, MOVED, near_parent=True) is not None


@pytest.mark.parametrize(
    ("options", "refuses"),
    [
        (Diversity(threshold=0.99), False),
        (
            Diversity(embedder={"name": "char-ngrams", "params": {"sizes": [3]}}, threshold=0.5),
            True,
        ),
    ],
)
def test_the_users_threshold_and_embedder_decide(options, refuses):
    text = PARENT.replace("- Look", "- Always look")
    assert (judge(text, options=options) is not None) is refuses


def test_switched_off_it_refuses_nothing():
    assert judge(PARENT, PARENT, options=Diversity.off()) is None


def candidate(text="Answer.", demonstrations=(), **fields):
    return {
        "a": text,
        "a::demonstrations": encode_demonstrations(demonstrations),
        "a::fields": encode_fields(fields),
    }


def test_demonstrations_count_and_their_order_does_not():
    rows = [
        Demonstration({"question": f"What is {n} plus 1?"}, {"answer": str(n + 1)}, f"{n:064x}")
        for n in range(4)
    ]
    assert alike(candidate(demonstrations=rows), candidate(demonstrations=rows[::-1])) == 1
    assert alike(candidate(demonstrations=rows), candidate(demonstrations=rows[:3])) == 0


def test_field_descriptions_and_the_component_of_a_sentence_count():
    assert alike(candidate(answer="One word."), candidate(answer="One word!")) == 1
    assert alike(candidate(answer="One word."), candidate(answer="In lower case.")) < 0.5
    swapped = {"a": "Be brief.", "b": "Check the sign."}
    assert alike({"a": "Check the sign.", "b": "Be brief."}, swapped) == 0


@pytest.mark.parametrize("text", ['{"demonstrations":oops', '{"fields":[]}'])
def test_an_instruction_that_looks_encoded_is_compared_as_a_text(text):
    assert alike({"a": text}, {"a": "Answer."}) < 0.5


@pytest.mark.parametrize(
    "text",
    [
        "- Check the sign.\n- Round it.",
        "1. check the sign\n2) **Round it!**",
        "* CHECK THE SIGN;   Round it",
        "Check the sign! Check the sign. Round it.",
    ],
)
def test_punctuation_case_and_bullets_say_nothing_new(text):
    assert alike({"a": text}, {"a": "Check the sign. Round it."}) == 1


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("Round it to 2 decimals.", "Round it to four decimals.", False),
        ("Use commas in numbers.", "Do not use commas in numbers.", False),
        ("margin = income / revenue", "margin = revenue / income", False),
        ("Write 5 % of it.", "Write 5 of it.", False),
        ("Round it to 2 decimals.", "Always round it to two decimals.", True),
        ("Do not use commas in numbers.", "Never use commas in numbers.", True),
    ],
)
def test_numbers_formulas_units_and_negations_turn_the_meaning(first, second, same):
    assert (alike({"a": first}, {"a": second}) > 0.5) == same


texts = st.dictionaries(st.sampled_from("ab"), st.text(max_size=80), max_size=2)


@settings(max_examples=40, deadline=None)
@given(texts, texts)
def test_likeness_is_symmetric_within_bounds_and_one_for_the_same(first, second):
    assert alike(first, second) == pytest.approx(alike(second, first), abs=1e-6)
    assert 0 <= alike(first, second) <= 1
    assert alike(first, first) == 1


class Spy(Embedder):
    """Hashed n-grams that remember their texts."""

    name: ClassVar[str] = "spy"

    def __init__(self):
        self.texts = []

    def params(self):
        return {}

    def embed(self, texts):
        self.texts.extend(texts)
        return CharNgrams().embed(texts)


def test_a_statement_is_embedded_once_and_no_lone_surrogate_reaches_an_embedder():
    spy = Spy()
    archive = Archive(Diversity(embedder=spy, threshold=0.7))
    for number in range(5):
        child = with_lesson(f"Kind {'x' * number} needs \ud800 a table.")
        archive.refuses({"a": child}, {"a": with_lesson(FOOTNOTES)})
        archive.add({"a": child})
    assert len(spy.texts) == len(set(spy.texts)) > 5
    assert all(text.encode() for text in spy.texts)
