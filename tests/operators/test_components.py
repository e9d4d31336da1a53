import json
import math

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.operators import (
    FewShotSwap,
    Insert,
    InstructionChannel,
    apply_components,
    decode_demonstrations,
    decode_fields,
    edit_components,
    encode_demonstrations,
    encode_fields,
    operator_input,
    predictor_runs,
    seed_components,
    visible,
)
from combee_dspy.operators._base import field_descriptions
from combee_dspy.operators._components import describe_fields
from combee_dspy.records import Demonstration, Edit, Lessons, PredictorCall, Rollout

NUMBER = st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
VALUE = st.recursive(
    st.none() | st.booleans() | NUMBER | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.dictionaries(st.text(), VALUE, max_size=3)
DEMONSTRATION = st.builds(Demonstration, FIELDS, FIELDS, st.none() | st.text())


class Route(dspy.Signature):
    """Route."""

    question: str = dspy.InputField()
    formula: str = dspy.OutputField(desc="Its short name.")


class Program(dspy.Module):
    def __init__(self):
        super().__init__()
        self.route = dspy.Predict(Route)
        self.answer = dspy.Predict("question, formula -> answer")


@given(demonstrations=st.lists(DEMONSTRATION, max_size=4))
def test_demonstrations_come_back_from_a_stable_text(demonstrations):
    text = encode_demonstrations(demonstrations)
    assert text.isascii() and "\n" not in text
    assert decode_demonstrations(text) == tuple(demonstrations)
    assert encode_demonstrations(decode_demonstrations(text)) == text


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=60), max_size=6))
def test_descriptions_come_back_from_a_stable_text(descriptions):
    text = encode_fields(descriptions)
    assert text.isascii()
    assert decode_fields(text) == descriptions
    assert encode_fields(dict(reversed(descriptions.items()))) == text


def test_lone_surrogates_are_carried():
    text = {"a": "\ud800"}
    assert decode_fields(encode_fields(text)) == text
    assert decode_demonstrations(encode_demonstrations([Demonstration(text, text)])) == (
        Demonstration(text, text),
    )


def test_the_format_is_the_one_that_journals_hold():
    assert encode_demonstrations(()) == '{"demonstrations":[],"version":1}'
    assert encode_fields({"b": "x", "a": ""}) == '{"fields":{"a":"","b":"x"},"version":1}'
    assert decode_demonstrations("") == ()
    assert decode_fields("") == {}


@pytest.mark.parametrize("value", [object(), math.nan, math.inf, (1, 2), {1: "a"}, {1, 2}, b"x"])
def test_what_json_cannot_hold_is_refused(value):
    with pytest.raises(ArgumentTypeError):
        encode_demonstrations([Demonstration({"a": value}, {})])


@pytest.mark.parametrize("wrong", [{"a": 1}, {1: "a"}, {"a": None}])
def test_only_texts_are_encoded_as_descriptions(wrong):
    with pytest.raises(ArgumentTypeError):
        encode_fields(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "no json",
        "[]",
        "null",
        "{}",
        "[" * 100_000,
        '{"%s":[],"version":2}',
        '{"%s":1,"version":1}',
        '{"%s":[1],"version":1}',
        '{"%s":[{"inputs":{}}],"version":1}',
        '{"%s":[{"inputs":{},"outputs":{},"other":3}],"version":1}',
        '{"%s":{"a":1},"version":1}',
    ],
)
def test_garbage_is_refused(text):
    with pytest.raises(ArgumentValueError):
        decode_demonstrations(text.replace("%s", "demonstrations"))
    with pytest.raises(ArgumentValueError):
        decode_fields(text.replace("%s", "fields"))


def test_descriptions_go_into_a_signature_and_come_out():
    assert field_descriptions(Route) == {"question": "", "formula": "Its short name."}
    assert describe_fields(Route, field_descriptions(Route)) is Route
    assert describe_fields(Route, {"question": "${question}"}) is Route
    changed = describe_fields(Route, {"question": "Free text."})
    assert field_descriptions(changed) == {"question": "Free text.", "formula": "Its short name."}
    assert changed.instructions == Route.instructions
    with pytest.raises(ArgumentValueError, match="answer"):
        describe_fields(Route, {"answer": "x"})


def test_the_seed_holds_what_the_operators_may_edit_and_selection_sees_the_texts_alone():
    program = Program()
    assert seed_components(program, [Insert()]) == {
        "route": "Route.",
        "answer": program.answer.signature.instructions,
    }
    program.route.demos = [dspy.Example(question="q", formula="roi", augmented=True)]
    seed = seed_components(program, [FewShotSwap(), InstructionChannel()])
    assert visible(seed) == ("route", "answer")
    assert decode_demonstrations(seed["route::demonstrations"]) == (
        Demonstration({"question": "q"}, {"formula": "roi"}),
    )
    assert decode_fields(seed["route::fields"])["formula"] == "Its short name."


@pytest.mark.parametrize(
    "demo",
    [{"question": "q"}, {"question": dspy.Image("https://example.org/a.png"), "formula": "roi"}],
)
def test_demonstrations_that_cannot_be_carried_are_no_component_and_stay_as_they_are(demo):
    program = Program()
    program.route.demos = [dspy.Example(**demo)]
    seed = seed_components(program, [FewShotSwap()])
    assert "route::demonstrations" not in seed and "answer::demonstrations" in seed
    assert apply_components(program, seed).route.demos == program.route.demos
    edit = Edit(demonstrations=(Demonstration({"question": "q"}, {"formula": "roi"}),))
    assert edit_components(edit, "route", seed) == {}


def test_an_edit_becomes_components_and_these_a_program():
    student = Program()
    seed = seed_components(student, [FewShotSwap(), InstructionChannel()])
    shown = Demonstration({"question": "q"}, {"formula": "roi"}, "a" * 64)
    edit = Edit("Choose.", (shown,), {"question": "Free text."})
    changed = edit_components(edit, "route", seed)
    assert set(changed) == {"route", "route::demonstrations", "route::fields"}
    program = apply_components(student, {**seed, **changed})
    assert program.route.signature.instructions == "Choose."
    assert [demo.toDict() for demo in program.route.demos] == [{"question": "q", "formula": "roi"}]
    assert field_descriptions(program.route.signature) == {
        "question": "Free text.",
        "formula": "Its short name.",
    }
    assert student.route.signature is Route and student.route.demos == []
    assert program.answer.signature.equals(student.answer.signature)
    assert edit_components(edit, "route", {**seed, **changed}) == {}
    with pytest.raises(ArgumentValueError, match="rout"):
        apply_components(student, {"rout": "Choose."})


def test_operators_are_given_what_a_candidate_says_and_what_the_predictor_did():
    student = Program()
    seed = seed_components(student, [FewShotSwap(), InstructionChannel()])
    parent = {
        **seed,
        "route": "Choose.",
        "route::fields": encode_fields({"question": "Free text.", "formula": "x"}),
    }
    example = dspy.Example(question="q", formula="npv").with_inputs("question")
    calls = (
        PredictorCall("route", {"question": "q"}, None, "garbage"),
        PredictorCall("route", {"question": "q"}, {"formula": "roi"}),
        PredictorCall("answer", {"question": "q", "formula": "roi"}, {"answer": "1"}),
        PredictorCall("route", {"question": "again"}, {"formula": "irr"}),
    )
    runs = predictor_runs("route", [(example, Rollout("a" * 64, 0.5, calls=calls))])
    given = operator_input(student, "route", parent, Lessons("route"), seed=seed, runs=runs)
    assert (given.instruction, given.seed_instruction) == ("Choose.", "Route.")
    assert given.field_descriptions["formula"] == "x"
    assert given.seed_field_descriptions["formula"] == "Its short name."
    assert [(run.outputs["formula"], run.first, run.score) for run in given.runs] == [
        ("roi", True, 0.5),
        ("irr", False, 0.5),
    ]
    assert given.runs[0].labels == {"formula": "npv"}
    assert json.loads(encode_demonstrations(given.demonstrations))["demonstrations"] == []
