from __future__ import annotations

import pickle

import dspy
import pytest

from combee_dspy.evaluation import Judge
from combee_dspy.exceptions import ArgumentError, JudgeVerdictError
from combee_dspy.rollouts import RolloutJob, run_rollout
from combee_dspy.testing import ScriptedLM, as_chat

GOLD = dspy.Example(question="2+2?", answer="LABEL").with_inputs("question")
PRED = dspy.Prediction(answer="four")


class Echo(dspy.Module):
    def forward(self, question):
        return dspy.Prediction(answer=question)


def says(*answers: object) -> ScriptedLM:
    left = list(answers)

    def answer(request):
        score = left.pop(0) if len(left) > 1 else left[0]
        return (
            score if isinstance(score, str) else as_chat({"feedback": "Say why.", "score": score})
        )

    return ScriptedLM(answer)


def test_it_scores_and_says_why() -> None:
    lm = says(0.25)
    result = Judge("Is it right?", lm=lm)(GOLD, PRED)
    assert (result.score, result.feedback) == (0.25, "Say why.")
    assert all(word in lm.requests[0].text for word in ("Is it right?", "2+2?", "four"))
    lm = says(0.5)
    Judge("Is it right?", lm=lm)(GOLD, "no fields")
    assert "no fields" in lm.requests[0].text


def test_the_reference_is_shown_only_where_it_is_asked_for() -> None:
    for reference in (False, True):
        lm = says(1.0)
        Judge("Is it right?", lm=lm, reference=reference)(GOLD, PRED)
        assert ("LABEL" in lm.requests[0].text) is reference


def test_its_calls_are_the_evaluators() -> None:
    rollout = run_rollout(RolloutJob(Echo(), GOLD, "id", Judge("Is it right?", lm=says(1.0)), 0.0))
    assert [used.role for used in rollout.usage] == ["evaluator"]


@pytest.mark.parametrize(
    "bad",
    [
        7,
        -0.1,
        as_chat({"feedback": "x", "score": "nan"}),
        "no fields",
        as_chat({"feedback": "x", "score": "ok"}),
    ],
)
def test_an_answer_that_cannot_be_read_is_drawn_again(bad) -> None:
    lm = says(bad, bad, bad, 0.5)
    assert Judge("Is it right?", lm=lm, attempts=9)(GOLD, PRED).score == 0.5
    assert lm.requests[-1].temperature == 1.0
    with pytest.raises(JudgeVerdictError, match="in 2 attempts"):
        Judge("Is it right?", lm=says(bad), attempts=2)(GOLD, PRED)


def test_no_verdict_is_an_error_of_the_rollout_and_no_silent_zero() -> None:
    rollout = run_rollout(RolloutJob(Echo(), GOLD, "id", Judge("Is it right?", lm=says(7)), 0.0))
    assert rollout.failed_in == "metric"
    assert "JudgeVerdictError" in str(rollout.error)
    assert "not from 0 to 1" in str(rollout.error)


def test_a_signature_of_ones_own_must_have_the_fields() -> None:
    class Mine(dspy.Signature):
        """Urteile."""

        criteria: str = dspy.InputField()
        task: dict = dspy.InputField()
        response: dict = dspy.InputField()
        feedback: str = dspy.OutputField()
        score: float = dspy.OutputField()

    lm = says(1.0)
    Judge("Stimmt es?", lm=lm, signature=Mine)(GOLD, PRED)
    assert "Urteile." in lm.requests[0].text
    with pytest.raises(ArgumentError, match="lacks reference"):
        Judge("Stimmt es?", signature=Mine, reference=True)


@pytest.mark.parametrize(
    "arguments",
    [
        {"criteria": " "},
        {"criteria": 3},
        {"criteria": "x", "attempts": 0},
        {"criteria": "x", "lm": "m"},
    ],
)
def test_wrong_arguments_are_refused(arguments) -> None:
    with pytest.raises(ArgumentError, match=list(arguments)[-1]):
        Judge(**arguments)


def test_it_can_travel() -> None:
    judge = Judge("Is it right?", reference=True)
    copy = pickle.loads(pickle.dumps(judge))  # noqa: S301 - our own bytes
    assert copy == judge
    with dspy.context(lm=says(0.5)):
        assert copy(GOLD, PRED).score == 0.5
