from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import dspy
import pydantic
import pytest

from combee_dspy.records import FailedCall
from combee_dspy.testing.doubles import ScriptedPredict, context, operator_input, reflections, watch_lms


class Part(pydantic.BaseModel):
    title: str
    weight: float


class Everything(dspy.Signature):
    """Ask for one of each."""

    question: str = dspy.InputField()
    text: str = dspy.OutputField()
    texts: list[str] = dspy.OutputField()
    number: float = dspy.OutputField()
    flag: bool = dspy.OutputField()
    choice: Literal["a", "b"] = dspy.OutputField()
    maybe: str | None = dspy.OutputField()
    table: dict[str, int] = dspy.OutputField()
    parts: list[Part] = dspy.OutputField()


def test_every_output_field_gets_a_value_of_its_type():
    (answer,) = ScriptedPredict()(Everything, [{"question": "?"}])
    assert isinstance(answer.text, str)
    assert len(set(answer.texts)) == 2
    assert isinstance(answer.number, float)
    assert answer.flag is True
    assert answer.choice == "a"
    assert isinstance(answer.maybe, str)
    assert answer.table == {"key": 1}
    assert all(isinstance(part, Part) for part in answer.parts)


def test_an_empty_answer_is_empty_in_every_field_that_can_be():
    (answer,) = ScriptedPredict(empty=True)(Everything, [{"question": "?"}])
    assert (answer.text, answer.texts, answer.number, answer.table, answer.parts) == ("", [], 0.0, {}, [])


def test_answers_depend_on_the_inputs_alone():
    one, two, other = (ScriptedPredict()(Everything, [{"question": q}])[0].text for q in ("x", "x", "y"))
    assert one == two != other


def test_it_remembers_calls_and_fails_the_ones_it_is_told_to():
    predict = ScriptedPredict(fail=lambda call: call.inputs["question"] == "2")
    answers = predict(Everything, [{"question": str(n)} for n in range(4)], role="reflector")
    assert [isinstance(answer, FailedCall) for answer in answers] == [False, False, True, False]
    assert [(c.index, c.inputs["question"], c.role, c.signature) for c in predict.calls] == [
        (n, str(n), "reflector", Everything) for n in range(4)
    ]


def test_no_call_is_lost_under_threads():
    predict = ScriptedPredict()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: predict(Everything, [{"question": str(n)}] * 3), range(50)))
    assert sorted(call.index for call in predict.calls) == list(range(150))


def test_material_differs_from_item_to_item():
    assert len({str(r.record) for r in reflections(50)}) == 50
    given = operator_input(lessons=3, runs=6, demonstrations=2)
    assert len({lesson.text for lesson in given.lessons.lessons}) == 3
    assert {run.score for run in given.runs} == {0.0, 1.0}
    assert len(given.demonstrations) == 2


def test_events_are_heard_and_streams_derive_from_the_seed():
    heard = []
    made = context(events=heard, seed=1)
    made.emit("event")
    assert heard == ["event"]
    assert made.stream("x").random() == context(seed=1).stream("x").random() != context(seed=2).stream("x").random()


async def _ask(lm):
    await lm.acall("hello")


def test_calls_around_predict_are_seen_and_refused_sync_and_async():
    import asyncio

    original = dspy.BaseLM.__call__
    with watch_lms() as seen:
        with pytest.raises(RuntimeError):
            dspy.settings.lm("hello")
        with pytest.raises(RuntimeError):
            asyncio.run(_ask(dspy.LM("another/model")))
    assert seen == ["LM('combee-dspy/forbidden')", "LM('another/model')"]
    assert dspy.BaseLM.__call__ is original
