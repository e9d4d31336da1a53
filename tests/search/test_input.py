"""One error for each kind of bad input, before anything is bought; and GEPA's own names, as they
are there.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Combee, Search, Validation
from combee_dspy.aggregators import SingleCall
from combee_dspy.arguments import _ELSEWHERE
from combee_dspy.exceptions import (
    ArgumentError,
    ArgumentTypeError,
    ArgumentValueError,
    CombeeError,
    EmptyTrainsetError,
    UnknownStrategyError,
)
from combee_dspy.registry import Spec
from tests.worlds import World, examples, metric


def two(gold: Any, pred: Any) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("given", "error", "argument"),
    [
        ({"max_metric_calls": -1}, ArgumentValueError, "max_metric_calls"),
        ({"max_metric_calls": "10"}, ArgumentTypeError, "max_metric_calls"),
        ({"max_metric_calls": True}, ArgumentTypeError, "max_metric_calls"),
        ({"max_metric_calls": None}, ArgumentValueError, "budget"),
        ({"auto": "light"}, ArgumentValueError, "auto and max_metric_calls"),
        ({"auto": "huge", "max_metric_calls": None}, ArgumentValueError, "auto"),
        ({"budget": 12}, ArgumentTypeError, "budget"),
        ({"reflection_minibatch_size": 0}, ArgumentValueError, "reflection_minibatch_size"),
        (
            {"reflection_minibatch_size": 3, "controller": "power-law"},
            ArgumentValueError,
            "controller",
        ),
        ({"num_threads": 0}, ArgumentValueError, "num_threads"),
        ({"cache": True}, ArgumentTypeError, "cache is no file"),
        ({"use_mlflow": True, "tracker": "progress"}, ArgumentValueError, "use_mlflow"),
        (
            {"gepa_kwargs": {"use_cloudpickle": True}},
            ArgumentValueError,
            r"gepa_kwargs\['use_cloudpickle'\]",
        ),
        ({"reflection_lm": None}, ArgumentValueError, "reflection_lm"),
        ({"aggregator": "paralel-scan"}, UnknownStrategyError, "parallel-scan"),
        ({"aggregator": 3}, ArgumentTypeError, "aggregator"),
        ({"operators": []}, ArgumentValueError, "operators"),
        ({"operators": ["insert"], "artifact": "playbook"}, ArgumentValueError, "operators"),
        (
            {"artifact": "playbook", "search": Search(keep="pareto")},
            ArgumentValueError,
            "search.keep",
        ),
        ({"track_best_outputs": True}, ArgumentValueError, "track_stats"),
        ({"search": {"staleness": 1}}, ArgumentTypeError, "search"),
        ({"validation_options": 3}, ArgumentTypeError, "validation"),
        ({"guards": []}, ArgumentTypeError, "guards"),
        ({"diversity": "char-ngrams"}, ArgumentTypeError, "diversity"),
        ({"costs": [1.0]}, ArgumentTypeError, "costs"),
        ({"tracker": "no-such"}, UnknownStrategyError, "tracker"),
        ({"nonsense": 1}, ArgumentTypeError, "nonsense is no argument of Combee"),
        ({"component_selector": "some"}, ArgumentValueError, "component_selector"),
        (
            {"candidate_selection_strategy": "luck"},
            ArgumentValueError,
            "candidate_selection_strategy",
        ),
    ],
)
def test_constructor(
    world: World, given: dict[str, Any], error: type[Exception], argument: str
) -> None:
    with pytest.raises(error, match=argument) as caught:
        world.compile(**{"max_metric_calls": 20, **given})
    assert isinstance(caught.value, CombeeError)
    assert not world.asked


@pytest.mark.parametrize(
    ("make", "meant"),
    [
        (lambda: Combee(metric, auto="light", num_thread=4), "num_threads"),
        (lambda: Combee(metric, auto="light", stalenes=1), "staleness"),
        (lambda: Combee(metric, auto="light", aggregator="unoin"), "union"),
        (lambda: Budget(roll=3), "rollouts"),
        (lambda: Search(stalenes=1), "staleness"),
    ],
)
def test_a_misspelt_name_gets_the_nearest_one(make: Callable[[], object], meant: str) -> None:
    with pytest.raises(CombeeError, match=f"Did you mean '{meant}'"):
        make()


def test_without_an_lm_nothing_runs(world: World) -> None:
    ran: list[object] = []
    program = dspy.Predict("question -> answer")
    program.forward = lambda **inputs: ran.append(inputs)
    with dspy.context(lm=None), pytest.raises(ArgumentValueError, match="no LM answers"):
        world.combee(max_metric_calls=20).compile(
            program, trainset=examples(6), valset=examples(4, 50)
        )
    assert not ran


@pytest.mark.parametrize("name", _ELSEWHERE)
def test_an_argument_that_is_grouped_or_of_the_past_names_its_place(name: str) -> None:
    with pytest.raises(ArgumentTypeError, match=f"{name} has a place of its own") as caught:
        Combee(metric, auto="light", **{name: 1})
    assert _ELSEWHERE[name] in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"staleness": 3},
        {"staleness": -1},
        {"children": 0},
        {"screen": 0},
        {"keep": "all"},
        {"x": 1},
    ],
)
def test_options_are_checked_when_they_are_made(given: dict[str, Any]) -> None:
    with pytest.raises(CombeeError, match=next(iter(given))):
        Search(**given)
    with pytest.raises(CombeeError, match="draws"):
        Validation(draws=0)
    assert Search(staleness=1) == Search(staleness=1) != Search()


@pytest.mark.parametrize("given", [two, None, "accuracy", lambda: 1.0])
def test_metric(given: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="metric"):
        Combee(given, max_metric_calls=10)


@pytest.mark.parametrize(
    ("sets", "error", "word"),
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
def test_compile(world: World, sets: dict[str, Any], error: type[Exception], word: str) -> None:
    given = {
        "student": dspy.Predict("question -> answer"),
        "trainset": examples(6),
        "valset": examples(4, 50),
        **sets,
    }
    with dspy.context(lm=world.task_lm), pytest.raises(error, match=word):
        world.combee().compile(given.pop("student"), **given)
    assert not world.asked


def test_every_argument_of_gepa_is_an_argument_of_combee_with_its_default() -> None:
    theirs, ours = inspect.signature(dspy.GEPA).parameters, inspect.signature(Combee).parameters
    assert set(theirs) <= set(ours)
    # The one default that differs is documented: the batch size is planned.
    differing = {name for name in theirs if theirs[name].default != ours[name].default}
    assert differing == {"reflection_minibatch_size"}
    assert (
        inspect.signature(dspy.GEPA.compile).parameters.keys()
        <= inspect.signature(Combee.compile).parameters.keys()
    )


def test_updates_overlap_but_beside_what_is_written_for_gepas_order(world: World) -> None:
    def of(**given: Any) -> int | None:
        return Combee(
            metric, auto="light", reflection_lm=world.proposer_lm, **given
        ).settings.staleness

    assert of() == of(search=Search(keep="trunk")) == 2
    assert of(search=Search(keep="pareto")) == of(candidate_selection_strategy="current_best") == 1
    assert of(search=Search(staleness=0)) == of(gepa_kwargs={"callbacks": [object()]}) == 0
    assert of(component_selector=lambda *given: ["self"]) == 0
    assert of(instruction_proposer=lambda **given: {}) == 0
    with pytest.raises(ArgumentValueError, match="component_selector is written for one after"):
        of(search=Search(staleness=2), component_selector=lambda *given: ["self"])


def test_this_loop_merges_no_candidates_and_says_who_does(world: World) -> None:
    assert Combee(metric, auto="light", reflection_lm=world.proposer_lm, use_merge=True)
    with pytest.raises(ArgumentValueError, match=r"Combee\.parity"):
        Combee(metric, auto="light", reflection_lm=world.proposer_lm, max_merge_invocations=9)


def test_parity_is_gepa_itself(world: World) -> None:
    made = Combee.parity(metric, auto="light", reflection_lm=world.proposer_lm)
    assert type(made) is dspy.GEPA
    with pytest.raises(ArgumentTypeError, match=r"is no argument of dspy\.GEPA"):
        Combee.parity(metric, auto="light", aggregator="union")


def test_strategies_by_name_object_mapping_and_spec(world: World) -> None:
    for given in (
        "single-call",
        SingleCall(),
        {"name": "single-call"},
        Spec("aggregator", "single-call", {}),
    ):
        assert world.combee(aggregator=given).settings.aggregator == SingleCall()
    combee = world.combee(operators="insert", tracker=())
    assert [one.name for one in combee.settings.operators] == ["insert"]
    assert combee.settings.trackers == ()
    params = combee.get_params()
    params["seed"] = 5
    assert combee.settings.seed == 0
    assert world.combee(seed=None).settings.seed != world.combee(seed=None).settings.seed


def test_a_setting_is_changed_in_the_settings_or_refused(world: World) -> None:
    combee = world.combee()
    with pytest.raises(ArgumentTypeError, match="is a setting and no attribute"):
        combee.seed = 5
    combee.settings = replace(combee.settings, seed=5)
    assert combee.settings.seed == 5


def test_a_run_without_a_valset_or_held_out_rows_supports_no_claim(world: World) -> None:
    report = world.compile(validation=0, budget=Budget(updates=1)).combee_report
    assert not report.supports_claims
    assert len(report.warnings) == 2
    shared = examples(6)
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        program = world.combee(budget=Budget(updates=1)).compile(
            dspy.Predict("question -> answer"),
            trainset=shared,
            valset=shared[:3],
            heldout=examples(40, 200),
        )
    (warning,) = program.combee_report.warnings
    assert warning.startswith(
        "valset and trainset share 3 rows: validation scores are biased upwards"
    )


def test_rows_that_repeat_are_told_and_spoil_a_held_out_set(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with dspy.context(lm=world.task_lm):
        report = (
            world.combee(max_metric_calls=60)
            .compile(
                dspy.Predict("question -> answer"),
                trainset=[*examples(8), *examples(2)],
                valset=examples(6, 100),
                heldout=[*examples(4, 200), *examples(1, 200)],
            )
            .combee_report
        )
    assert "2 rows of trainset repeat an earlier row of it" in caplog.text
    assert "1 rows of heldout repeat an earlier row of it" in caplog.text
    assert "valset repeat" not in caplog.text
    assert not any("trainset repeat" in text for text in report.warnings)
    assert any("heldout repeat" in text for text in report.warnings)


def test_a_changed_setting_is_checked_and_what_follows_from_it_follows() -> None:
    combee = World.made().combee(max_metric_calls=40)
    search = Search(keep="pareto")
    combee.settings = replace(combee.settings, search=search)
    assert combee.settings.keep == "pareto"
    with pytest.raises(ArgumentTypeError, match="is no Settings"):
        combee.settings = "nonsense"  # type: ignore[assignment]  # the error is what is tested
    with pytest.raises(ArgumentValueError, match="auto and max_metric_calls"):
        combee.settings = replace(combee.settings, auto="light")


def test_settings_are_read_by_the_names_that_gepa_has_for_them() -> None:
    combee = World.made().combee(max_metric_calls=40, seed=3)
    assert (combee.metric_fn, combee.seed, combee.max_metric_calls) == (metric, 3, 40)
    assert not hasattr(combee, "no_such_setting")
    for name in ("metric_fn", "seed", "gepa_kwargs", "custom_instruction_proposer"):
        with pytest.raises(ArgumentTypeError, match="is a setting"):
            setattr(combee, name, None)
    assert copy.deepcopy(combee).seed == 3


@pytest.mark.parametrize("score", [float("-inf"), float("nan"), None, "0"])
def test_a_score_that_no_journal_holds_is_refused(score: object) -> None:
    with pytest.raises(ArgumentError, match="failure_score is refused"):
        Combee(metric, max_metric_calls=40, failure_score=score)  # type: ignore[arg-type]  # as above
