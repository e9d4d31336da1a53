"""How many tasks a run begins with, how many it may reach, and when it may have more."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy import Combee
from combee_dspy.diversity import IterationView
from combee_dspy.engine.concurrency import Growth, demand, scheduled
from combee_dspy.engine.replaying import schedule_file
from combee_dspy.engine.state import RunState
from combee_dspy.rollouts import Scheduler, Threads
from combee_dspy.rollouts.scheduling import LaneAccount, ScheduleAccount


def _account(slots: float, busy: float = 0.0, waited: float = 0.0) -> ScheduleAccount:
    return ScheduleAccount({"rollout": LaneAccount(busy_seconds=busy, waited_seconds=waited)}, slots, slots)


def _settings(**changes: Any) -> Any:
    given = {"num_threads": None, "executor": Threads(), "log_dir": None, "like_gepa": False, **changes}
    return SimpleNamespace(**given)


def _started(lms: tuple[object, ...] = (), **changes: Any) -> Scheduler:
    session = scheduled(_settings(**changes), lms, lambda: True, lambda event: None)
    session.close()
    return session


class Rigid(Threads):
    """Workers that cost something."""

    name = "rigid"
    elastic = False


def test_without_a_number_a_run_finds_it_out() -> None:
    session = _started()
    assert (session.slots, session.workers) == (8, 256)
    with dspy.context(num_threads=300):
        session = _started()
    assert (session.slots, session.workers) == (300, 300)


def test_a_number_is_where_the_limit_begins_and_the_most_it_reaches() -> None:
    session = _started(num_threads=3)
    assert (session.slots, session.workers) == (3, 3)


def test_workers_that_cost_something_are_not_asked_for_in_advance() -> None:
    session = _started(executor=Rigid())
    assert (session.slots, session.workers) == (8, 8)


def test_the_client_of_the_lm_bounds_what_is_found_out(caplog: pytest.LogCaptureFixture) -> None:
    lm = dspy.LM("openai/gpt-4o-mini", api_key="none")
    with caplog.at_level(logging.WARNING, "combee_dspy"):
        assert _started((lm,)).workers == 100
        assert not caplog.records
        assert _started((lm,), num_threads=128).workers == 128
    assert "carries 100 requests at once" in caplog.text


def test_waiting_and_working_are_demand() -> None:
    before, after = _account(10.0, 4.0, 1.0), _account(30.0, 9.0, 6.0)
    assert demand(before, after) == pytest.approx(0.5)
    assert demand(after, after) is None
    assert demand(_account(0), _account(10, 9, 100)) == 1.0


@given(st.floats(0.1, 1e6), st.floats(0, 1e6), st.floats(0, 1e6))
def test_demand_is_a_share(slots: float, busy: float, waited: float) -> None:
    found = demand(_account(0), _account(slots, busy, waited))
    assert found is not None
    assert 0 <= found <= 1


def test_growth_stops_where_batches_do_not_fill_and_where_nothing_improves() -> None:
    growth, state = Growth(), RunState()
    assert growth()
    assert growth.look(state, _account(10, 9))
    # Looked at from the last look on: all in all the slots were still full.
    assert not growth.look(state, _account(20, 9.5))
    assert not growth()
    assert growth.look(state, _account(30, 18))
    state.views = [IterationView(number, 0.5) for number in range(1, 6)]
    assert not growth.look(state, _account(40, 28))
    state.views.append(IterationView(6, 0.6))
    assert growth.look(state, _account(50, 38))
    state.views.append(IterationView(7, 0.7, front_similarity=0.95))
    assert not growth.look(state, _account(60, 48))


def test_each_process_has_a_schedule_of_its_own(tmp_path: Path) -> None:
    first = schedule_file(tmp_path / "run")
    first.write_text("")
    assert schedule_file(tmp_path / "run") != first
    assert sorted((first.name, schedule_file(tmp_path / "run").name)) == [first.name, "schedule-002.jsonl"]


def test_an_asyncio_run_goes_through_the_same_scheduler(world: Any) -> None:

    class Awaited(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.predict = dspy.Predict("question -> answer")

        def forward(self, question: str) -> dspy.Prediction:
            return self.predict(question=question)

        async def aforward(self, question: str) -> dspy.Prediction:
            return await self.predict.acall(question=question)

    class Async:
        def __init__(self, script: Any) -> None:
            self.script = script

        async def complete(self, request: Any) -> Any:
            return self.script.complete(request)

    script = world.task_lm.script
    task = dspy.LM("scripted/task", engine=script, async_engine=Async(script), cache=False)

    def run(executor: str) -> Any:
        made = Combee(
            world.metric,
            max_metric_calls=80,
            reflection_lm=world.proposer_lm,
            num_threads=4,
            executor=executor,
            reflection_minibatch_size=6,
            seed=1,
        )
        with dspy.context(lm=task):
            return made.compile(Awaited(), trainset=world.examples(12), valset=world.examples(6, start=48))

    awaited, threaded = run("asyncio"), run("threads")
    assert awaited.combee_report.best_score == threaded.combee_report.best_score > 1 / 6
    assert awaited.predict.signature.instructions == threaded.predict.signature.instructions
