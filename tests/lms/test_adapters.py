from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import dspy
import pydantic
import pytest
from dspy.lm15 import Message, Request, Response, Usage
from dspy.utils.exceptions import AdapterParseError

from combee_dspy.lms import ChoiceAdapter, ConstrainedJSONAdapter
from combee_dspy.lms._adapters import grammar_of


class Route(dspy.Signature):
    """Name the animal."""

    question: str = dspy.InputField()
    animal: Literal["cat", "dog"] = dspy.OutputField()


class Many(dspy.Signature):
    """Fill in the form."""

    question: str = dspy.InputField()
    hint: str = dspy.InputField(desc="what helps")
    count: int = dspy.OutputField(desc="how many")
    share: float = dspy.OutputField()
    names: list[str] = dspy.OutputField()
    type: str = dspy.OutputField()


class Recorder:
    """An engine that keeps requests and answers with one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.requests: list[Request] = []

    def complete(self, request: Request) -> Response:
        self.requests.append(request)
        message = Message.assistant(self.text)
        return Response(
            id="one", model=request.model, message=message, finish_reason="stop", usage=Usage()
        )


class AsyncRecorder(Recorder):
    async def complete(self, request: Request) -> Response:  # type: ignore[override]
        return Recorder.complete(self, request)


def ask(
    signature: type[dspy.Signature],
    text: str,
    demos: list[Any] | None = None,
    adapter: dspy.Adapter | None = None,
    **inputs: Any,
) -> tuple[Any, Request]:
    engine = Recorder(text)
    predict = dspy.Predict(signature)
    predict.demos = demos or []
    with dspy.context(
        lm=dspy.LM("any", engine=engine, cache=False), adapter=adapter or ConstrainedJSONAdapter()
    ):
        answer = predict(**inputs)
    return answer, engine.requests[0]


class Choose(dspy.Signature):
    """Name the formula."""

    question: str = dspy.InputField()
    formula: Literal["Gross Margin", 'The "Quick" Ratio'] = dspy.OutputField()


def choose(text: str) -> tuple[Any, Request]:
    demos = [dspy.Example(question="earlier", formula="Gross Margin")]
    return ask(Choose, text, demos, ChoiceAdapter(), question="now")


def schema_of(request: Request) -> dict[str, Any]:
    wanted = request.config.response_format
    assert wanted is not None
    assert wanted["type"] == "json_schema"
    return dict(wanted["schema"])


def texts(request: Request) -> list[tuple[str, str]]:
    return [
        (message.role, "".join(part.text for part in message.parts)) for message in request.messages
    ]


def test_a_literal_becomes_an_enum() -> None:
    answer, request = ask(Route, '{"animal": "dog"}', question="Who barks?")
    assert answer.animal == "dog"
    schema = schema_of(request)
    assert schema["properties"]["animal"]["enum"] == ["cat", "dog"]
    assert schema["required"] == ["animal"]
    assert schema["additionalProperties"] is False


def test_what_is_asked_for_is_asked_as_dspy_asks_for_json() -> None:
    text = '{"count": 1, "share": 1, "names": [], "type": ""}'
    demos = [dspy.Example(question="old", hint="h", count=2, share=0.5, names=["a"], type="x")]
    _, dspys = ask(Many, text, demos, dspy.JSONAdapter(), question="q", hint="h")
    for adapter in (ConstrainedJSONAdapter(), ChoiceAdapter()):
        _, ours = ask(Many, text, demos, adapter, question="q", hint="h")
        assert (ours.system, texts(ours)) == (dspys.system, texts(dspys))


def test_a_choice_is_asked_in_few_words() -> None:
    hinted = dspy.Signature(
        {
            "question": (str, dspy.InputField()),
            "hint": (str, dspy.InputField(desc="what helps")),
            "animal": (Literal["cat", "dog"], dspy.OutputField()),
        },
        "Name the animal.",
    )
    demos = [dspy.Example(question="Who meows?", animal="cat")]
    _, request = ask(
        hinted, "dog", demos, ChoiceAdapter(), question="Who barks?", hint="not the cat"
    )
    assert request.system == "Name the animal.\nhint: what helps"
    assert texts(request)[-1] == ("user", "question: Who barks?\nhint: not the cat")


def test_typed_outputs_are_in_the_schema_and_come_back_typed() -> None:
    text = json.dumps({"count": 3, "share": 0.5, "names": ["a", "b"], "type": "x"})
    answer, request = ask(Many, text, question="q", hint="h")
    assert (answer.count, answer.share, answer.names, answer.type) == (3, 0.5, ["a", "b"], "x")
    properties = schema_of(request)["properties"]
    assert properties["count"]["type"] == "integer"
    assert properties["share"]["type"] == "number"
    assert properties["names"]["items"]["type"] == "string"


def test_lists_and_free_text_end() -> None:
    engine = Recorder('{"count": 1, "share": 1, "names": [], "type": ""}')
    adapter = ConstrainedJSONAdapter(max_items=2, max_chars=40)
    with dspy.context(lm=dspy.LM("any", engine=engine, cache=False), adapter=adapter):
        dspy.Predict(Many)(question="q", hint="h")
    properties = schema_of(engine.requests[0])["properties"]
    assert properties["names"]["maxItems"] == 2
    # A text in a list is a line and no page.
    assert properties["names"]["items"]["maxLength"] == 10
    assert properties["type"]["maxLength"] == 40


def test_dicts_end_unless_their_type_says_where() -> None:
    class Own(pydantic.BaseModel, extra="allow"):
        few: dict[str, int] = pydantic.Field(max_length=2)

    signature = dspy.Signature(
        {
            "question": (str, dspy.InputField()),
            "free": (dict[str, int], dspy.OutputField()),
            "own": (Own, dspy.OutputField()),
        }
    )
    answer, request = ask(signature, '{"free": {"a": 1}, "own": {"few": {}}}', question="q")
    own = schema_of(request)["$defs"]["Own"]
    assert answer.free == {"a": 1}
    assert schema_of(request)["properties"]["free"]["maxProperties"] == 64
    assert (own["properties"]["few"]["maxProperties"], own["maxProperties"]) == (2, 65)
    assert "maxProperties" not in schema_of(request)


@pytest.mark.parametrize("text", ['{"animal": "do', '{"animal": "horse"}', "dog", "[]", "{}"])
def test_what_does_not_fit_is_a_parse_error(text: str) -> None:
    with pytest.raises(AdapterParseError) as caught:
        ask(Route, text, question="q")
    assert caught.value.lm_response == text


def test_reasoning_of_a_chain_of_thought_is_part_of_the_answer() -> None:
    engine = Recorder('{"reasoning": "it barks", "animal": "dog"}')
    with dspy.context(
        lm=dspy.LM("any", engine=engine, cache=False), adapter=ConstrainedJSONAdapter()
    ):
        answer = dspy.ChainOfThought(Route)(question="Who barks?")
    assert answer.animal == "dog"
    assert str(answer.reasoning) == "it barks"


def test_the_asynchronous_path_sends_the_same_request() -> None:
    engine, twin = Recorder('{"animal": "dog"}'), AsyncRecorder('{"animal": "dog"}')
    lm = dspy.LM("any", engine=engine, async_engine=twin, cache=False)
    with dspy.context(lm=lm, adapter=ConstrainedJSONAdapter()):
        predict = dspy.Predict(Route)
        predict(question="Who barks?")
        asyncio.run(predict.acall(question="Who barks?"))
    assert engine.requests == twin.requests


@pytest.mark.parametrize("answer", ["Gross Margin", '"Gross Margin"', " Gross Margin\n"])
def test_bare_and_quoted_labels_are_understood(answer: str) -> None:
    prediction, request = choose(answer)
    assert prediction.formula == "Gross Margin"
    assert texts(request) == [("user", "earlier"), ("assistant", "Gross Margin"), ("user", "now")]


@pytest.mark.parametrize(
    "answer", ["Net Margin", "null", '{"formula": "Gross Margin"}', "Gross Margin and more"]
)
def test_any_other_answer_is_no_choice(answer: str) -> None:
    with pytest.raises(AdapterParseError, match="choices"):
        choose(answer)


@pytest.mark.parametrize("answer", [" yes", '" yes"'])
def test_a_label_may_begin_with_a_space(answer: str) -> None:
    class Spaced(dspy.Signature):
        question: str = dspy.InputField()
        route: Literal[" yes", "no"] = dspy.OutputField()

    assert ChoiceAdapter().parse(Spaced, answer) == {"route": " yes"}


def test_other_signatures_of_the_choice_adapter_are_answered_in_json() -> None:
    total = dspy.Signature("question -> total: int")
    prediction, _ = ask(total, json.dumps({"total": 3}), adapter=ChoiceAdapter(), question="1 + 2")
    assert prediction.total == 3


def test_a_choice_becomes_a_grammar_of_bare_labels() -> None:
    schema = {"type": "string", "enum": ["Gross Margin", 'The "Quick" Ratio', "back\\slash"]}
    grammar = grammar_of(
        {"type": "json_schema", "json_schema": {"name": "choice", "schema": schema}}
    )
    assert grammar == r'root ::= "Gross Margin" | "The \"Quick\" Ratio" | "back\\slash"'
    for other in (
        None,
        {},
        {"type": "json_object"},
        {"json_schema": {"schema": {"type": "object"}}},
    ):
        assert grammar_of(other) is None
