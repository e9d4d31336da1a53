"""A proposal for a program of several predictors, from what was recorded alone."""

from __future__ import annotations

import re

import dspy
import pytest

from combee_dspy import propose_program
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError
from combee_dspy.records import PredictorCall
from combee_dspy.testing import ScriptedLM, as_chat
from combee_dspy.traces import Trace


class Program(dspy.Module):
    def __init__(self):
        super().__init__()
        self.plan = dspy.Predict(dspy.Signature("question -> plan", "Plan it."))
        self.answer = dspy.Predict(dspy.Signature("question, plan -> answer", "Answer it."))

    def forward(self, question):
        return self.answer(question=question, plan=self.plan(question=question).plan)


def trace(name, *, calls=True, **more):
    steps = (
        PredictorCall("Predict.forward", {"question": name}, {"plan": f"plan {name}"}),
        PredictorCall("Tool.search", {"query": name}, {"output": f"search {name} failed"}),
        PredictorCall("x", {"question": name, "plan": f"plan {name}"}, {"answer": "5"}),
    )
    said = {"feedback": f"The answer to {name} is 4.", "score": 0.0, **more}
    return Trace(name, {"question": name}, {"answer": "5"}, steps if calls else (), **said)


def answer(request):
    if '"Example"' not in request.last:
        return as_chat({"same": [], "contradictory": [], "narrower": [], "empty": []})
    part = "plan" if "Plan it." in request.last else "answer"
    names = re.findall(r'"Example": (\d+).{0,600}?The answer to (\w+) is', request.last, re.DOTALL)
    return as_chat(
        {"lessons": [f"[{number}] When asked {name}, {part} 4." for number, name in names]}
    )


def test_each_predictor_learns_from_its_own_calls():
    reader, student = ScriptedLM(answer), Program()
    traces = [trace("alpha", model="m", prompt="p"), trace("beta"), trace("gamma")]
    proposal = propose_program(student, traces, reflection_lm=reader)
    texts = {
        name: predictor.signature.instructions
        for name, predictor in proposal.program.named_predictors()
    }
    assert texts["plan"].startswith("Plan it.\n\nLessons learned:\n- When asked ")
    assert "When asked beta, plan 4." in texts["plan"]
    assert "When asked beta, answer 4." in texts["answer"]
    assert "answer 4" not in texts["plan"]
    assert student.plan.signature.instructions == "Plan it."
    assert {lesson.sources for lesson in proposal.books["plan"].served} == {
        ("alpha",),
        ("beta",),
        ("gamma",),
    }
    assert str(proposal).splitlines()[0] == "Not validated: nothing was run."
    assert "2 by somebody unknown; 1 by p, m" in str(proposal)
    assert proposal.coverage.foreign == {"Tool.search": 3}


def test_a_reader_sees_what_the_other_steps_did():
    reader = ScriptedLM(answer)
    propose_program(Program(), [trace("alpha")], reflection_lm=reader)
    (asked,) = [request.last for request in reader.requests if "Answer it." in request.last]
    assert "search alpha failed" in asked
    assert "Result of the Whole Program" in asked


def test_a_trace_without_calls_is_a_call_of_a_program_of_one():
    student = dspy.Predict(dspy.Signature("question -> answer", "Answer it."))
    reader = ScriptedLM(answer)
    proposal = propose_program(student, [trace("alpha", calls=False)], reflection_lm=reader)
    assert "When asked alpha, answer 4." in proposal.program.signature.instructions


def test_a_run_that_ended_asks_nothing_again(tmp_path):
    reader = ScriptedLM(answer)
    first = propose_program(Program(), [trace("alpha")], reflection_lm=reader, log_dir=tmp_path)
    spent = len(reader.requests)
    again = propose_program(Program(), [trace("alpha")], reflection_lm=reader, log_dir=tmp_path)
    assert len(reader.requests) == spent
    assert again.books == first.books


def test_what_matches_nothing_is_refused():
    reader = ScriptedLM(answer)
    student = dspy.Predict("other -> thing")
    with pytest.raises(ArgumentValueError, match="1 match no predictor"):
        propose_program(student, [trace("alpha")], reflection_lm=reader)
    with pytest.raises(ArgumentTypeError, match="student"):
        propose_program("alpha", [trace("alpha")], reflection_lm=reader)
    assert not reader.requests
