"""What a user gets wrong is said before anything is bought, with the remedy."""

from __future__ import annotations

import runpy
import sys
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Costs
from combee_dspy.costs import Price
from combee_dspy.exceptions import (
    ArgumentTypeError,
    ArgumentValueError,
    LMUnreachableError,
    MissingDistributionError,
)
from tests.worlds import World


class OnlyAsynchronous(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = dspy.Predict("question -> answer")

    async def aforward(self, question: str) -> Any:
        return await self.part.acall(question=question)


@pytest.mark.parametrize(
    ("given", "kind", "words"),
    [
        ({"reflection_lm": "openai/gpt-5"}, ArgumentTypeError, r"Give dspy\.LM\('openai/gpt-5'\)"),
        (
            {"candidate_selection_strategy": "paretto"},
            ArgumentValueError,
            "candidate_selection_strategy is unknown",
        ),
        ({"component_selector": "robin"}, ArgumentValueError, "Give one of round_robin, all"),
        (
            {"gepa_kwargs": {"frontier_type": "instances"}},
            ArgumentValueError,
            "frontier_type is unknown",
        ),
        ({"gepa_kwargs": {"use_wandb": True}}, ArgumentValueError, "Give use_wandb to Combee"),
    ],
)
def test_what_is_misspelt_is_named_when_the_optimizer_is_made(
    world: World, given: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        world.combee(**given)


def test_wandb_that_is_not_installed_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDistributionError, match=r"use_wandb=True.*pip install 'wandb'"):
        world.combee(use_wandb=True)


def test_a_name_is_no_task_lm(world: World) -> None:
    with pytest.raises(ArgumentTypeError, match=r"dspy\.settings\.lm is the name of an LM"):
        World("openai/gpt-5", world.proposer_lm).compile()  # type: ignore[arg-type]  # what is tested
    student = dspy.Predict("question -> answer")
    student.lm = "openai/gpt-5"  # type: ignore[assignment]  # as above
    with pytest.raises(ArgumentTypeError, match=r"student\.self\.lm is the name of an LM"):
        world.compile(student)


def test_a_program_with_an_asynchronous_form_alone_is_told_of_the_executor_that_runs_it(
    world: World,
) -> None:
    with pytest.raises(ArgumentTypeError, match="Give executor='asyncio'"):
        world.compile(OnlyAsynchronous())
    assert not world.asked


def test_a_model_that_is_misspelt_is_no_missing_price(service: Any) -> None:
    lm = service.lm(api_base="http://127.0.0.1:9/v1", num_retries=0)
    with pytest.raises(LMUnreachableError):
        World.made().compile(reflection_lm=lm, budget=Budget(dollars=1.0))


def test_a_price_may_be_a_mapping() -> None:
    assert Costs(prices={"m": {"prompt": 1, "completion": 2}}).prices["m"] == Price(1.0, 2.0)  # type: ignore[dict-item]


def test_the_package_runs_as_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["combee", "--version"])
    with pytest.raises(SystemExit):
        runpy.run_module("combee_dspy", run_name="__main__")
    assert capsys.readouterr().out.startswith("combee_dspy ")
