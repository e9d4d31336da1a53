"""The instruction artifact: what of a rollout a reflector is shown."""

from __future__ import annotations

import ast
import asyncio

import dspy
import pytest

from combee_dspy.aggregators import Aggregator, arrived
from combee_dspy.artifacts import Instruction, Trajectory
from combee_dspy.records import Lessons, Reflection, Rollout
from combee_dspy.strategies import StrategyContext

RECORD = {
    "Inputs": {"question": "Which code?"},
    "Generated Outputs": {"answer": "X1"},
    "Feedback": "No: Q7.",
}


async def _no_calls(*_):
    raise AssertionError("a record costs no call")


def _shown(artifact, record):
    context = StrategyContext("predict", "Answer.", _no_calls, lambda event: None)
    rollout = Rollout("a", 0.0, prediction=dspy.Prediction(answer="X1"))
    seen = Trajectory(3, dspy.Example(), rollout, record)
    reflection = asyncio.run(artifact.reflect(seen, "predict", context))
    return None if reflection is None else reflection.record


class _Reader(Aggregator):
    """Keeps the records that it is given."""

    name = "reader"

    async def aggregate(self, reflections, context):
        return Lessons(
            context.component,
            rewrite=repr([item and item.record for item in await arrived(reflections)]),
        )


def _read(artifact, *records):
    async def learn():
        context = StrategyContext("predict", "Answer.", _no_calls, lambda event: None)
        futures: list[asyncio.Future[Reflection | None]] = [
            asyncio.get_running_loop().create_future() for _ in records
        ]
        for place, (future, record) in enumerate(zip(futures, records, strict=True)):
            future.set_result(Reflection(place, record))
        lessons = await artifact.learn(futures, _Reader(), context)
        assert not any(future.cancelled() for future in futures)
        return lessons

    return ast.literal_eval(str(asyncio.run(learn()).rewrite))


def test_a_reflector_sees_gepas_record_or_all_but_the_answer():
    assert _shown(Instruction(view="all"), RECORD) == RECORD
    assert _shown(Instruction(), RECORD) == RECORD, "a proposer of one's own is given all"
    assert _shown(Instruction(view="feedback"), RECORD) == {
        name: RECORD[name] for name in ("Inputs", "Feedback")
    }
    assert _shown(Instruction(view="feedback"), None) is None


@pytest.mark.parametrize(
    ("answer", "feedback", "read"),
    [
        ({"answer": "X1"}, "Wrong: got 'X1', wanted 'Q7'.", None),
        ({"answer": "X1"}, "No: Q7.", {"answer": "X1"}),
        (
            {"reasoning": "A tent is large.", "answer": "X1"},
            "Got x1, not Q7.",
            {"reasoning": "A tent is large."},
        ),
        ({"answer": "E8"}, "Correct: E8.", None),
        (
            {"answer": "yes"},
            "Expected no: only even numbers are answered with yes.",
            {"answer": "yes"},
        ),
        ({"answer": "X1"}, "X12 is another code.", {"answer": "X1"}),
        ({"answer": "A"}, "A tent is not a desk: B.", {"answer": "A"}),
        ({"answer": 12}, "Wrong: 12.", {"answer": 12}),
        ({"answer": ""}, "", {"answer": ""}),
        ("could not be parsed: X1", "Wrong: could not be parsed: X1", "could not be parsed: X1"),
    ],
)
def test_a_reader_is_not_shown_twice_what_the_program_answered(answer, feedback, read):
    record = {
        "Inputs": {"question": "Which code?"},
        "Generated Outputs": answer,
        "Feedback": feedback,
    }
    rest = {"Inputs": record["Inputs"], "Feedback": feedback}
    assert (
        _read(Instruction(), record, record)
        == [rest if read is None else {**rest, "Generated Outputs": read}] * 2
    )
    assert _read(Instruction(view="all"), record) == [record]
