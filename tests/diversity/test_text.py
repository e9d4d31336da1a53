from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.diversity import candidate_text, fingerprint
from combee_dspy.diversity._text import statements, telling_words
from combee_dspy.operators import encode_demonstrations, encode_fields
from combee_dspy.records import Demonstration

DEMOS = [Demonstration({"question": f"What is {n} plus 1?"}, {"answer": str(n + 1)}, f"{n:064x}") for n in range(4)]


def said(text):
    return [statement.form for statement in statements(text)]


def test_demonstrations_in_another_order_are_the_same_text():
    one = candidate_text({"a": "Answer.", "a::demonstrations": encode_demonstrations(DEMOS)})
    other = candidate_text({"a::demonstrations": encode_demonstrations(DEMOS[::-1]), "a": "Answer."})
    assert one == other
    assert one != candidate_text({"a": "Answer.", "a::demonstrations": encode_demonstrations(DEMOS[:3])})


def test_a_demonstration_is_one_statement_whatever_it_holds():
    demo = Demonstration({"text": "First line. Second!\nThird?"}, {"labels": ["x", "y"], "note": None})
    text = candidate_text({"a::demonstrations": encode_demonstrations([demo])})
    assert len(statements(text)) == 1


def test_field_descriptions_are_statements_too():
    text = candidate_text(
        {"a::fields": encode_fields({"question": "As asked.", "answer": "One word.\nIn lower case."})}
    )
    assert said(text) == ["answer one word", "answer in lower case", "question as asked"]


@pytest.mark.parametrize("text", ['{"demonstrations":oops', '{"fields":[]}', '{"demonstrations":{},"version":1}'])
def test_an_instruction_that_looks_encoded_is_compared_as_it_stands(text):
    assert text in candidate_text({"a": text})


def test_the_same_sentence_in_two_components_is_two_statements():
    found = list(statements(candidate_text({"a": "Check the sign.", "b": "Check the sign."})))
    assert [(statement.component, statement.form) for statement in found] == [
        ("a", "check the sign"),
        ("b", "check the sign"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Check the sign. Round it.",
        "- Check the sign.\n- Round it.",
        "1. check the sign\n2) **Round it!**",
        "* CHECK THE SIGN;   Round it",
        "Check the sign! Check the sign. Round it.",
    ],
)
def test_punctuation_case_and_bullets_make_no_other_statement(text):
    assert said(text) == ["check the sign", "round it"]


def test_abbreviations_and_decimals_end_no_sentence():
    assert len(said("Use units, e.g. metres, vs. feet and 3.5 inches.")) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("round to 2 decimals", "round to four decimals"),
        ("use commas", "do not use commas"),
        ("margin = income / revenue", "margin = revenue / income"),
        ("write 5 %", "write 5"),
    ],
)
def test_words_that_turn_the_meaning_are_found(one, other):
    assert telling_words(one) != telling_words(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("round to 2 decimals", "always round the result to two decimals"),
        ("do not use commas", "never use commas"),
        ("margin = income / revenue", "remember margin = income / revenue"),
    ],
)
def test_rewordings_keep_what_turns_the_meaning(one, other):
    assert telling_words(one) == telling_words(other)


def test_a_fingerprint_sees_words_and_their_order_and_nothing_else():
    assert fingerprint("- Check the sign.\n- Round it.") == fingerprint("check the sign!\n  ROUND it")
    assert fingerprint("Check the sign. Round it.") != fingerprint("Round it. Check the sign.")
    assert fingerprint("Check the sign.") != fingerprint("Check the unit.")


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=80), max_size=4))
def test_any_candidate_has_a_text_and_a_fingerprint(components):
    text = candidate_text(components)
    assert fingerprint(text) == fingerprint(candidate_text(dict(reversed(components.items()))))
    assert len(fingerprint(text)) == 32
