"""Bad input is refused before any LM is called, and GEPA's own arguments are there."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Combee, Costs, Search, Validation, load_benchmark
from combee_dspy.aggregators import SingleCall
from combee_dspy.arguments import _ELSEWHERE
from combee_dspy.costs import Price
from combee_dspy.exceptions import (
    ArgumentTypeError,
    ArgumentValueError,
    CombeeError,
    EmptyTrainsetError,
    LMUnreachableError,
    MissingDistributionError,
)
from combee_dspy.registry import Spec
from tests.worlds import World, examples, metric

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_metric_calls": -1}, "max_metric_calls"),
    ({"max_metric_calls": "10"}, "max_metric_calls"),
    ({"max_metric_calls": None}, "budget"),
    ({"auto": "light"}, "auto and max_metric_calls"),
    ({"auto": "huge", "max_metric_calls": None}, "auto"),
    ({"budget": 12}, "budget"),
    ({"reflection_minibatch_size": 0}, "reflection_minibatch_size"),
    ({"reflection_minibatch_size": 3, "controller": "power-law"}, "controller"),
    ({"num_threads": 0}, "num_threads"),
    ({"cache": True}, "cache is no file"),
    ({"use_mlflow": True, "tracker": "progress"}, "use_mlflow"),
    ({"gepa_kwargs": {"use_cloudpickle": True}}, r"gepa_kwargs\['use_cloudpickle'\]"),
    ({"gepa_kwargs": {"frontier_type": "instances"}}, "frontier_type is unknown"),
    ({"gepa_kwargs": {"use_wandb": True}}, "Give use_wandb to Combee"),
    ({"reflection_lm": None}, "reflection_lm"),
    ({"reflection_lm": "openai/gpt-5"}, r"Give dspy\.LM\('openai/gpt-5'\)"),
    ({"aggregator": "paralel-scan"}, "parallel-scan"),
    ({"operators": []}, "operators"),
    ({"operators": ["insert"], "artifact": "playbook"}, "operators"),
    ({"artifact": "playbook", "search": Search(keep="pareto")}, "search.keep"),
    ({"track_best_outputs": True}, "track_stats"),
    ({"search": {"staleness": 1}}, "search"),
    ({"search": Search(staleness=2), "component_selector": lambda *_: []}, "component_selector"),
    ({"diversity": "char-ngrams"}, "diversity"),
    ({"tracker": "no-such"}, "tracker"),
    ({"nonsense": 1}, "nonsense is no argument of Combee"),
    ({"component_selector": "some"}, "Give one of round_robin, all"),
    ({"candidate_selection_strategy": "luck"}, "candidate_selection_strategy is unknown"),
    ({"max_merge_invocations": 9}, r"Combee\.parity"),
    ({"failure_score": float("nan")}, "failure_score is refused"),
    ({"metric": "accuracy"}, "metric"),
    ({"metric": lambda gold, pred: 1.0}, "metric"),
]


def _names(arguments: object) -> str | None:
    """Name a case by its arguments: addresses of functions differ between processes."""
    return ", ".join(arguments) if isinstance(arguments, dict) else None


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=_names)
def test_an_argument_that_cannot_be_used_is_refused_by_name(
    world: World, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(CombeeError, match=message):
        world.compile(**{"max_metric_calls": 20, **arguments})
    assert not world.asked


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Combee(metric, auto="light", num_thread=4), "num_threads"),
        (lambda: Combee(metric, auto="light", stalenes=1), "staleness"),
        (lambda: Combee(metric, auto="light", aggregator="unoin"), "union"),
        (lambda: Budget(roll=3), "rollouts"),
        (lambda: load_benchmark("formula-mni"), "formula-mini"),
        (lambda: Search(stalenes=1), "staleness"),
        (lambda: Combee(metric, auto="light", threads=4), "num_threads"),
        (lambda: Combee(metric, auto="light", batch_size=8), "reflection_minibatch_size"),
        (lambda: Combee(metric, auto="light", random_seed=4), "seed"),
        (lambda: Combee(metric, auto="light", reflection_model="m"), "reflection_lm"),
    ],
)
def test_a_misspelt_name_gets_the_nearest_one(make: Callable[[], object], name: str) -> None:
    with pytest.raises(CombeeError, match=f"Did you mean '{name}'"):
        make()


@pytest.mark.parametrize("name", ["model", "teacher", "verbose", "max_steps", "num_candidates"])
def test_a_name_that_shares_letters_alone_is_no_suggestion(name: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"{name} is no argument of Combee") as caught:
        Combee(metric, auto="light", **{name: 1})
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ({"num_threads": 4.0}, "Give a whole number."),
        ({"max_metric_calls": 0}, "Give at least 1."),
        ({"failure_score": "low"}, "Give a number, such as 0.5."),
        ({"perfect_score": float("nan")}, "Give a finite number, such as 0.5."),
        ({"auto": "lite"}, "Give one of 'light', 'medium' or 'heavy'."),
        ({"budget": 100}, "Give combee_dspy.Budget(rollouts=…, dollars=…)"),
        ({"guards": {"keep": ("a",)}}, "Give Guards(…), or leave it out."),
        ({"reflection_lm": lambda prompt: [prompt]}, "such as dspy.LM('openai/gpt-5')"),
        ({"track_stats": "perhaps"}, "Give True or False."),
    ],
    ids=_names,
)
def test_an_argument_that_cannot_be_used_says_what_to_give(
    arguments: dict[str, Any], remedy: str
) -> None:
    with pytest.raises(CombeeError) as caught:
        Combee(metric, **arguments)
    assert remedy in str(caught.value)


@pytest.mark.parametrize("name", _ELSEWHERE)
def test_an_argument_of_a_group_or_of_the_past_names_its_place(name: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"{name} has a place of its own") as caught:
        Combee(metric, auto="light", **{name: 1})
    assert _ELSEWHERE[name] in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [{"staleness": 3}, {"staleness": -1}, {"children": 0}, {"screen": 0}, {"keep": "all"}],
    ids=str,
)
def test_options_are_checked_when_they_are_made(options: dict[str, Any]) -> None:
    with pytest.raises(CombeeError, match=next(iter(options))):
        Search(**options)
    with pytest.raises(CombeeError, match="draws"):
        Validation(draws=0)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ({"trainset": []}, EmptyTrainsetError, "trainset"),
        ({"trainset": None}, EmptyTrainsetError, "trainset"),
        ({"trainset": [{"question": "a"}]}, ArgumentTypeError, r"trainset\[0\]"),
        ({"trainset": [dspy.Example(question="a", answer="b")]}, ArgumentValueError, "with_inputs"),
        ({"valset": "rows"}, ArgumentTypeError, "valset"),
        ({"teacher": dspy.Predict("a -> b")}, ArgumentValueError, "teacher"),
        ({"student": "question -> answer"}, ArgumentTypeError, "student"),
        ({"student": dspy.Predict}, ArgumentTypeError, "student"),
        ({"student": dspy.Module()}, ArgumentValueError, "has no predictors"),
    ],
)
def test_data_that_cannot_be_used_is_refused(
    world: World, data: dict[str, Any], error: type[Exception], message: str
) -> None:
    student = dspy.Predict("question -> answer")
    data = {"student": student, "trainset": examples(6), "valset": examples(4, 50), **data}
    with dspy.context(lm=world.task_lm), pytest.raises(error, match=message):
        world.combee().compile(data.pop("student"), **data)
    assert not world.asked


def test_an_lm_that_is_missing_a_name_or_unreachable_is_refused(world: World, service: Any) -> None:
    student = dspy.Predict("question -> answer")
    with pytest.raises(ArgumentValueError, match="no LM answers"):
        World(None, world.proposer_lm).compile(student)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(ArgumentTypeError, match=r"dspy\.settings\.lm is the name of an LM"):
        World("openai/gpt-5", world.proposer_lm).compile(student)  # type: ignore[arg-type]  # as above
    student.lm = "openai/gpt-5"  # type: ignore[assignment]  # as above
    with pytest.raises(ArgumentTypeError, match=r"student\.self\.lm is the name of an LM"):
        world.compile(student)
    # A misspelt model has no price either, which is the lesser reason.
    lm = service.lm(api_base="http://127.0.0.1:9/v1", num_retries=0)
    with pytest.raises(LMUnreachableError):
        world.compile(reflection_lm=lm, budget=Budget(dollars=1.0))


def test_a_program_with_only_an_asynchronous_form_needs_the_asyncio_executor(world: World) -> None:
    class OnlyAsynchronous(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = dspy.Predict("question -> answer")

        async def aforward(self, question: str) -> Any:
            return await self.part.acall(question=question)

    with pytest.raises(ArgumentTypeError, match="Give executor='asyncio'"):
        world.compile(OnlyAsynchronous())
    assert not world.asked


def test_wandb_that_is_not_installed_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDistributionError, match=r"use_wandb=True.*pip install 'wandb'"):
        world.combee(use_wandb=True)


def test_every_argument_of_gepa_is_an_argument_of_combee_with_its_default(world: World) -> None:
    theirs, ours = inspect.signature(dspy.GEPA).parameters, inspect.signature(Combee).parameters
    assert set(theirs) <= set(ours)
    # The one default that differs is documented: the batch size is planned.
    differing = {name for name in theirs if theirs[name].default != ours[name].default}
    assert differing == {"reflection_minibatch_size"}
    compiling = [inspect.signature(kind.compile).parameters.keys() for kind in (dspy.GEPA, Combee)]
    assert compiling[0] <= compiling[1]
    assert world.combee(use_merge=True), "it merges no candidates, and needs no other script"
    parity = Combee.parity(metric, auto="light", reflection_lm=world.proposer_lm)
    assert type(parity) is dspy.GEPA
    with pytest.raises(ArgumentTypeError, match=r"is no argument of dspy\.GEPA"):
        Combee.parity(metric, auto="light", aggregator="union")
    with pytest.raises(ArgumentTypeError, match="Did you mean 'num_threads'"):
        Combee.parity(metric, auto="light", num_thread=4)
    with pytest.raises(
        ArgumentTypeError, match=r"trainse is no argument .* Did you mean 'trainset'"
    ):
        world.combee().compile(dspy.Predict("question -> answer"), trainse=[])
    with pytest.raises(ArgumentTypeError, match=r"Give it to Combee\(…, seed=…\)"):
        world.combee().compile(dspy.Predict("question -> answer"), seed=1)


@pytest.mark.parametrize(
    ("arguments", "staleness"),
    [
        ({}, 2),
        ({"search": Search(keep="trunk")}, 2),
        ({"search": Search(keep="pareto")}, 1),
        ({"candidate_selection_strategy": "current_best"}, 1),
        ({"search": Search(staleness=0)}, 0),
        ({"gepa_kwargs": {"callbacks": [object()]}}, 0),
        ({"component_selector": lambda *_: ["self"]}, 0),
        ({"instruction_proposer": lambda **_: {}}, 0),
    ],
)
def test_updates_overlap_but_beside_parts_written_for_gepas_order(
    world: World, arguments: dict[str, Any], staleness: int
) -> None:
    assert world.combee(**arguments).settings.staleness == staleness


@pytest.mark.parametrize(
    "aggregator",
    [
        "single-call",
        SingleCall(),
        {"name": "single-call"},
        Spec("aggregator", "single-call", {}),
    ],
)
def test_a_strategy_is_named_made_mapped_or_specified(world: World, aggregator: Any) -> None:
    assert world.combee(aggregator=aggregator).settings.aggregator == SingleCall()


def test_settings_have_gepas_names_and_change_as_a_whole(world: World) -> None:
    combee = world.combee(max_metric_calls=40, seed=3)
    assert (combee.metric_fn, combee.seed, combee.max_metric_calls) == (metric, 3, 40)
    combee.get_params()["seed"] = 5
    assert combee.settings.seed == copy.deepcopy(combee).seed == 3
    for name in ("metric_fn", "seed", "gepa_kwargs", "custom_instruction_proposer"):
        with pytest.raises(ArgumentTypeError, match="is a setting and no attribute"):
            setattr(combee, name, None)
    combee.settings = replace(combee.settings, search=Search(keep="pareto"))
    assert combee.settings.keep == "pareto"
    with pytest.raises(ArgumentTypeError, match="is no Settings"):
        combee.settings = "nonsense"  # type: ignore[assignment]  # the error is what is tested
    with pytest.raises(ArgumentValueError, match="auto and max_metric_calls"):
        combee.settings = replace(combee.settings, auto="light")
    assert world.combee(seed=None).settings.seed != world.combee(seed=None).settings.seed
    assert Costs(prices={"m": {"prompt": 1, "completion": 2}}).prices["m"] == Price(1.0, 2.0)  # type: ignore[dict-item]


def test_a_run_without_a_valset_or_held_out_rows_supports_no_claim(world: World) -> None:
    report = world.compile(validation=0, budget=Budget(updates=1)).combee_report
    assert not report.supports_claims
    assert len(report.warnings) == 2


def test_rows_that_stand_twice_are_warned_of(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    train = examples(8)
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        program = world.combee(budget=Budget(updates=1)).compile(
            dspy.Predict("question -> answer"),
            trainset=[*train, *train[:2]],
            valset=train[:3],
            heldout=[*examples(40, 200), *examples(1, 200)],
        )
    assert "2 rows of trainset repeat an earlier row of it" in caplog.text
    assert "valset repeat" not in caplog.text
    warnings = "\n".join(program.combee_report.warnings)
    assert "1 rows of heldout repeat an earlier row of it" in warnings
    assert "valset and trainset share 3 rows: validation scores are biased upwards" in warnings
    assert "trainset repeat" not in warnings
