"""One error for each kind of bad input, before anything is bought."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Combee
from combee_dspy.exceptions import (
    ArgumentTypeError,
    ArgumentValueError,
    CombeeError,
    LMUnreachableError,
    SplitOverlapError,
    UnknownStrategyError,
)


def _make(world: Any, **kwargs: Any) -> Combee:
    return Combee(world.metric, **{"max_metric_calls": 20, "reflection_lm": world.proposer_lm, **kwargs})


def _compile(world: Any, student: Any = None, *, combee: Combee | None = None, **sets: Any) -> Any:
    given = {"trainset": world.examples(6), "valset": world.examples(4, start=50), **sets}
    return (combee or _make(world)).compile(world.student() if student is None else student, **given)


def _two(gold: Any, pred: Any) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("kwargs", "error", "argument"),
    [
        ({"max_metric_calls": -1}, ArgumentValueError, "max_metric_calls"),
        ({"max_metric_calls": 0}, ArgumentValueError, "max_metric_calls"),
        ({"max_metric_calls": "10"}, ArgumentTypeError, "max_metric_calls"),
        ({"max_metric_calls": None}, ArgumentValueError, "budget"),
        ({"auto": "light"}, ArgumentValueError, "auto and max_metric_calls"),
        ({"auto": "huge", "max_metric_calls": None}, ArgumentValueError, "auto"),
        ({"budget": 12}, ArgumentTypeError, "budget"),
        ({"reflection_minibatch_size": 0}, ArgumentValueError, "reflection_minibatch_size"),
        ({"reflection_minibatch_size": 3, "controller": "power-law"}, ArgumentValueError, "controller"),
        ({"num_threads": 0}, ArgumentValueError, "num_threads"),
        ({"reflection_lm": None}, ArgumentValueError, "reflection_lm"),
        ({"aggregator": "paralel-scan"}, UnknownStrategyError, "aggregator"),
        ({"aggregator": 3}, ArgumentTypeError, "aggregator"),
        ({"operators": []}, ArgumentValueError, "operators"),
        ({"track_best_outputs": True}, ArgumentValueError, "track_best_outputs"),
        ({"gepa_kwargs": {"max_reflection_cost": 1.0}}, ArgumentValueError, "gepa_kwargs"),
        ({"gepa_kwargs": {"reflection_prompt_template": "x"}}, ArgumentValueError, "gepa_kwargs"),
        ({"gepa_kwargs": {"no_such_argument": 1}}, ArgumentTypeError, "gepa_kwargs"),
    ],
)
def test_constructor(world: Any, kwargs: dict[str, Any], error: type[Exception], argument: str) -> None:
    with pytest.raises(error, match=argument.replace("[", r"\[")) as caught:
        _make(world, **kwargs)
    assert isinstance(caught.value, CombeeError)


def test_unknown_strategy_lists_what_exists(world: Any) -> None:
    with pytest.raises(UnknownStrategyError, match="parallel-scan"):
        _make(world, aggregator="paralel-scan")


@pytest.mark.parametrize("metric", [_two, None, "accuracy", lambda: 1.0])
def test_metric(world: Any, metric: Any) -> None:
    with pytest.raises(TypeError, match="metric"):
        Combee(metric, max_metric_calls=10, reflection_lm=world.proposer_lm)


@pytest.mark.parametrize(
    ("sets", "error", "word"),
    [
        ({"trainset": []}, ArgumentValueError, "trainset"),
        ({"trainset": None}, ArgumentTypeError, "trainset"),
        ({"trainset": [{"question": "a"}]}, ArgumentTypeError, r"trainset\[0\]"),
        ({"trainset": [dspy.Example(question="a", answer="b")]}, ArgumentValueError, "with_inputs"),
        ({"teacher": dspy.Predict("a -> b")}, ArgumentValueError, "teacher"),
    ],
)
def test_splits(world: Any, sets: dict[str, Any], error: type[Exception], word: str) -> None:
    with pytest.raises(error, match=word):
        _compile(world, **sets)
    assert not world.task_lm.requests


@pytest.mark.parametrize("other", ["trainset", "valset"])
def test_heldout_overlap(world: Any, other: str, tmp_path: Path) -> None:
    sets = {"trainset": world.examples(6), "valset": world.examples(4, start=50)}
    heldout = [*world.examples(3, start=80), sets[other][1]]
    combee = _make(world, log_dir=str(tmp_path / "run"))
    with pytest.raises(SplitOverlapError, match=other) as caught:
        _compile(world, combee=combee, heldout=heldout, **sets)
    assert caught.value.shared == 1
    assert isinstance(caught.value, ValueError)
    assert not world.task_lm.requests
    assert not (tmp_path / "run").exists(), "nothing is half-written"


def test_valset_equal_to_trainset_warns_and_supports_no_claim(world: Any, caplog: Any) -> None:
    program = _compile(world, valset=None)
    assert "supports no claim" in caplog.text
    assert not program.combee_report.supports_claims
    caplog.clear()
    program = _compile(world, valset=world.examples(6), heldout=world.examples(3, start=80))
    assert "share 6 rows" in caplog.text
    assert not program.combee_report.supports_claims


@pytest.mark.parametrize("student", [dspy.Predict, "question -> answer", 3])
def test_student_is_no_program(world: Any, student: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="student"):
        _compile(world, student)


def test_student_without_predictors(world: Any) -> None:
    class Empty(dspy.Module):
        def forward(self, question: str) -> Any:
            return dspy.Prediction(answer=question)

    with pytest.raises(ArgumentValueError, match="no predictors"):
        _compile(world, Empty())


@pytest.mark.parametrize("limit", ["rollouts", "calls", "tokens", "dollars", "seconds"])
@pytest.mark.parametrize("value", [-1, 0, float("nan")])
def test_negative_budget(limit: str, value: float) -> None:
    with pytest.raises(CombeeError, match=limit):
        Budget(**{limit: value})


def test_dollars_without_prices(world: Any) -> None:
    with pytest.raises(ArgumentValueError, match="price"):
        _compile(world, combee=_make(world, budget=Budget(dollars=1.0)))
    assert not world.task_lm.requests


@pytest.mark.parametrize("key", [None, "nonsense"])
def test_unreachable_lm_is_found_by_one_probe(world: Any, key: str | None, monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    nowhere = {"api_base": "http://127.0.0.1:9/v1"} if key else {}
    lm = dspy.LM("openai/none", api_key=key, cache=False, num_retries=0, **nowhere)
    with dspy.context(lm=lm), pytest.raises(LMUnreachableError, match="task") as caught:
        _compile(world, combee=_make(world, log_dir=str(tmp_path / "run")))
    assert "nonsense" not in str(caught.value)


def test_a_metric_that_always_raises_is_an_error_of_the_metric(world: Any) -> None:
    def metric(gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> float:
        raise AttributeError("no such field")

    combee = Combee(metric, max_metric_calls=30, reflection_lm=world.proposer_lm)
    with pytest.raises(ArgumentValueError, match="no such field"):
        _compile(world, combee=combee)
