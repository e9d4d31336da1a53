"""Whatever raises, wherever: a run ends with that error, hangs on nothing, and keeps what it has
paid for.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import LMRateLimitError, LMServerError

from combee_dspy import Budget, Diversity, Search
from combee_dspy.aggregators import Aggregator
from combee_dspy.artifacts import Instruction
from combee_dspy.controllers import BatchController
from combee_dspy.diversity import Embedder
from combee_dspy.exceptions import InfrastructureError, TooManyFailuresError
from combee_dspy.operators import Operator
from combee_dspy.rollouts import _patient
from combee_dspy.stopping import StoppingRule
from tests.slow import slow_but
from tests.worlds import TwoSteps, World, examples, proposer_answer, rows, task_answer


class Bug(Exception):  # noqa: N818 - a part of the user's own
    """The error of a part of the user's own."""


def fail(*_: Any, **__: Any) -> Any:
    raise Bug


def broken(base: type, method: str) -> Any:
    """Return a strategy of a kind whose one method raises."""
    return type("Broken", (base,), {"name": "broken", method: fail})()


class BrokenSelector:
    select_candidate_idx = fail


STAGES: dict[str, dict[str, Any]] = {
    "aggregator": {"aggregator": broken(Aggregator, "aggregate")},
    "operator": {"operators": [broken(Operator, "apply")]},
    "controller": {
        "controller": broken(BatchController, "plan"),
        "reflection_minibatch_size": None,
    },
    "embedder": {"diversity": Diversity(embedder=broken(Embedder, "embed"), threshold=0.9)},
    "rule": {"budget": broken(StoppingRule, "check")},
    "selector": {"candidate_selection_strategy": BrokenSelector(), "search": Search()},
    "stopper": {"gepa_kwargs": {"stop_callbacks": [fail]}, "search": Search()},
}


@pytest.mark.parametrize("staleness", slow_but((2,), [0, 2]))
@pytest.mark.parametrize("stage", STAGES)
def test_a_part_that_raises_ends_the_run_with_its_error(
    tmp_path: Path, stage: str, staleness: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = World.made()
    options = {
        "reflection_minibatch_size": 6,
        "search": Search(staleness=staleness),
        **STAGES[stage],
    }
    options = {name: value for name, value in options.items() if value is not None}
    with caplog.at_level(logging.ERROR, logger="asyncio"), pytest.raises(Bug):
        world.compile(log_dir=tmp_path, **options)
    assert not caplog.records, "every failed task was awaited"
    assert world.asked < 90, "it ends at once, not with the budget"
    (run,) = rows(tmp_path, "SELECT state FROM run")
    assert run["state"] == "failed"
    (paid,) = rows(tmp_path, "SELECT sum(calls) AS n FROM usage")
    assert (paid["n"] or 0) == world.asked


@pytest.mark.parametrize("keep", ["pareto", "trunk"])
def test_an_artifact_that_raises_ends_the_run(world: World, keep: Any) -> None:
    class BrokenArtifact(Instruction):
        def build(self, student: dspy.Module, candidate: Any) -> dspy.Module:
            if "Lessons" in str(candidate):
                raise Bug
            return super().build(student, candidate)

    combee = world.combee(search=Search(keep=keep), reflection_minibatch_size=6)
    artifact = BrokenArtifact(operators=combee.settings.operators)
    combee.settings = replace(combee.settings, artifact=artifact)
    student, data = dspy.Predict("question -> answer"), (examples(24), examples(6, 100))
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()), pytest.raises(Bug):
        combee.compile(student, trainset=data[0], valset=data[1])


class Engine:
    """A scripted engine that fails some requests, by their number from 1, and counts them all."""

    supported_params = frozenset({"temperature"})
    supports_response_schema = False

    def __init__(self, inner: Any, fails: Callable[[int], bool], error: Exception) -> None:
        self.inner, self.fails, self.error, self.asked = inner, fails, error, 0
        self.failed = threading.Event()
        self._lock = threading.Lock()

    def complete(self, request: Any) -> Any:
        with self._lock:
            self.asked += 1
            fails = self.fails(self.asked)
        if fails:
            self.failed.set()
            raise self.error
        return self.inner.complete(request)

    def world(self, proposer_lm: Any, kind: type[dspy.LM] = dspy.LM) -> World:
        """Return a world whose task LM asks this engine."""
        lm = kind("scripted/task", engine=self, cache=False, num_retries=0, temperature=0.0)
        return World(lm, proposer_lm)  # type: ignore[arg-type]  # the engine counts its requests


DOWN = LMServerError("the service is down", status=503)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_patient, "pause_after", lambda retry_after, count: 0.001)


@pytest.mark.usefixtures("no_pauses")
def test_an_attempt_is_in_the_books_before_the_next_one(tmp_path: Path) -> None:
    booked: list[int] = []

    def fails(number: int) -> bool:
        if number == 9:
            (books,) = rows(
                tmp_path,
                "SELECT sum(u.calls) AS calls FROM usage u JOIN effect e ON e.id = u.effect"
                " WHERE e.kind = 'failed'",
            )
            booked.append(books["calls"])
        return number == 8

    world = World.made()
    engine = Engine(world.task_lm.script, fails, DOWN)
    engine.world(world.proposer_lm).compile(
        TwoSteps(), log_dir=tmp_path, num_threads=1, max_metric_calls=40
    )
    assert booked == [2], "one call was answered, one failed"
    (books,) = rows(tmp_path, "SELECT sum(calls) AS calls FROM usage WHERE role = 'task'")
    assert books["calls"] == engine.asked


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("up", slow_but((20,), [0, 5, 20, 40]))
def test_an_outage_is_never_scored_and_the_run_goes_on_where_it_ended(
    tmp_path: Path, up: int, staleness: int
) -> None:
    world = World.made()
    engine = Engine(world.task_lm.script, lambda number: number > up, DOWN)
    options: dict[str, Any] = {
        "reflection_minibatch_size": 6,
        "search": Search(staleness=staleness, patience=0.0),
    }
    with pytest.raises(InfrastructureError, match=r"the service is down.*Without one it is lost"):
        engine.world(world.proposer_lm).compile(log_dir=tmp_path, **options)
    sql = "SELECT 1 FROM effect WHERE kind = 'rollout' AND failed_in = 'service'"
    assert not rows(tmp_path, sql)
    assert len(world.task_lm.requests) == up
    engine.fails = lambda number: False
    report = engine.world(world.proposer_lm).compile(log_dir=tmp_path, **options).combee_report
    assert len(world.task_lm.requests) == report.rollouts, "no rollout is bought twice"
    assert report.texts == World.made().compile(**options).combee_report.texts
    sql = "SELECT sum(calls) AS calls, sum(errors) AS errors FROM usage WHERE role = 'task'"
    (paid,) = rows(tmp_path, sql)
    assert paid["calls"] - paid["errors"] == report.rollouts
    assert paid["errors"] > 0


@pytest.fixture
def interrupt_after() -> Iterator[Callable[[threading.Event], threading.Thread]]:
    """Return a function that interrupts this process once an event is set."""

    def start(event: threading.Event) -> threading.Thread:
        def interrupt() -> None:
            event.wait()
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        return thread

    # A shell that starts pytest in the background has interrupts ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield start
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_ends_the_run_and_keeps_what_was_in_flight(
    tmp_path: Path, interrupt_after: Any
) -> None:
    began = threading.Event()

    def slowly(request: Any) -> str:
        began.set()
        time.sleep(0.2)
        return task_answer(request)

    world = World.made(slowly)
    thread = interrupt_after(began)
    with pytest.raises(KeyboardInterrupt):
        world.compile(log_dir=tmp_path)
    thread.join()
    (paid,) = rows(tmp_path, "SELECT sum(calls) AS n FROM usage")
    assert 1 <= paid["n"] == len(world.task_lm.requests) <= 8
    assert rows(tmp_path, "SELECT state FROM run")[0]["state"] == "interrupted"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("combee-sea")]


@pytest.mark.parametrize("is_patient", [True, False])
def test_an_interrupt_waits_for_no_service_that_is_full_and_keeps_what_was_turned_away(
    tmp_path: Path, interrupt_after: Any, is_patient: bool
) -> None:
    world = World.made()
    full = LMRateLimitError("the service is full", retry_after=100.0)
    engine = Engine(world.task_lm.script, lambda number: number > 12, full)
    # With an LM of another class the rollout itself is tried again after a pause.
    kind = dspy.LM if is_patient else type("Legacy", (dspy.LM,), {})
    thread = interrupt_after(engine.failed)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        engine.world(world.proposer_lm, kind).compile(log_dir=tmp_path)
    thread.join()
    assert time.monotonic() - began < 60, "Retry-After asked for 100 seconds"
    sql = "SELECT sum(calls) AS calls, sum(errors) AS errors FROM usage WHERE role = 'task'"
    (paid,) = rows(tmp_path, sql)
    assert (paid["calls"], paid["errors"]) == (engine.asked, engine.asked - 12)
    assert not rows(tmp_path, "SELECT 1 FROM effect WHERE kind = 'rollout' AND error IS NOT NULL")


def test_a_budget_in_calls_counts_calls_that_were_turned_away(tmp_path: Path) -> None:
    world = World.made()
    full = LMRateLimitError("the service is full", retry_after=0.0)
    engine = Engine(world.task_lm.script, lambda number: number % 3 == 0, full)
    program = engine.world(world.proposer_lm).compile(
        budget=Budget(calls=60), log_dir=tmp_path, reflection_minibatch_size=6
    )
    total = program.combee_report.costs.total
    assert total.calls == engine.asked + len(world.proposer_lm.requests)
    assert total.errors == engine.asked // 3
    assert 40 < total.calls <= 60 + 8, "calls in flight may cost more than is usual"


def test_a_program_that_exits_on_every_row_fails_as_any_other(world: World) -> None:
    class Leaving(TwoSteps):
        def forward(self, question: str) -> dspy.Prediction:
            raise SystemExit(3)

    with pytest.raises(TooManyFailuresError, match="SystemExit: 3"):
        world.compile(Leaving())


def test_a_value_without_a_json_form_costs_a_rollout_again_and_nothing_else(
    world: World, tmp_path: Path
) -> None:
    class Odd(TwoSteps):
        def forward(self, question: str) -> dspy.Prediction:
            return dspy.Prediction(**super().forward(question), handle=threading.Lock())

    options = {"log_dir": tmp_path, "max_metric_calls": 60, "reflection_minibatch_size": 6}
    first = world.compile(Odd(), **options).combee_report
    assert len(world.task_lm.requests) == 2 * first.rollouts
    again = world.compile(Odd(), **options).combee_report
    assert again.texts == first.texts
    assert len(world.task_lm.requests) == 4 * first.rollouts
    assert again.costs.total.calls == world.asked


def test_half_a_character_in_what_a_model_writes_ends_nothing(tmp_path: Path) -> None:
    def proposer(request: Any) -> str:
        return proposer_answer(request).replace("Give the code word.", "Give the code\ud800 word.")

    world = World.made(proposer=proposer)
    learned = world.compile(log_dir=tmp_path, operators="rewrite", max_metric_calls=80)
    assert "Give the code\N{REPLACEMENT CHARACTER} word." in learned.signature.instructions
    learned.save(tmp_path / "program.json")
