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
NEW = (
    "Footnotes may restate a figure of the table above them.",
    "Resolve pronouns to the last person named.",
)
MOVED = "\n".join([*PARENT.splitlines()[:3], *reversed(PARENT.splitlines()[3:])])


def with_lessons(*lessons, parent=PARENT):
    return parent + "".join(f"\n- {lesson}" for lesson in lessons)


def judged(text, *others, parent=PARENT, near_parent=False, options=None):
    archive = Archive(options or Diversity())
    for other in others:
        archive.add({"a": other})
    return archive.refuses({"a": text}, {"a": parent}, near_parent)


def alike(first, second):
    return likeness(*map(statements, (first, second)), Archive(Diversity())._vectors)


class Spy(Embedder):
    """Hashed n-grams that remember what they were asked."""

    name: ClassVar[str] = "spy"

    def __init__(self):
        self.asked = []

    def params(self):
        return {}

    def embed(self, texts):
        self.asked.extend(texts)
        return CharNgrams().embed(texts)


@pytest.mark.parametrize(
    "text",
    [
        with_lessons(*NEW),
        with_lessons(NEW[0]),
        PARENT.replace("- Quote the sentence that supports the answer.\n", ""),
        PARENT.replace("two decimals", "four decimals"),
        PARENT.replace("Quote the", "Do not quote the"),
        PARENT.replace("- Look", "- Always look").replace("- Use", "- Make sure to use")
        + f"\n- {NEW[0]}",
        PARENT + " " + NEW[1],
    ],
    ids=[
        "several lessons",
        "one lesson",
        "one fewer",
        "a number",
        "a negation",
        "among rewordings",
        "in one line",
    ],
)
def test_a_child_that_says_something_new_passes(text):
    assert judged(text) is None


@pytest.mark.parametrize(
    "text",
    [
        PARENT,
        PARENT.upper(),
        PARENT.replace("- ", "* ").replace(".", "!"),
        PARENT.replace("- Look", "- Always look").replace("- Quote", "- Make sure to quote"),
        MOVED,
        with_lessons("Always round the result to two decimals."),
        with_lessons("Quote the sentence that supports the answer."),
    ],
    ids=["itself", "case", "punctuation", "rewordings", "order", "said again", "repeated"],
)
def test_a_child_that_says_nothing_new_is_refused_with_the_figures(text):
    refusal = judged(text, "Something else altogether.")
    assert isinstance(refusal, Refusal)
    assert "to its parent exceeds 0.728 (char-ngrams)" in refusal.reason


def test_the_same_edit_in_other_words_is_refused_beside_a_candidate_that_is_there():
    again = with_lessons("Remember that footnotes may restate a figure of the table above them!")
    assert judged(again) is None
    refusal = judged(again, with_lessons(NEW[0]), "Something else.")
    assert refusal is not None and "the candidate 2 before it" in refusal.reason


def test_one_more_lesson_is_seen_however_long_the_prompt_has_grown():
    grown = with_lessons(*(f"Question type {n} needs method {n * 7}." for n in range(300)))
    assert judged(with_lessons(NEW[0], parent=grown), parent=grown) is None
    whole = CharNgrams().embed([grown, with_lessons(NEW[0], parent=grown)])
    assert float(whole[0] @ whole[1]) > 0.98


def test_a_repeated_text_is_refused_whatever_its_age_and_a_similar_one_while_it_is_recent():
    later = [f"Text number {number} about something." for number in range(5)]
    options = Diversity(recent=3)
    text = with_lessons(NEW[0])
    assert judged(text, text, *later, options=options) == Refusal(
        "it repeats a candidate that is there already"
    )
    again = with_lessons("Remember that footnotes may restate a figure of the table above them!")
    assert judged(again, text, *later, options=options) is None
    assert judged(again, text, *later[:2], *later[:2], options=options) is not None


def test_what_an_operator_says_in_other_words_or_order_is_refused_as_a_repeat_alone():
    assert judged(MOVED, PARENT) is not None
    assert judged(MOVED, PARENT, near_parent=True) is None
    assert judged(MOVED.upper(), PARENT, MOVED, near_parent=True) is not None


def test_a_threshold_and_an_embedder_that_are_given_are_used():
    text = PARENT.replace("- Look", "- Always look")
    assert judged(text, options=Diversity(threshold=0.99)) is None
    assert judged(
        text,
        options=Diversity(
            embedder={"name": "char-ngrams", "params": {"sizes": [3]}}, threshold=0.5
        ),
    )


def test_off_refuses_nothing():
    archive = Archive(Diversity.off())
    archive.add({"a": PARENT})
    assert archive.refuses({"a": PARENT}, {"a": PARENT}) is None


DEMOS = [
    Demonstration({"question": f"What is {n} plus 1?"}, {"answer": str(n + 1)}, f"{n:064x}")
    for n in range(4)
]


def candidate(text="Answer.", demos=(), **fields):
    return {
        "a": text,
        "a::demonstrations": encode_demonstrations(demos),
        "a::fields": encode_fields(fields),
    }


def test_demonstrations_count_and_their_order_does_not():
    assert alike(candidate(demos=DEMOS), candidate(demos=DEMOS[::-1])) == 1
    assert alike(candidate(demos=DEMOS), candidate(demos=DEMOS[:3])) == 0


def test_field_descriptions_and_the_component_of_a_sentence_count():
    assert alike(candidate(answer="One word."), candidate(answer="One word!")) == 1
    assert alike(candidate(answer="One word."), candidate(answer="In lower case.")) < 0.5
    assert (
        alike(
            {"a": "Check the sign.", "b": "Be brief."}, {"a": "Be brief.", "b": "Check the sign."}
        )
        == 0
    )


@pytest.mark.parametrize(
    "text", ['{"demonstrations":oops', '{"fields":[]}', '{"demonstrations":{},"version":1}']
)
def test_an_instruction_that_looks_encoded_is_compared_as_it_stands(text):
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
    ("one", "other", "same"),
    [
        ("Round it to 2 decimals.", "Round it to four decimals.", False),
        ("Use commas in numbers.", "Do not use commas in numbers.", False),
        ("margin = income / revenue", "margin = revenue / income", False),
        ("Write 5 % of it.", "Write 5 of it.", False),
        ("Round it to 2 decimals.", "Always round it to two decimals.", True),
        ("Do not use commas in numbers.", "Never use commas in numbers.", True),
    ],
)
def test_numbers_formulas_units_and_negations_turn_the_meaning(one, other, same):
    assert (alike({"a": one}, {"a": other}) > 0.5) == same


@settings(max_examples=40, deadline=None)
@given(
    *(st.dictionaries(st.sampled_from("ab"), st.text(max_size=80), max_size=2) for _ in range(2))
)
def test_likeness_is_symmetric_within_bounds_and_one_for_the_same(first, second):
    assert alike(first, second) == pytest.approx(alike(second, first), abs=1e-6)
    assert 0 <= alike(first, second) <= 1
    assert alike(first, first) == 1


def test_a_statement_is_embedded_once_and_no_lone_surrogate_reaches_an_embedder():
    spy = Spy()
    archive = Archive(Diversity(embedder=spy, threshold=0.7))
    for number in range(5):
        child = with_lessons(f"Kind {'x' * number} needs \ud800 a table.")
        archive.refuses({"a": child}, {"a": with_lessons(NEW[0])})
        archive.add({"a": child})
    assert len(spy.asked) == len(set(spy.asked)) > 5
    assert all(text.encode() for text in spy.asked)
