"""One error for each kind of bad input, before anything is bought."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Combee
from combee_dspy.aggregators import Aggregator, SingleCall
from combee_dspy.costs import Price
from combee_dspy.exceptions import (
    ArgumentTypeError,
    ArgumentValueError,
    CombeeError,
    LMUnreachableError,
    SplitOverlapError,
    UnknownStrategyError,
)
from combee_dspy.registry import Spec
from combee_dspy.rollouts import Executor
from combee_dspy.tracking import Hook


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
        ({"gepa_kwargs": {"seed": 99}}, ArgumentValueError, "Give seed to Combee"),
        ({"gepa_kwargs": {"valset": []}}, ArgumentValueError, r"Give valset to compile\(\)"),
        ({"gepa_kwargs": {"module_selector": "all"}}, ArgumentValueError, "component_selector"),
        ({"gepa_kwargs": {"reflection_minibatch_size": 4}}, ArgumentValueError, "reflection_minibatch_size"),
        ({"gepa_kwargs": {"perfect_score": 5}}, ArgumentValueError, "perfect_score"),
        ({"gepa_kwargs": {"run_dir": "x"}}, ArgumentValueError, "log_dir"),
        ({"prices": {"openai/mine": 0.5}}, ArgumentTypeError, "prices"),
        ({"prices": [1.0]}, ArgumentTypeError, "prices"),
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


def test_gepas_own_name_of_its_default_sampler_asks_for_nothing(world: Any) -> None:
    kwargs = {"gepa_kwargs": {"batch_sampler": "epoch_shuffled"}}
    assert not _make(world, **kwargs, reflection_minibatch_size=3).gepa_kwargs
    assert not _make(world, **kwargs).gepa_kwargs


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("aggregator", "parallel-scan"),
        ("operators", ["insert"]),
        ("controller", "power-law"),
        ("instruction_proposer", lambda **_: {}),
    ],
)
def test_parity_refuses_what_is_none(world: Any, name: str, value: Any) -> None:
    with pytest.raises(ArgumentValueError, match=name):
        Combee.parity(world.metric, max_metric_calls=10, reflection_lm=world.proposer_lm, **{name: value})


def test_parity_needs_a_size_and_probes_nothing(world: Any) -> None:
    given = {"max_metric_calls": 10, "reflection_lm": world.proposer_lm}
    with pytest.raises(ArgumentValueError, match="reflection_minibatch_size"):
        Combee.parity(world.metric, **given, reflection_minibatch_size=None)
    made = Combee.parity(world.metric, **given)
    assert made.like_gepa
    assert not made.probe
    assert Combee.parity(world.metric, **given, probe=True).probe


def test_a_single_call_with_a_limit_of_its_own_is_no_parity(world: Any) -> None:
    limited = _make(world, aggregator=SingleCall(max_call_tokens=500), reflection_minibatch_size=3)
    assert not limited.like_gepa


def test_only_lms_that_a_predictor_uses_are_probed(world: Any) -> None:
    """An unreachable global LM harms nobody where every predictor has its own."""
    student = world.student()
    student.lm = world.task_lm
    nowhere = dspy.LM("openai/none", api_key="x", api_base="http://127.0.0.1:9/v1", cache=False, num_retries=0)
    with dspy.context(lm=nowhere):
        report = _compile(world, student).combee_report
    assert report.models == {"task": "scripted/task", "proposer": "scripted/proposer"}
    student.lm = nowhere
    with pytest.raises(LMUnreachableError, match="task"):
        _compile(world, student)


def test_a_predictors_model_needs_a_price(world: Any) -> None:
    student = world.student()
    student.lm = dspy.LM("openai/unheard-of", api_key="x", cache=False)
    combee = _make(world, budget=Budget(dollars=1.0), prices={"scripted/proposer": Price(0, 0)})
    with pytest.raises(ArgumentValueError, match="openai/unheard-of"):
        _compile(world, student, combee=combee)


def test_a_simulated_service_supports_no_claim(world: Any) -> None:
    world.task_lm.model = "openai/simulated"
    report = _compile(world, heldout=world.examples(4, start=80)).combee_report
    assert not report.supports_claims
    assert any("measure no language model" in warning for warning in report.warnings)
    assert report.models["task"] == "openai/simulated"


def test_hooks_are_closed_when_the_executor_cannot_start(world: Any) -> None:
    class Broken(Executor):
        name = "broken"

        def start(self, workers: int) -> Any:
            raise RuntimeError("no cluster")

    class Closed(Hook):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    hook = Closed()
    with pytest.raises(RuntimeError, match="no cluster"):
        _compile(world, combee=_make(world, executor=Broken(), hooks=[hook]))
    assert hook.closed == 1


def test_an_error_of_a_strategy_is_raised_even_when_another_stop_comes_first(world: Any) -> None:
    class Failing(Aggregator):
        name = "failing"

        def aggregate(self, reflections: Any, context: Any) -> Any:
            stopped.append(True)
            raise KeyError("a bug of the plugin")

    stopped: list[bool] = []
    stop = {"stop_callbacks": lambda state: bool(stopped)}
    with pytest.raises(KeyError, match="a bug of the plugin"):
        _compile(world, combee=_make(world, aggregator=Failing(), gepa_kwargs=stop))


@pytest.mark.parametrize(
    "strategy", [Spec("aggregator", "union", {"copies": "three"}), Spec("aggregator", "top-k", {"k": "many"})]
)
def test_a_parameter_of_another_type_names_the_strategy(world: Any, strategy: Spec) -> None:
    with pytest.raises(ArgumentTypeError, match=strategy.name):
        Combee(world.metric, max_metric_calls=10, aggregator=strategy)
