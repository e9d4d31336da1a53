"""What an operator gets to see of a rollout."""

from __future__ import annotations

import dspy

from combee_dspy.engine.runs import predictor_runs
from combee_dspy.records import Rollout


def test_a_run_carries_inputs_outputs_score_and_the_examples_labels() -> None:
    predictor = dspy.Predict("question -> answer")
    example = dspy.Example(question="q", answer="right").with_inputs("question")
    outputs = dspy.Prediction(answer="wrong")
    call = (predictor, {"question": "q"}, outputs)
    rollout = Rollout("row", example, outputs, (call, call), 0.25, callers=("self", "self"))
    first, second = predictor_runs(predictor, [rollout], "self")
    assert (first.inputs, first.outputs, first.score) == ({"question": "q"}, {"answer": "wrong"}, 0.25)
    assert first.labels == {"answer": "right"}
    assert (first.first, second.first) == (True, False)
