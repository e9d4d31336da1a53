"""The instruction artifact: what of a rollout a reflector is shown."""

from __future__ import annotations

import asyncio

import dspy
import pytest

from combee_dspy.artifacts import Instruction, Trajectory
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.records import Rollout
from combee_dspy.strategies import StrategyContext

RECORD = {"Inputs": {"question": "Which code?"}, "Generated Outputs": {"answer": "X1"}, "Feedback": "No: Q7."}


async def _no_calls(*_: object) -> None:
    raise AssertionError("a record costs no call")


def _shown(artifact: Instruction, record: dict[str, object] | None) -> object:
    context = StrategyContext("predict", "Answer.", _no_calls, lambda kind, **data: None)
    rollout = Rollout("a", 0.0, prediction=dspy.Prediction(answer="X1"))
    seen = Trajectory(3, dspy.Example(), rollout, record)
    found = asyncio.run(artifact.reflect(seen, "predict", context))
    return None if found is None else found.record


def test_a_reflector_sees_gepas_record_or_all_but_the_answer() -> None:
    assert _shown(Instruction(), RECORD) == RECORD
    assert _shown(Instruction(shown="feedback"), RECORD) == {name: RECORD[name] for name in ("Inputs", "Feedback")}
    assert _shown(Instruction(shown="feedback"), None) is None


def test_another_way_to_show_it_is_refused() -> None:
    with pytest.raises(ArgumentValueError, match=r"Instruction.shown is refused: input should be 'all' or 'feedback'"):
        Instruction(shown="answer")  # type: ignore[arg-type]
