from __future__ import annotations

import json
import statistics
from typing import Any

import dspy
import pytest

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.lms import ReasoningLaw, SimulatedConfig, SimulatedQuestion, SimulatedService, SimulatedTask
from combee_dspy.lms.simulated.requests import text_tokens

TASK = SimulatedTask(
    tuple(
        SimulatedQuestion(f"What does guard {number} of the gate say?", f"{number}", "nothing", "G1", "ask the guard")
        for number in range(3)
    ),
    base_rate=1.0,
)


def test_lengths_follow_the_law_and_its_median() -> None:
    law = ReasoningLaw(tokens=300, sigma=0.35)
    lengths = [text_tokens(law.text(0, number)) for number in range(400)]
    assert statistics.median(lengths) == pytest.approx(300, rel=0.1)
    assert statistics.stdev(lengths) > 50
    assert {text_tokens(ReasoningLaw(300, 0).text(0, number)) for number in range(9)} <= set(range(295, 302))


def test_the_same_place_gives_the_same_text_and_another_seed_another_length() -> None:
    law = ReasoningLaw()
    assert law.text(0, "a", 1) == law.text(0, "a", 1)
    assert len({len(law.text(seed, "a")) for seed in range(9)}) > 1


@pytest.mark.parametrize("values", [{"tokens": 7}, {"tokens": float("nan")}, {"sigma": -1.0}, {"sigma": float("inf")}])
def test_parameters_out_of_range_are_errors(values: dict[str, Any]) -> None:
    with pytest.raises(ArgumentValueError, match=next(iter(values))):
        ReasoningLaw(**values)


@pytest.mark.parametrize("adapter", [dspy.ChatAdapter(), dspy.JSONAdapter()])
def test_an_answer_reasons_as_long_as_the_law_says_and_says_the_same(
    monkeypatch: pytest.MonkeyPatch, adapter: dspy.Adapter
) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    program = dspy.ChainOfThought("question -> answer")
    said = {}
    for name, law in (("short", None), ("long", ReasoningLaw(300, 0))):
        config = SimulatedConfig(time_scale=0.0, reasoning=law)
        with SimulatedService(config, TASK) as service, dspy.context(lm=service.lm(), adapter=adapter):
            said[name] = [program(question=question.text) for question in TASK.questions]
            written = service.stats().completion_tokens / len(TASK.questions)
        assert (written > 290) is (name == "long")
    for short, long in zip(said["short"], said["long"], strict=True):
        assert short.answer == long.answer
        assert text_tokens(long.reasoning) > 4 * text_tokens(short.reasoning)
        assert json.dumps(long.reasoning).isascii()
