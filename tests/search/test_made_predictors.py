"""Programs that copy or make their predictors while they run learn like any other."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Search
from combee_dspy.rollouts import RolloutJob, run_rollout
from tests.worlds import World, events, examples, metric


def reward(inputs: Any, prediction: Any) -> float:
    return float(prediction.answer != "unknown")


class Copied(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.answer = dspy.Predict("question -> answer")

    def forward(self, question: str) -> Any:
        return self.answer.deepcopy()(question=question)


class Remade(Copied):
    def forward(self, question: str) -> Any:
        return dspy.Predict(self.answer.signature)(question=question)


class Reasoned(Copied):
    """Calls a predictor whose signature is another one: it has a field more."""

    def forward(self, question: str) -> Any:
        return dspy.ChainOfThought(self.answer.signature)(question=question)


class Half(Copied):
    def __init__(self) -> None:
        super().__init__()
        self.idle = dspy.Predict("question -> hint")


def best_of() -> dspy.Module:
    return dspy.BestOfN(dspy.Predict("question -> answer"), N=2, reward_fn=reward, threshold=1.0)


def refined() -> dspy.Module:
    part = dspy.ChainOfThought("question -> answer")
    return dspy.Refine(part, N=1, reward_fn=reward, threshold=1.0)


@pytest.mark.parametrize("make", [best_of, refined, Copied, Remade])
def test_a_program_that_makes_predictors_as_it_runs_learns(world: World, make: Any) -> None:
    report = world.compile(make()).combee_report
    assert report.best_score == 1.0 > report.seed_score
    assert not [text for text in report.warnings if "predictor" in text]


def test_feedback_is_on_the_predictor_that_a_copy_belongs_to(world: World) -> None:
    calls: list[tuple[str, Any]] = []

    def noting(gold: Any, pred: Any, trace: Any = None, name: Any = None, part: Any = None) -> Any:
        if name is not None:
            calls.append((name, part[0]))
        return metric(gold, pred)

    world.compile(Remade(), metric=noting, max_metric_calls=40)
    assert {name for name, _ in calls} == {"answer"}
    assert all(predictor.signature.instructions for _, (predictor, _, _) in calls)
    assert all(inputs["question"] for _, (_, inputs, _) in calls)


def test_a_predictor_that_no_rollout_calls_is_named(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "combee_dspy"):
        report = world.compile(Reasoned(), log_dir=tmp_path).combee_report
    assert report.reason == "no rollout called predictor 'answer': nothing to learn from"
    name = "No rollout called predictor 'answer'"
    (text,) = (text for text in report.warnings if text.startswith(name))
    assert text in caplog.text
    assert text in [event["text"] for event in events(tmp_path, "warning")]


def test_predictors_that_rollouts_call_are_not_named(world: World) -> None:
    report = world.compile(Half(), search=Search(keep="pareto")).combee_report
    assert report.best_score > report.seed_score
    assert "idle" in report.reason
    warnings = "".join(report.warnings)
    assert "No rollout called predictor 'idle'" in warnings
    assert "'answer'" not in warnings


class Twins(dspy.Module):
    """Two predictors with one signature; ``way`` is how ``forward`` calls the second."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.first = dspy.Predict("question -> answer")
        self.second = dspy.Predict(self.first.signature)
        self.way = way

    def forward(self, question: str) -> Any:
        if self.way != "new":
            self.first(question=question)
        second = dspy.Predict(self.second.signature)
        if self.way in ("own", "copy"):
            second = self.second if self.way == "own" else self.second.deepcopy()
        return second(question=question)


@pytest.mark.parametrize(
    ("way", "paths"),
    [
        ("own", [("first",), ("second",)]),
        ("copy", [("first",), ("second",)]),
        ("new beside a call of the first", [("first",), ("second",)]),
        ("new", [("first", "second")]),
    ],
)
def test_equal_signatures_are_told_apart_as_far_as_possible(
    world: World, way: str, paths: list[tuple[str, ...]]
) -> None:
    (example,) = examples(1)
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        rollout = run_rollout(RolloutJob(Twins(way), example, "id", metric))
    assert [(call.predictor, *call.also) for call in rollout.calls] == paths
