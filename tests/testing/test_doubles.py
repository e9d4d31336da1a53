from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Annotated, Any, Literal

import dspy
import pytest
from pydantic import BaseModel, Field, TypeAdapter

from combee_dspy.events import WarningRaised
from combee_dspy.records import FailedCall
from combee_dspy.testing import (
    ScriptedAsk,
    ScriptedLM,
    arriving,
    as_chat,
    as_json,
    context,
    reflections,
    watch_lms,
)


class Sum(BaseModel):
    total: int
    note: str | None


class Everything(dspy.Signature):
    """Fill it in."""

    question: str = dspy.InputField()
    texts: list[str] = dspy.OutputField()
    kind: Literal["a", "b"] = dspy.OutputField()
    found: Sum = dspy.OutputField()
    maybe: dict[str, float] | None = dspy.OutputField()
    flag: bool = dspy.OutputField()


def test_a_scripted_lm_answers_by_the_request_and_remembers_it():
    def answer(request):
        fields = {"answer": request.last.count("why")}
        return as_json(fields) if "JSON" in request.text else as_chat(fields)

    lm = ScriptedLM(answer, temperature=0.5)
    for adapter in (dspy.ChatAdapter(), dspy.JSONAdapter()):
        with dspy.context(lm=lm, adapter=adapter):
            predict = dspy.Predict("question -> answer: int")
            assert predict(question="why why").answer == 2
            assert asyncio.run(predict.acall(question="why")).answer == 1
    assert [request.temperature for request in lm.requests] == [0.5] * 4
    assert lm.history[0]["usage"]["prompt_tokens"] == len(lm.requests[0].text.split())
    assert isinstance(lm.copy(), ScriptedLM)


def test_answers_have_the_types_that_were_asked_for_and_follow_from_the_inputs():
    ask = ScriptedAsk()

    async def both():
        at_work = context(ask)
        return await asyncio.gather(
            *(at_work.ask(Everything, {"question": q}, q, role="reflector") for q in "aba")
        )

    first, other, again = asyncio.run(both())
    assert first.texts == again.texts != other.texts
    assert (first.kind, first.found.total, first.flag) == ("a", 1, True)
    assert [(call.place, call.role) for call in ask.calls] == [
        (("answer", q), "reflector") for q in "aba"
    ]
    empty = asyncio.run(context(ScriptedAsk(empty=True)).ask(Everything, {"question": "a"}))
    assert (empty.texts, empty.flag) == ([], False)


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize(
    "annotation",
    [
        tuple[str, int],
        tuple[int, ...],
        frozenset[str],
        Sequence[str],
        Mapping[str, int],
        list[Annotated[int, "a note"]],
        Colour,
        list[Colour],
        int | None,
        Any,
    ],
    ids=str,
)
def test_an_answer_of_any_type_is_of_that_type(annotation, empty):
    fields = {"a": (str, dspy.InputField()), "b": (annotation, dspy.OutputField())}
    signature = dspy.Signature(fields)
    value = asyncio.run(context(ScriptedAsk(empty=empty)).ask(signature, {"a": "x"})).b
    TypeAdapter(annotation).validate_python(value, strict=True)


class Bounded(BaseModel):
    number: Annotated[int, Field(ge=3)]


def test_a_model_with_bounds_is_made_all_the_same():
    signature = dspy.Signature({"a": (str, dspy.InputField()), "b": (Bounded, dspy.OutputField())})
    answer = asyncio.run(context(ScriptedAsk()).ask(signature, {"a": "x"}))
    assert isinstance(answer.b, Bounded)


def test_calls_fail_as_they_are_told():
    ask = ScriptedAsk(fail=lambda call: call.index == 1)

    async def three():
        return [
            await context(ask).ask(Everything, {"question": "a"}, number) for number in range(3)
        ]

    assert [isinstance(found, FailedCall) for found in asyncio.run(three())] == [False, True, False]


def test_reflections_arrive_in_the_order_given():
    async def watched():
        first, second, third = arriving([*reflections(2), KeyError("x")], order=(2, 1, 0))
        seen = []
        for number, one in enumerate((first, second, third)):
            one.add_done_callback(lambda _, number=number: seen.append(number))
        assert (await first).index == 0
        with pytest.raises(KeyError):
            await third
        return seen

    assert asyncio.run(watched()) == [2, 1, 0]


def test_events_and_streams_of_a_context():
    events = []
    at_work = context(events=events)
    at_work.emit(WarningRaised("x"))
    assert events == [WarningRaised("x")]
    assert (
        at_work.stream("a").random()
        == context().stream("a").random()
        != at_work.stream("b").random()
    )


def test_calls_around_the_context_are_refused_and_seen():
    with watch_lms() as seen, pytest.raises(RuntimeError, match=r"context\.ask"):
        dspy.Predict("a -> b")(a="x")
    assert seen == ["LM('combee-dspy/forbidden')"]
