"""The adapter that lets a model say nothing but one of the choices."""

from __future__ import annotations

import json
from typing import Any, Literal

import dspy
import pytest
from dspy.utils.exceptions import AdapterParseError

from combee_dspy.lms import ChoiceAdapter
from combee_dspy.lms.embedded.choice import grammar_of
from combee_dspy.testing import ScriptedLM


class Route(dspy.Signature):
    """Name the formula."""

    question: str = dspy.InputField()
    formula: Literal["Gross Margin", 'The "Quick" Ratio'] = dspy.OutputField()


def _ask(answer: str, signature: Any = Route, **inputs: str) -> Any:
    lm = ScriptedLM(lambda request: answer)
    with dspy.context(lm=lm, adapter=ChoiceAdapter()):
        program = dspy.Predict(signature)
        program.demos = [dspy.Example(question="earlier", formula="Gross Margin")]
        return program(**(inputs or {"question": "now"})), lm.requests[0]


@pytest.mark.parametrize("answer", ["Gross Margin", '"Gross Margin"', " Gross Margin\n"])
def test_bare_and_quoted_labels_are_understood(answer: str) -> None:
    prediction, _ = _ask(answer)
    assert prediction.formula == "Gross Margin"


def test_demonstrations_show_the_bare_label() -> None:
    _, request = _ask("Gross Margin")
    assert ("assistant", "Gross Margin") in request.messages
    assert request.last == "now"


@pytest.mark.parametrize("answer", ["Net Margin", "null", '{"formula": "Gross Margin"}', "Gross Margin and more"])
def test_any_other_answer_does_not_parse(answer: str) -> None:
    with pytest.raises(AdapterParseError, match="choices"):
        _ask(answer)


def test_other_signatures_are_answered_in_json() -> None:
    lm = ScriptedLM(lambda request: json.dumps({"total": 3}))
    with dspy.context(lm=lm, adapter=ChoiceAdapter()):
        assert dspy.Predict("question -> total: int")(question="1 + 2").total == 3


def test_a_choice_becomes_a_grammar_of_bare_labels() -> None:
    schema = {"type": "string", "enum": ["Gross Margin", 'The "Quick" Ratio', "back\\slash"]}
    grammar = grammar_of({"type": "json_schema", "json_schema": {"name": "choice", "schema": schema}})
    assert grammar == r'root ::= "Gross Margin" | "The \"Quick\" Ratio" | "back\\slash"'


@pytest.mark.parametrize(
    "format_",
    [None, {}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}}],
)
def test_other_formats_have_no_grammar(format_: Any) -> None:
    assert grammar_of(format_) is None
