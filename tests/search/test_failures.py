"""Whatever raises, wherever: a run ends with that error, hangs on nothing, and keeps what it paid
for.
"""

from __future__ import annotations

import asyncio
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
from combee_dspy.exceptions import InfrastructureError, LMUnreachableError, TooManyFailuresError
from combee_dspy.operators import Operator
from combee_dspy.rollouts import _patient
from combee_dspy.stopping import StoppingRule
from tests.slow import slow_but
from tests.worlds import (
    TwoSteps,
    World,
    events,
    examples,
    metric,
    proposer_answer,
    rows,
    task_answer,
)


class Bug(Exception):  # noqa: N818 - a part of the user's own
    """What a part of the user's own raises."""


class BadAggregator(Aggregator):
    name = "bad"

    async def aggregate(self, reflections: Any, context: Any) -> Any:
        await reflections[0]
        raise Bug("aggregator")


class BadOperator(Operator):
    name = "bad"

    async def apply(self, given: Any, context: Any) -> Any:
        raise Bug("operator")


class BadController(BatchController):
    name = "bad"

    def plan(self, view: Any) -> Any:
        raise Bug("controller")


class BadEmbedder(Embedder):
    name = "bad"

    def embed(self, texts: Any) -> Any:
        raise Bug("embedder")


class BadRule(StoppingRule):
    name = "bad"

    def check(self, view: Any) -> Any:
        if view.updates == 1:
            raise Bug("rule")


class BadSelector:
    def select_candidate_idx(self, state: Any) -> int:
        raise Bug("selector")


def bad_stopper(state: Any) -> bool:
    raise Bug("stopper")


STAGES: dict[str, dict[str, Any]] = {
    "aggregator": {"aggregator": BadAggregator()},
    "operator": {"operators": [BadOperator()]},
    "controller": {"controller": BadController(), "reflection_minibatch_size": None},
    "embedder": {"diversity": Diversity(embedder=BadEmbedder(), threshold=0.9)},
    "rule": {"budget": BadRule()},
    "selector": {"candidate_selection_strategy": BadSelector(), "search": Search()},
    "stopper": {"gepa_kwargs": {"stop_callbacks": [bad_stopper]}, "search": Search()},
}


@pytest.mark.parametrize("staleness", slow_but((2,), [0, 2]))
@pytest.mark.parametrize("stage", STAGES)
def test_a_part_that_raises_ends_the_run_with_its_error(
    tmp_path: Path, stage: str, staleness: int, caplog: pytest.LogCaptureFixture
) -> None:
    world = World.made()
    given = {"reflection_minibatch_size": 6, "search": Search(staleness=staleness), **STAGES[stage]}
    with caplog.at_level(logging.ERROR, logger="asyncio"), pytest.raises(Bug, match=stage):
        world.compile(
            log_dir=tmp_path, **{name: value for name, value in given.items() if value is not None}
        )
    assert not caplog.records, "nothing is left behind that nobody heard of"
    assert world.asked < 90, "it ends at once, not with the budget"
    (run,) = rows(tmp_path, "SELECT state FROM run")
    assert run["state"] == "failed"
    # What was paid for is on disk, all of it.
    (paid,) = rows(tmp_path, "SELECT sum(calls) AS n FROM usage")
    assert (paid["n"] or 0) == world.asked


@pytest.mark.parametrize("keep", ["pareto", "trunk"])
def test_an_artifact_that_raises_ends_the_run(world: World, keep: Any) -> None:
    class BadArtifact(Instruction):
        def build(self, student: dspy.Module, candidate: Any) -> dspy.Module:
            if "Lessons" in str(candidate):
                raise Bug("artifact")
            return super().build(student, candidate)

    combee = world.combee(search=Search(keep=keep), reflection_minibatch_size=6)
    artifact = BadArtifact(operators=combee.settings.operators)
    combee.settings = replace(combee.settings, artifact=artifact)
    with (
        dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()),
        pytest.raises(Bug, match="artifact"),
    ):
        combee.compile(
            dspy.Predict("question -> answer"), trainset=examples(24), valset=examples(6, 100)
        )


class Outage:
    """An engine that answers so many times and is down from then on."""

    supported_params = frozenset({"temperature"})
    supports_response_schema = False

    def __init__(self, inner: Any, up: int) -> None:
        self.inner, self.up, self.asked = inner, up, 0
        self._lock = threading.Lock()

    def complete(self, request: Any) -> Any:
        with self._lock:
            self.asked += 1
            down = self.asked > self.up
        if down:
            raise LMServerError("the service is down", status=503)
        return self.inner.complete(request)


class Stumbling(Outage):
    """A service that goes down for one call, and looks into the books when that comes again."""

    def __init__(self, script: Any, place: Path) -> None:
        super().__init__(script, 7)
        self.place, self.calls = place, 0

    def complete(self, request: Any) -> Any:
        if self.asked == self.up + 1:
            (books,) = rows(
                self.place,
                "SELECT sum(u.calls) AS calls FROM usage u JOIN effect e ON e.id = u.effect"
                " WHERE e.kind = 'failed'",
            )
            self.calls, self.up = books["calls"], 10**6
        return super().complete(request)


def test_what_an_attempt_has_cost_is_in_the_books_before_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_patient, "pause_after", lambda retry_after, count: 0.001)
    world = World.made()
    service = Stumbling(world.task_lm.script, tmp_path)
    lm = dspy.LM("scripted/task", engine=service, cache=False, num_retries=0, temperature=0.0)
    well = World(lm, world.proposer_lm)  # type: ignore[arg-type]
    well.compile(TwoSteps(), log_dir=tmp_path, num_threads=1, max_metric_calls=40)
    assert service.calls == 2, "one answered, one failed"
    (books,) = rows(tmp_path, "SELECT sum(calls) AS calls FROM usage WHERE role = 'task'")
    assert books["calls"] == service.asked


@pytest.mark.parametrize("staleness", [0, 1])
@pytest.mark.parametrize("up", slow_but((20,), [0, 5, 20, 40]))
def test_an_outage_is_never_scored_and_the_run_goes_on_where_it_ended(
    tmp_path: Path, up: int, staleness: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_patient, "pause_after", lambda retry_after, count: 0.001)
    world = World.made()
    outage = Outage(world.task_lm.script, up)
    lm = dspy.LM("scripted/task", engine=outage, cache=False, num_retries=0, temperature=0.0)
    given = {
        "log_dir": tmp_path,
        "reflection_minibatch_size": 6,
        "search": Search(staleness=staleness, patience=0.0),
    }
    well = World(lm, world.proposer_lm)  # type: ignore[arg-type]  # its requests are counted by the engine inside
    with pytest.raises(InfrastructureError, match="the service is down"):
        well.compile(**given)
    assert not rows(
        tmp_path, "SELECT 1 FROM effect WHERE kind = 'rollout' AND failed_in = 'service'"
    )
    answered = len(world.task_lm.requests)
    assert answered == up
    outage.up = 10**9
    report = well.compile(**given).combee_report
    assert len(world.task_lm.requests) == report.rollouts, "what was paid for is not bought again"
    assert report.texts == World.made().compile(**{**given, "log_dir": None}).combee_report.texts
    (paid,) = rows(
        tmp_path, "SELECT sum(calls) AS calls, sum(errors) AS errors FROM usage WHERE role = 'task'"
    )
    assert (paid["calls"] - paid["errors"], paid["errors"] > 0) == (report.rollouts, True)


def test_an_lm_that_does_not_answer_is_found_after_a_few_calls_at_most(
    world: World, service: Any
) -> None:
    lm = service.lm(api_base="http://127.0.0.1:9/v1", num_retries=0)
    with pytest.raises(LMUnreachableError, match="the proposer LM"):
        world.compile(reflection_lm=lm)
    assert len(world.task_lm.requests) <= 8


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell that starts pytest in the background has interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def slow_world(began: threading.Event, seconds: float = 0.2) -> World:
    def slowly(request: Any) -> str:
        began.set()
        time.sleep(seconds)
        return task_answer(request)

    return World.made(slowly)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_the_run_and_keeps_what_was_in_flight(tmp_path: Path) -> None:
    began = threading.Event()
    world = slow_world(began)

    def interrupt() -> None:
        began.wait()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        world.compile(log_dir=tmp_path)
    thread.join()
    (paid,) = rows(tmp_path, "SELECT sum(calls) AS n FROM usage")
    assert 1 <= paid["n"] == len(world.task_lm.requests) <= 8
    assert rows(tmp_path, "SELECT state FROM run")[0]["state"] == "interrupted"
    assert not [one for one in threading.enumerate() if one.name.startswith("combee-search")]


class Full:
    """An engine that turns some requests away, by their number."""

    supported_params = frozenset({"temperature"})
    supports_response_schema = False

    def __init__(self, inner: Any, full: Callable[[int], bool], retry_after: float) -> None:
        self.inner, self.full, self.retry_after, self.asked = inner, full, retry_after, 0
        self.rejected = threading.Event()
        self._lock = threading.Lock()

    def complete(self, request: Any) -> Any:
        with self._lock:
            self.asked += 1
            full = self.full(self.asked)
        if full:
            self.rejected.set()
            raise LMRateLimitError("the service is full", retry_after=self.retry_after)
        return self.inner.complete(request)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("patiently", [True, False])
def test_an_interrupt_waits_for_no_service_that_is_full_and_what_was_turned_away_is_in_the_books(
    tmp_path: Path, patiently: bool
) -> None:
    world = World.made()
    full = Full(world.task_lm.script, lambda asked: asked > 12, 100.0)
    # With an LM of their own kind the rollout itself is tried again after a pause.
    kind = dspy.LM if patiently else type("Legacy", (dspy.LM,), {})
    lm = kind("scripted/task", engine=full, cache=False, num_retries=0, temperature=0.0)

    def interrupt() -> None:
        full.rejected.wait()
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        World(lm, world.proposer_lm).compile(log_dir=tmp_path)  # type: ignore[arg-type]  # as above
    thread.join()
    assert time.monotonic() - began < 60, "Retry-After asked for 100 seconds"
    (paid,) = rows(
        tmp_path, "SELECT sum(calls) AS calls, sum(errors) AS errors FROM usage WHERE role = 'task'"
    )
    assert (paid["calls"], paid["errors"]) == (full.asked, full.asked - 12)
    assert not rows(tmp_path, "SELECT 1 FROM effect WHERE kind = 'rollout' AND error IS NOT NULL")


def test_a_budget_in_calls_counts_what_was_turned_away(tmp_path: Path) -> None:
    world = World.made()
    full = Full(world.task_lm.script, lambda asked: asked % 3 == 0, 0.0)
    lm = dspy.LM("scripted/task", engine=full, cache=False, num_retries=0, temperature=0.0)
    given = {"budget": Budget(calls=60), "log_dir": tmp_path, "reflection_minibatch_size": 6}
    total = World(lm, world.proposer_lm).compile(**given).combee_report.costs.total  # type: ignore[arg-type]  # as above
    assert (total.calls, total.errors) == (
        full.asked + len(world.proposer_lm.requests),
        full.asked // 3,
    )
    assert 40 < total.calls <= 60 + 8, (
        "what a call in flight costs beside what is usual is known afterwards"
    )


def test_cancelling_who_waits_for_a_compile_in_a_loop_is_heard_when_it_ends(tmp_path: Path) -> None:
    world = World.made()

    async def outer() -> Any:
        return await asyncio.to_thread(lambda: world.compile(max_metric_calls=60, log_dir=tmp_path))

    assert asyncio.run(outer()).combee_report.best_score > 0.2


def test_a_program_that_exits_on_every_row_fails_as_any_other(world: World) -> None:
    class Leaving(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = dspy.Predict("question -> answer")

        def forward(self, question: str) -> dspy.Prediction:
            raise SystemExit(3)

    with pytest.raises(TooManyFailuresError, match="SystemExit: 3"):
        world.compile(Leaving())


def test_a_few_calls_that_fail_for_good_are_told_and_end_no_run(tmp_path: Path) -> None:
    world = World.made(proposer=lambda request: "this cannot be read")
    report = world.compile(
        log_dir=tmp_path, reflection_minibatch_size=6, budget=Budget(updates=2)
    ).combee_report
    assert report.best_score == report.seed_score
    failed = rows(tmp_path, "SELECT error FROM effect WHERE kind = 'call' AND error IS NOT NULL")
    assert failed
    assert any(node["failed"] for scan in events(tmp_path, "scan") for node in scan["nodes"])


def test_a_value_without_a_json_form_costs_a_rollout_again_and_nothing_else(
    world: World, tmp_path: Path
) -> None:
    class Odd(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = dspy.Predict("question -> answer")

        def forward(self, question: str) -> dspy.Prediction:
            found = self.step(question=question)
            return dspy.Prediction(answer=found.answer, handle=threading.Lock())

    given = {"log_dir": tmp_path, "max_metric_calls": 60, "reflection_minibatch_size": 6}
    first = world.compile(Odd(), metric=metric, **given).combee_report
    assert len(world.task_lm.requests) == first.rollouts
    again = world.compile(Odd(), metric=metric, **given).combee_report
    assert again.texts == first.texts
    assert len(world.task_lm.requests) == 2 * first.rollouts
    assert again.costs.total.calls == world.asked


def test_an_error_in_a_scan_is_raised_while_other_rollouts_are_under_way() -> None:
    def slow(request: Any) -> str:
        if "17" in str(request.messages):
            time.sleep(0.3)
        return task_answer(request)

    with pytest.raises(Bug, match="aggregator"):
        World.made(slow).compile(aggregator=BadAggregator(), reflection_minibatch_size=24)


def test_half_a_character_in_what_a_model_writes_ends_nothing(tmp_path):
    def proposer(request: Any) -> str:
        return proposer_answer(request).replace("Give the code word.", "Give the code\ud800 word.")

    world = World.made(proposer=proposer)
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        combee = world.combee(log_dir=tmp_path, operators="rewrite", max_metric_calls=80)
        learned = combee.compile(dspy.Predict("question -> answer"), trainset=examples(12))
    assert "Give the code\N{REPLACEMENT CHARACTER} word." in learned.signature.instructions
    learned.save(tmp_path / "program.json")
