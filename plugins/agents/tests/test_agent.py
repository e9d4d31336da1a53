"""DSPy agents in a session, alone and in whole runs, against scripted LMs."""

from __future__ import annotations

import copy
import json
import re

import dspy
import pytest

from combee_agents import (
    CodeAgent,
    EnvironmentFaultError,
    SessionAgent,
    SessionMetric,
    SessionPool,
    current,
    in_session,
    session_tools,
)
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.rollouts import InfrastructureFaultError, RolloutJob, fingerprint, run_rollout
from combee_dspy.testing import ScriptedLM, ScriptedRequest, as_chat, as_json

LESSON = "Rule: shut the door before you finish."


class Visit(dspy.Signature):
    """Go through the door."""

    instruction: str = dspy.InputField()
    outcome: str = dspy.OutputField()


def said(request: ScriptedRequest, fields: dict) -> str:
    return as_chat(fields) if "[[ ## completed ## ]]" in request.text else as_json(fields)


def plan(request: ScriptedRequest) -> list[str]:
    asked = re.findall(r"go (\w+)", request.last)[-1]
    return [asked, "shut"] if LESSON in request.system else [asked]


def agent_answer(request: ScriptedRequest) -> str:
    """Does what it was asked, and shuts the door only where it was told to."""
    steps = plan(request)
    if "next_tool_name" in request.system:
        done = request.last.count("observation_")
        name, arguments = (
            ("execute", {"code": steps[done]}) if done < len(steps) else ("finish", {})
        )
        fields = {
            "next_thought": "…",
            "next_tool_name": name,
            "next_tool_args": json.dumps(arguments),
        }
    elif "`code`" in request.system:
        done = request.last.count("] printed:")
        code = f"```python\n{steps[done]}\n```"
        fields = {"code": code, "finished": str(done == len(steps) - 1), "outcome": "done"}
    else:
        fields = {"reasoning": "…", "outcome": "done"}
    return said(request, fields)


@pytest.fixture
def lm():
    made = ScriptedLM(agent_answer)
    with dspy.context(lm=made, adapter=dspy.ChatAdapter()):
        yield made


def examples(count: int, start: int = 0, go: str = "slow") -> list[dspy.Example]:
    rows = [
        dspy.Example(task_id=f"t{n}", instruction=f"{n}: go {go}")
        for n in range(start, start + count)
    ]
    return [row.with_inputs("task_id", "instruction") for row in rows]


@pytest.mark.parametrize("style", ["react", "code"])
def test_an_agent_acts_and_is_judged(lm, pool, style):
    program = SessionAgent(pool, Visit, agent=style)
    (row,) = examples(1)
    prediction = program(**row.inputs())
    assert prediction.outcome == "done"
    assert prediction.steps == [["slow", "did slow"]]
    assert prediction.evaluation["score"] == 0.0
    judged = SessionMetric()(row, prediction)
    assert judged.score == 0.0
    assert (
        judged.feedback
        == "Failed: the door is shut.\n\nWhat was carried out:\n[1] slow\n-> did slow"
    )
    taught = copy.deepcopy(program)
    for predictor in taught.predictors():
        predictor.signature = predictor.signature.with_instructions(
            f"{predictor.signature.instructions}\n{LESSON}"
        )
    assert taught.pool is pool
    again = taught(**row.inputs())
    assert again.evaluation["score"] == SessionMetric(shown=0)(row, again).score == 1.0
    assert again.steps == [["slow", "did slow"], ["shut", "did shut"]]


@pytest.mark.parametrize("style", ["react", "code"])
def test_a_fault_ends_the_agent_at_once_and_is_no_answer(lm, pool, style):
    program = SessionAgent(pool, Visit, agent=style)
    (row,) = examples(1, go="break")
    with pytest.raises(EnvironmentFaultError) as caught:
        program(**row.inputs())
    assert caught.value.kind == "protocol"
    assert len(lm.requests) == 1
    with pytest.raises(InfrastructureFaultError) as fault:
        run_rollout(RolloutJob(program, row, "id", SessionMetric()))
    assert fault.value.rollout is None


def test_a_fault_that_an_agent_swallowed_counts_all_the_same(lm, pool):
    class Deaf(dspy.Module):
        def __init__(self, signature, tools):
            super().__init__()

        def forward(self, **_):
            try:
                current().exec("break")
            except Exception:  # noqa: BLE001 - this is the agent that goes on regardless
                return dspy.Prediction(outcome="fine")

    with pytest.raises(EnvironmentFaultError):
        SessionAgent(pool, Visit, agent=Deaf)(task_id="a", instruction="go slow")


def test_an_agents_own_error_is_scored(lm, pool):
    (row,) = examples(1)
    rollout = run_rollout(
        RolloutJob(SessionAgent(pool, Visit, agent=lambda *_: Broken()), row, "id", SessionMetric())
    )
    assert (rollout.score, rollout.failed_in) == (0.0, "program")
    assert "of its own making" in rollout.error


class Broken(dspy.Module):
    def forward(self, **_):
        raise RuntimeError("of its own making")


def test_long_outputs_are_cut_with_their_end_kept(pool):
    (tool,) = session_tools(shown=300)
    with pool.session("a") as session, in_session(session):
        shown = tool("x" * 1_000 + "the end")
    assert len(shown) < 400
    assert "characters left out" in shown
    assert shown.endswith("the end")
    assert session.steps[0][1].endswith("the end")


def test_steps_after_a_long_one_are_still_told():
    steps = [["a", "y" * 50_000], ["b", "short"]]
    judged = SessionMetric(shown=1_000)(
        dspy.Example(), dspy.Prediction(evaluation={"score": 0.5, "feedback": "No."}, steps=steps)
    )
    assert judged.feedback.startswith("No.")
    assert judged.feedback.endswith("[2] b\n-> short")
    assert len(judged.feedback) < 1_200


def test_a_tool_outside_of_a_session_says_what_to_do():
    (tool,) = session_tools()
    with pytest.raises(ArgumentValueError, match="SessionAgent"):
        tool("knock")


@pytest.mark.parametrize(
    ("wrong", "named"),
    [(lambda pool: SessionAgent(pool, Visit, agent="act"), "agent"), (None, "task_id")],
)
def test_what_cannot_be_used_is_named(lm, pool, wrong, named):
    with pytest.raises(ArgumentValueError) as caught:
        wrong(pool) if wrong else SessionAgent(pool, Visit)(instruction="go slow")
    assert caught.value.argument == named


def test_a_prediction_of_another_program_scores_nothing_and_says_why():
    judged = SessionMetric()(dspy.Example(), dspy.Prediction(outcome="done", evaluation="1.0"))
    assert judged.score == 0.0
    assert "no SessionAgent" in judged.feedback


def test_code_is_taken_out_of_its_fences_and_an_empty_turn_is_told():
    turns = iter(["Here:\n```python\na = 1\n```\nand\n```\nprint(a)\n```", "  ", "b"])
    seen: list[str] = []

    def execute(code: str) -> str:
        """Run it."""
        seen.append(code)
        return "1"

    lm = ScriptedLM(lambda r: said(r, {"code": next(turns), "finished": "False", "outcome": "x"}))
    with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
        prediction = CodeAgent(Visit, execute, max_iters=3)(instruction="go")
    assert seen == ["a = 1\nprint(a)", "b"]
    assert "no code was given" in prediction.trajectory
    assert "Run it." in lm.requests[0].system


def test_a_program_is_known_by_what_its_environments_are_and_not_by_their_history(lm, pool, doors):
    program = SessionAgent(pool, Visit, agent="code")
    (row,) = examples(1)
    before = fingerprint(program, SessionMetric())
    program(**row.inputs())
    assert fingerprint(program, SessionMetric()) == before
    with SessionPool(doors, 7, identity="another door") as other:
        assert fingerprint(SessionAgent(other, Visit, agent="code"), SessionMetric()) != before
