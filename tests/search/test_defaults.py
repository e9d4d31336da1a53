"""What a run is without further arguments, and which arguments get GEPA's search without asking."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gepa.strategies.candidate_selector import CurrentBestCandidateSelector

from combee_dspy import Diversity, Guards, Search
from combee_dspy.diversity import CharNgrams, Restart, Temperature
from combee_dspy.exceptions import ArgumentValueError
from tests.worlds import World, rows

ONLY_GEPAS: dict[str, dict[str, Any]] = {
    "proposer": {"instruction_proposer": lambda **_: {}},
    "selector by name": {"candidate_selection_strategy": "current_best"},
    "selector": {"candidate_selection_strategy": CurrentBestCandidateSelector()},
    "frontier": {"gepa_kwargs": {"frontier_type": "objective"}},
    "callbacks": {"gepa_kwargs": {"callbacks": [object()]}},
    "stoppers": {"gepa_kwargs": {"stop_callbacks": [lambda state: False]}},
    "operators": {"operators": ["insert", "few-shot-swap"]},
    "rewrite": {"operators": ["rewrite"]},
    "children": {"search": Search(children=1)},
    "screen": {"search": Search(screen=4)},
    "restart": {"diversity": Diversity(restart=Restart(min_progress=0.01))},
    "embedder": {"diversity": Diversity(embedder=CharNgrams(), threshold=0.9)},
    "likeness": {"diversity": Diversity(recent=8)},
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
            "component_selector": "all",
            "auto": "light",
        },
        {"operators": "insert", "aggregator": "union"},
        {"artifact": "playbook", "skip_perfect_score": False},
        {"diversity": False},
        {"diversity": Diversity(temperature=Temperature())},
    ],
    ids=["gepas arguments", "what serves the book", "playbook", "no diversity", "temperature"],
)
def test_what_a_trunk_can_use_changes_nothing(world: World, arguments: dict[str, Any]) -> None:
    assert world.combee(**arguments).settings.keep == "trunk"


@pytest.mark.parametrize("arguments", ONLY_GEPAS.values(), ids=ONLY_GEPAS)
def test_what_only_gepas_search_can_use_gets_it(world: World, arguments: dict[str, Any]) -> None:
    assert world.combee(**arguments).settings.keep == "pareto"


IGNORED = {
    "proposer": "instruction_proposer",
    "selector by name": "candidate_selection_strategy",
    "selector": "candidate_selection_strategy",
    "callbacks": "gepa_kwargs['callbacks']",
    "frontier": "gepa_kwargs['frontier_type']",
    "children": "search.children",
    "screen": "search.screen",
    "restart": "diversity.restart",
    "embedder": "diversity",
    "likeness": "diversity",
}


@pytest.mark.parametrize("name", IGNORED)
@pytest.mark.parametrize("artifact", ["instruction", "playbook"])
def test_what_a_trunk_or_a_playbook_would_ignore_is_refused_by_name(
    world: World, name: str, artifact: str
) -> None:
    arguments = dict(ONLY_GEPAS[name])
    if artifact == "instruction":
        arguments["search"] = replace(arguments.get("search", Search()), keep="trunk")
    remedy = "keep='pareto'" if artifact == "instruction" else "Leave it out: artifact 'playbook'"
    with pytest.raises(ArgumentValueError, match="no use to a trunk") as refused:
        world.combee(artifact=artifact, **arguments)
    assert refused.value.argument == IGNORED[name]
    assert remedy in refused.value.remedy


@pytest.mark.parametrize(
    ("guards", "argument"),
    [
        (Guards(max_tokens=500), "guards.max_tokens"),
        (Guards(keep=("Be kind.",)), "guards.keep"),
        (Guards(max_copied_words=30), "guards.max_copied_words"),
    ],
)
def test_a_playbook_refuses_guards_of_instructions(
    world: World, guards: Guards, argument: str
) -> None:
    with pytest.raises(ArgumentValueError, match="holds for instructions alone") as refused:
        world.combee(artifact="playbook", guards=guards)
    assert refused.value.argument == argument
