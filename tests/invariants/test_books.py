"""The books equal the truth: sums over the journal's usage are what the services have counted, role
by role.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Combee, Search, Task, Validation, compile_many
from combee_dspy.evaluation import Judge
from combee_dspy.exceptions import CombeeError
from combee_dspy.rollouts import _patient
from combee_simulator import FailureRates, SimulatedConfig, SimulatedService
from tests.slow import slow_but
from tests.worlds import GATES, TwoSteps, gate_metric, gate_rows, rows

FAILING = FailureRates(
    server_error=0.03, rate_limited=0.03, malformed=0.03, truncated=0.02, retry_after=0.0
)

Services = dict[str, SimulatedService]


def _services(**config: Any) -> Iterator[Services]:
    with (
        SimulatedService(SimulatedConfig(time_scale=0.0, **config), GATES) as task,
        SimulatedService(SimulatedConfig(time_scale=0.0, **config), GATES) as proposer,
        SimulatedService(SimulatedConfig(time_scale=0.0), GATES) as judge,
    ):
        yield {"task": task, "proposer": proposer, "evaluator": judge}


@pytest.fixture(scope="module")
def steady() -> Iterator[Services]:
    yield from _services()


@pytest.fixture(scope="module")
def failing() -> Iterator[Services]:
    yield from _services(failures=FAILING)


class Explained(dspy.Module):
    """Asks twice at once, as some programs do."""

    def __init__(self) -> None:
        super().__init__()
        self.answer = dspy.ChainOfThought("question -> answer")
        self.again = dspy.Predict("question -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        with ThreadPoolExecutor(2) as pool:
            calls = [
                pool.submit(contextvars.copy_context().run, partial(step, question=question))
                for step in (self.answer, self.again)
            ]
        return calls[0].result()


CONFIGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "stale children": {
        "search": Search(staleness=2),
        "operators": ["insert", "few-shot-swap", "rewrite"],
    },
    "trunk": {"search": Search(keep="trunk", staleness=1)},
    "playbook": {"artifact": "playbook"},
    "parallel scan": {"aggregator": "parallel-scan"},
    "asyncio": {"executor": "asyncio"},
    "two predictors": {"student": TwoSteps, "component_selector": "all"},
    "threads of its own": {"student": Explained},
    "draws": {"validation": Validation(draws=2), "temperature": 1.0},
    "finals": {"temperature": 1.0, "budget": Budget(rollouts=90)},
    "no memo": {"cache": False},
    "a budget in calls": {"budget": Budget(calls=50)},
    "a cache of DSPy's": {"dspy_cache": True},
}


def compiled(services: Services, place: Path, **arguments: Any) -> Any:
    for service in services.values():
        service.reset_stats()
    settings = {
        "metric": gate_metric,
        "budget": Budget(epochs=1),
        "reflection_minibatch_size": 6,
        "seed": 2,
        **arguments,
    }
    lm = {
        "temperature": settings.pop("temperature", 0.0),
        "cache": settings.pop("dspy_cache", False),
        "num_retries": 0,
    }
    student = settings.pop("student", None)
    combee = Combee(
        settings.pop("metric"),
        reflection_lm=services["proposer"].lm(**{**lm, "cache": False}),
        tracker=(),
        log_dir=place,
        num_threads=8,
        **settings,
    )
    sets = {"trainset": gate_rows(0, 18), "valset": gate_rows(20, 26), "heldout": gate_rows(30, 36)}
    with dspy.context(lm=services["task"].lm(**lm)):
        return combee.compile(student() if student else dspy.Predict("question -> answer"), **sets)


def books(place: Path) -> dict[str, tuple[int, int, int]]:
    """Return calls that reached a service and tokens by who was asked; a playbook's reflector is
    its proposer.
    """
    counts = {"task": (0, 0, 0), "proposer": (0, 0, 0), "evaluator": (0, 0, 0)}
    for row in rows(
        place,
        "SELECT role, sum(calls - cached) AS calls, sum(prompt_tokens) AS prompt,"
        " sum(completion_tokens) AS completion FROM usage GROUP BY role",
    ):
        role = "proposer" if row["role"] == "reflector" else row["role"]
        add = (row["calls"], row["prompt"], row["completion"])
        counts[role] = tuple(map(sum, zip(counts[role], add, strict=True)))  # type: ignore[assignment]  # three numbers
    return counts


def counted(services: Services) -> dict[str, tuple[int, int, int]]:
    """Return what the services counted, requests that were turned away for a while included."""
    counts = {}
    for role, service in services.items():
        stats = service.stats()
        counts[role] = (stats.calls, stats.prompt_tokens, stats.completion_tokens)
    return counts


@pytest.mark.parametrize("config", slow_but(("stale children", "asyncio"), CONFIGS))
def test_the_books_equal_what_the_services_counted(
    steady: Services, tmp_path: Path, config: str
) -> None:
    report = compiled(steady, tmp_path, **CONFIGS[config]).combee_report
    assert books(tmp_path) == counted(steady)
    assert report.costs.total.calls - report.costs.total.cached == sum(
        calls for calls, _, _ in books(tmp_path).values()
    )
    assert report.costs.total.tokens == sum(sum(value[1:]) for value in books(tmp_path).values())
    keys = [row["key"] for row in rows(tmp_path, "SELECT key FROM effect")]
    assert len(keys) == len(set(keys))


def test_a_judges_calls_are_the_evaluators(steady: Services, tmp_path: Path) -> None:
    base = steady["evaluator"].api_base
    lm = dspy.LM("openai/judge", api_base=base, api_key="none", cache=False, temperature=0.0)
    judge = Judge("Is it right?", lm=lm)
    compiled(steady, tmp_path, metric=judge)
    assert books(tmp_path) == counted(steady)
    assert books(tmp_path)["evaluator"][0] > 20


@pytest.mark.parametrize(
    "config",
    slow_but(
        ("stale children", "a budget in calls"),
        ["plain", "stale children", "playbook", "asyncio", "a budget in calls"],
    ),
)
def test_attempts_that_failed_are_in_the_books(
    failing: Services, tmp_path: Path, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_patient, "pause_after", lambda retry_after, count: 0.001)
    # An outage may end it: the books are exact all the same.
    with contextlib.suppress(CombeeError):
        compiled(failing, tmp_path, **CONFIGS[config])
    assert books(tmp_path) == counted(failing)
    (failed,) = rows(tmp_path, "SELECT sum(errors) AS n FROM usage")
    assert failed["n"] > 0


def test_several_programs_have_books_of_their_own(steady: Services, tmp_path: Path) -> None:
    for service in steady.values():
        service.reset_stats()
    combee = Combee(
        gate_metric,
        reflection_lm=steady["proposer"].lm(),
        budget=Budget(epochs=1),
        reflection_minibatch_size=6,
        tracker=(),
        log_dir=tmp_path,
        num_threads=8,
    )
    tasks = [
        Task(
            name,
            dspy.Predict("question -> answer"),
            gate_rows(start, start + 12),
            gate_rows(80, 86),
        )
        for name, start in (("one", 0), ("two", 20), ("three", 40))
    ]
    with dspy.context(lm=steady["task"].lm()):
        results = compile_many(tasks, combee=combee)
    assert books(tmp_path) == counted(steady)
    shares = [result.report.costs.total.calls for result in results]
    assert sum(shares) == sum(calls for calls, _, _ in counted(steady).values())
    assert all(shares)
