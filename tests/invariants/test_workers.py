"""With a fixed size, or with replayed decisions, results depend on the seed and on what effects
return: not on the number of workers, or on what comes first.
"""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Combee, Diversity, Search
from combee_dspy.diversity import Temperature
from combee_dspy.presets import paper
from combee_dspy.testing import ScriptedRequest
from tests.slow import slow_but
from tests.worlds import (
    TwoSteps,
    World,
    events,
    gate_metric,
    gate_rows,
    in_kind,
    rows,
    task_answer,
)


def unsteady(
    answer: Callable[[ScriptedRequest], str], seed: int
) -> Callable[[ScriptedRequest], str]:
    """Answer after a time that is another one in each run."""
    stream, lock = random.Random(seed), threading.Lock()

    def slowly(request: ScriptedRequest) -> str:
        with lock:
            seconds = stream.choice((0.0, 0.0, 0.001, 0.006))
        time.sleep(seconds)
        return answer(request)

    return slowly


def sampling(request: ScriptedRequest) -> str:
    """Forget some rules, others at other temperatures."""
    rules = list(dict.fromkeys(re.findall(r"Rule: the word for \w+ is \w+", request.text)))
    drawn = [
        rule for rule in rules if random.Random(f"{rule} {request.temperature}").random() < 0.6
    ]
    if "new_instruction" in request.text:
        return in_kind(request, {"new_instruction": "Give the code word.\n" + "\n".join(drawn)})
    return in_kind(request, {"lessons": drawn})


class ByState:
    """A component selector that decides by what gepa's state holds when it is asked."""

    def __call__(
        self, state: Any, trajectories: Any, scores: Any, index: int, candidate: dict[str, str]
    ) -> list[str]:
        names = sorted(candidate)
        return [names[(len(state.program_candidates) + state.i) % len(names)]]


CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "stale": {"search": Search(staleness=1)},
    "staler": {"search": Search(staleness=2), "operators": ["insert", "rewrite"]},
    "children": {
        "operators": ["insert", "few-shot-swap", "rewrite", "reorder"],
        "search": Search(children=2),
    },
    "stale children": {
        "operators": ["insert", "few-shot-swap", "rewrite", "reorder"],
        "search": Search(children=2, staleness=2),
    },
    "trunk": {"search": Search(keep="trunk")},
    "stale trunk": {
        "search": Search(keep="trunk", staleness=2),
        "operators": ["insert", "few-shot-swap"],
    },
    "a trunk with comparisons and tests of lines": {
        "search": Search(keep="trunk", staleness=1),
        "aggregator": "reference-scan",
        "budget": Budget(rollouts=120),
    },
    "temperatures": {
        "search": Search(staleness=1),
        "diversity": Diversity(temperature=Temperature(0.1, 1.0)),
        "candidate_selection_strategy": "epsilon_greedy",
    },
    "trunk temperatures": {
        "search": Search(keep="trunk", staleness=1),
        "diversity": Diversity(temperature=Temperature(0.1, 1.0)),
    },
    "memory": {"artifact": "memory", "budget": Budget(epochs=3)},
    "the paper's algorithm": {**paper(), "controller": None},
    "a budget in rollouts": {"search": Search(staleness=2), "budget": Budget(rollouts=90)},
    "two predictors": {
        "student": TwoSteps,
        "search": Search(staleness=1),
        "budget": Budget(rollouts=150),
    },
    "no valset": {"validation": 0, "search": Search(staleness=1)},
    "own parts": {
        "student": TwoSteps,
        "component_selector": ByState(),
        "budget": Budget(epochs=2),
    },
    "own parts, children": {
        "student": TwoSteps,
        "search": Search(children=2),
        "operators": ["insert", "rewrite", "reorder"],
        "component_selector": ByState(),
        "gepa_kwargs": {"stop_callbacks": [lambda state: state.i > 5]},
        "budget": Budget(rollouts=150),
    },
}


def run(place: Path, workers: int | None, jitter: int, **arguments: Any) -> dict[str, Any]:
    world = World.made(unsteady(task_answer, jitter), unsteady(sampling, jitter + 1))
    student = arguments.pop("student", None)
    settings = {
        "budget": Budget(epochs=1.5),
        "reflection_minibatch_size": 5,
        "skip_perfect_score": False,
        **arguments,
    }
    program = world.compile(
        student and student(),
        log_dir=place,
        num_threads=workers,
        track_stats=True,
        **{"validation": 6, "train": 20, **settings},
    )
    report, results = program.combee_report, program.detailed_results
    return {
        "program": program.dump_state(),
        "reason": report.reason,
        "rollouts": report.rollouts,
        "updates": report.updates,
        "scores": results.val_aggregate_scores,
        "parents": results.parents,
        "discovered": results.discovery_eval_counts,
        "candidates": [
            (event["step"], event["operator"], event["candidate"], event["parents"])
            for event in events(place, "candidate")
        ],
        "refused": sorted(
            (event["step"], event["operator"], event["reason"])
            for event in events(place, "refused")
        ),
        "screened": sorted(
            (event["step"], event["candidate"], event["score"])
            for event in events(place, "screened")
        ),
        # What was bought, and what was decided without the clock.
        "effects": sorted(row["key"] for row in rows(place, "SELECT key FROM effect")),
    }


@pytest.mark.parametrize("case", slow_but(("plain", "stale children"), CASES))
def test_the_number_of_workers_changes_nothing(tmp_path: Path, case: str) -> None:
    outcomes = [
        run(tmp_path / str(workers), workers, jitter, **CASES[case])
        for jitter, workers in enumerate((1, 8, 64, None))
    ]
    assert len(outcomes[0]["candidates"]) > 2
    for other in outcomes[1:]:
        for what, reference in outcomes[0].items():
            assert other[what] == reference, what


def test_the_executor_changes_nothing(tmp_path: Path) -> None:
    arguments = {"search": Search(staleness=1), "operators": ["insert", "rewrite"]}
    threads = run(tmp_path / "threads", 8, 3, **arguments)
    loop = run(tmp_path / "loop", 8, 4, **arguments, executor="asyncio")
    assert loop == threads


@pytest.mark.slow
def test_planned_sizes_follow_the_clock_and_everything_else_follows_from_them(
    tmp_path: Path,
) -> None:
    """The same decisions, taken again, give the same programs with another number of workers."""
    arguments = {"reflection_minibatch_size": None, "budget": Budget(epochs=2), "train": 60}
    first = run(tmp_path / "first", 8, 1, **{**arguments, "search": Search(staleness=1)})
    for jitter, workers in enumerate((2, 32, None), start=9):
        place = tmp_path / str(workers)
        search = Search(staleness=1, replay=str(tmp_path / "first"))
        again = run(place, workers, jitter, **{**arguments, "search": search})
        assert [event["size"] for event in events(place, "batch")] == [
            event["size"] for event in events(tmp_path / "first", "batch")
        ]
        assert again == first


@pytest.mark.parametrize("keep", slow_but(("trunk",), ["pareto", "trunk"]))
def test_the_simulated_service_and_a_playbook(service: Any, tmp_path: Path, keep: str) -> None:
    artifact = "playbook" if keep == "trunk" else "instruction"
    outcomes = []
    for workers in (1, 64):
        combee = Combee(
            gate_metric,
            reflection_lm=service.lm(),
            budget=Budget(epochs=1),
            search=Search(staleness=1),
            seed=3,
            artifact=artifact,
            reflection_minibatch_size=4,
            tracker=(),
            num_threads=workers,
            log_dir=tmp_path / str(workers),
        )
        with dspy.context(lm=service.lm()):
            program = combee.compile(
                dspy.Predict("question -> answer"),
                trainset=gate_rows(0, 24),
                valset=gate_rows(24, 36),
            )
        sizes = [
            (event["step"], event["candidate"])
            for event in events(tmp_path / str(workers), "candidate")
        ]
        outcomes.append((program.dump_state(), sizes, program.combee_report.texts))
    assert outcomes[0] == outcomes[1]
    assert len(outcomes[0][1]) > 2
