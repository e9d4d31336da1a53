"""What a run is without further arguments, and which arguments get GEPA's search without asking."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gepa.strategies.candidate_selector import CurrentBestCandidateSelector

from combee_dspy import Budget, Diversity, Guards, Search, Validation
from combee_dspy.controllers import PowerLaw
from combee_dspy.diversity import CharNgrams, Restart, Temperature
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.presets import brief, paper
from tests.worlds import World, examples, metric, rows

ONLY_GEPAS: dict[str, dict[str, Any]] = {
    "anchors": {"guards": Guards(anchors=examples(2))},
    "proposer": {"instruction_proposer": lambda **_: {}},
    "selector by name": {"candidate_selection_strategy": "current_best"},
    "selector": {"candidate_selection_strategy": CurrentBestCandidateSelector()},
    "acceptance": {"gepa_kwargs": {"acceptance_criterion": "improvement_or_equal"}},
    "callbacks": {"gepa_kwargs": {"callbacks": [object()]}},
    "stoppers": {"gepa_kwargs": {"stop_callbacks": [lambda state: False]}},
    "operators": {"operators": ["insert", "few-shot-swap"]},
    "rewrite": {"operators": ["rewrite"]},
    "children": {"search": Search(children=1)},
    "screen": {"search": Search(screen=4)},
    "finalists": {"validation": Validation(finalists=1)},
    "restart": {"diversity": Diversity(restart=Restart(min_progress=0.01))},
    "embedder": {"diversity": Diversity(embedder=CharNgrams(), threshold=0.9)},
    "likeness": {"diversity": Diversity(recent=8)},
    "merges": {"max_merge_invocations": 9},
}


def test_a_run_grows_one_text_by_the_reference_scan(world: World, tmp_path: Path) -> None:
    report = world.compile(log_dir=tmp_path).combee_report
    (run,) = rows(tmp_path, "SELECT description ->> '$.keep' AS keep FROM run")
    assert (run["keep"], report.specs["aggregator"]["name"]) == ("trunk", "reference-scan")
    assert report.best_score > report.seed_score


@pytest.mark.parametrize(
    "budget", [{"max_metric_calls": 24}, {"max_metric_calls": 40}, {"max_full_evals": 1}], ids=str
)
def test_a_small_budget_still_learns(world: World, budget: dict[str, int]) -> None:
    # What is set aside to test lines is a part of the budget, and leaves room for an update.
    report = world.compile(
        train=12, validation=6, reflection_minibatch_size=4, **budget
    ).combee_report
    assert report.updates >= 1
    assert report.best_score > report.seed_score


@pytest.mark.parametrize(
    "arguments",
    [
        {
            "reflection_minibatch_size": 3,
            "use_merge": False,
            "component_selector": "all",
            "auto": "light",
        },
        {"operators": "insert", "aggregator": "union"},
        {"artifact": "playbook", "validation": Validation(finalists=1)},
        {"diversity": False},
        {"diversity": Diversity(temperature=Temperature())},
    ],
    ids=["gepas arguments", "what serves the book", "playbook", "no diversity", "temperature"],
)
def test_what_a_trunk_can_use_changes_nothing(world: World, arguments: dict[str, Any]) -> None:
    assert world.combee(**arguments).keeps == "trunk"


@pytest.mark.parametrize("arguments", ONLY_GEPAS.values(), ids=ONLY_GEPAS)
def test_what_only_gepas_search_can_use_gets_it(world: World, arguments: dict[str, Any]) -> None:
    assert world.combee(**arguments).keeps == "pareto"


@pytest.mark.parametrize("name", ["anchors", "proposer", "selector", "acceptance", "callbacks"])
def test_a_trunk_that_was_asked_for_refuses_it(world: World, name: str) -> None:
    with pytest.raises(ArgumentValueError, match="no use to a trunk"):
        world.combee(**ONLY_GEPAS[name], search=Search(keep="trunk"))


def test_presets_of_gepas_search_say_so() -> None:
    assert brief(metric, metric, serial_rollouts=1, serial_score=0.0)["search"].keep == "pareto"
    assert paper()["search"].keep == "pareto"


def test_the_papers_preset_learns_by_the_papers_parts(world: World) -> None:
    combee = world.combee(**paper(), budget=Budget(rollouts=120))
    assert (combee.keeps, combee.search.staleness, combee.aggregator.name) == (
        "pareto",
        0,
        "parallel-scan",
    )
    assert combee.aggregator.placement == "plain"
    assert combee.controller == PowerLaw(profile=3)
    report = world.compile(**paper(), budget=Budget(rollouts=120)).combee_report
    assert report.best_score > report.seed_score
