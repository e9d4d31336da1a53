"""What runs share: a cache of rollouts, decisions that are taken again, and one service for several
programs.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Combee, Search, Task, compile_many
from combee_dspy.exceptions import (
    ArgumentError,
    ArgumentTypeError,
    ArgumentValueError,
    EmptyTrainsetError,
    JournalError,
    TaskCancelledError,
)
from combee_dspy.search._growing import Growing
from combee_dspy.search._time_budget import TimeBudget
from combee_dspy.stopping import RunView, StoppingRule
from combee_dspy.testing import ScriptedLM, ScriptedRequest
from tests.slow import slow_but
from tests.worlds import (
    TwoSteps,
    World,
    events,
    examples,
    in_kind,
    metric,
    proposer_answer,
    rows,
    task_answer,
)


def test_rollouts_of_another_run_are_not_bought_again(tmp_path: Path) -> None:
    arguments = {
        "cache": tmp_path / "cache.sqlite",
        "reflection_minibatch_size": 6,
        "max_metric_calls": 80,
    }
    first = World.made()
    program = first.compile(**arguments, log_dir=tmp_path / "a")
    second = World.made()
    again = second.compile(**arguments, log_dir=tmp_path / "b")
    assert first.task_lm.requests
    assert not second.task_lm.requests
    assert again.dump_state() == program.dump_state()
    assert again.combee_report.costs.by_role.keys() == {"proposer"}
    # Each run's own journal is whole: without the cache it goes on as well.
    third = World.made()
    third.compile(**{**arguments, "cache": None}, log_dir=tmp_path / "b")
    assert not third.asked
    # Another seed shares what is the same: the student's validation.
    fourth = World.made()
    report = fourth.compile(**arguments, seed=9).combee_report
    assert len(fourth.task_lm.requests) <= report.rollouts - 12


@pytest.mark.parametrize("broken", ["written", "read"])
def test_a_run_goes_on_without_a_cache_whose_disk_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    arguments = {
        "cache": tmp_path / "cache.sqlite",
        "reflection_minibatch_size": 6,
        "max_metric_calls": 80,
    }
    World.made().compile(**arguments)
    full = (
        "CREATE TRIGGER full BEFORE INSERT ON cached BEGIN SELECT RAISE(FAIL, 'disk is full'); END"
    )
    with closing(sqlite3.connect(tmp_path / "cache.sqlite")) as file:
        file.execute(
            full if broken == "written" else "ALTER TABLE cached RENAME COLUMN crc TO gone"
        )
    world = World.made()
    report = world.compile(**arguments, seed=9).combee_report
    # What was kept before saves money as long as it can be read.
    assert (len(world.task_lm.requests) <= report.rollouts - 12) == (broken == "written")
    (warning,) = [record.message for record in caplog.records if "cache.sqlite" in record.message]
    assert f"can no longer be {broken}" in warning


@pytest.mark.parametrize("change", ["metric", "failure_score", "program", "temperature"])
def test_a_rollout_that_hangs_on_something_else_is_another_rollout(
    tmp_path: Path, change: str
) -> None:
    def other(
        gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
    ) -> Any:
        return metric(gold, pred).score / 2

    arguments: dict[str, Any] = {"cache": tmp_path / "cache.sqlite", "max_metric_calls": 20}
    World.made().compile(**arguments)
    world = World.made(temperature=0.5) if change == "temperature" else World.made()
    changes = {"metric": {"metric": other}, "failure_score": {"failure_score": -1.0}}.get(
        change, {}
    )
    student = dspy.ChainOfThought("question -> answer") if change == "program" else None
    report = world.compile(student, **{**arguments, **changes}).combee_report
    assert len(world.task_lm.requests) == report.rollouts


def test_decisions_of_an_earlier_run_are_taken_again(tmp_path: Path) -> None:
    def sizes(place: Path) -> list[int]:
        return [event["size"] for event in events(place, "batch")]

    arguments = {"train": 120, "budget": Budget(seconds=1.0), "skip_perfect_score": False}
    first = World.made().compile(**arguments, log_dir=tmp_path / "first")
    again = World.made().compile(
        **arguments, log_dir=tmp_path / "again", search=Search(replay=str(tmp_path / "first"))
    )
    # The update that the clock cut off does not begin again.
    assert sizes(tmp_path / "again") == sizes(tmp_path / "first")[: again.combee_report.updates]
    assert again.dump_state() == first.dump_state()
    assert again.combee_report.reason == first.combee_report.reason
    assert again.combee_report.updates == first.combee_report.updates
    with pytest.raises(ArgumentValueError, match="holds no run"):
        World.made().compile(**arguments, search=Search(replay=str(tmp_path / "nowhere")))


class TwoUpdates(StoppingRule):
    def check(self, view: RunView) -> str | None:
        return "two updates are done" if view.updates >= 2 else None


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        (Budget(seconds=1.0) | TwoUpdates(), "two updates are done"),
        (Budget(seconds=1.0, updates=3), "3 updates are done"),
        (Budget(seconds=1.0, rollouts=60), "rollouts left"),
        (Budget(seconds=1.0), "found nothing new"),
    ],
)
def test_a_replay_of_a_run_that_came_to_its_end_takes_the_time_that_it_needs(
    budget: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimeBudget, "seconds", 0.0)
    first = World.made().compile(budget=budget, log_dir=tmp_path)
    assert reason in first.combee_report.reason
    monkeypatch.setattr(TimeBudget, "seconds", 9.0)
    again = World.made().compile(budget=budget, search=Search(replay=str(tmp_path)))
    assert again.combee_report.reason == first.combee_report.reason
    assert again.combee_report.updates == first.combee_report.updates
    assert again.dump_state() == first.dump_state()


def test_a_replay_whose_rows_still_fail_ends_where_the_run_did(tmp_path: Path) -> None:
    rules = iter(range(1_000))

    def new_rule(request: ScriptedRequest) -> str:
        return proposer_answer(request).replace("Rule", f"Rule {next(rules)}")

    def unknown(request: ScriptedRequest) -> str:
        return in_kind(request, {"answer": "unknown"})

    arguments: dict[str, Any] = {"budget": Budget(updates=12), "reflection_minibatch_size": 12}
    first = World.made().compile(**arguments, log_dir=tmp_path).combee_report
    assert first.updates < 12
    world = World.made(unknown, new_rule)
    again = world.compile(**arguments, search=Search(replay=str(tmp_path))).combee_report
    assert (again.updates, again.reason) == (first.updates, first.reason)


@pytest.mark.parametrize("first", ["is killed", "has tests cut", "has another model"])
def test_a_replay_of_a_run_that_came_to_no_such_end_holds_its_limits(
    first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = Growing.result

    async def cut(keeper: Growing) -> Any:
        if first == "is killed":
            raise RuntimeError(first)
        monkeypatch.setattr(TimeBudget, "seconds", 1.1 if first == "has tests cut" else 0.0)
        return await result(keeper)

    monkeypatch.setattr(Growing, "result", cut)
    monkeypatch.setattr(TimeBudget, "seconds", 0.0)
    arguments: dict[str, Any] = {
        "budget": Budget(seconds=1.0, updates=3),
        "reflection_minibatch_size": 4,
    }
    world = World.made()
    if first == "has another model":
        world.task_lm = ScriptedLM(task_answer, model="scripted/other", temperature=0.0)
    with suppress(RuntimeError):
        report = world.compile(**arguments, log_dir=tmp_path).combee_report
        assert report.reason == "3 updates are done"
    monkeypatch.setattr(TimeBudget, "seconds", 9.0)
    with pytest.raises(ArgumentValueError, match="ends in the middle of the student's validation"):
        World.made().compile(**arguments, search=Search(replay=str(tmp_path)))


def tasks() -> list[Task]:
    held = {"heldout": examples(6, 200)}
    return [
        Task("words", dspy.Predict("question -> answer"), examples(12), examples(6, 100), **held),
        Task("steps", TwoSteps(), examples(16, 300), examples(6, 100), seed=5),
        Task(
            "metric",
            dspy.Predict("question -> answer"),
            examples(12, 400),
            examples(6, 100),
            metric=half,
        ),
    ]


def half(
    gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
) -> Any:
    verdict = metric(gold, pred)
    return dspy.Prediction(score=verdict.score / 2, feedback=verdict.feedback)


def optimizer(world: World, **kwargs: Any) -> Combee:
    arguments = {
        "max_metric_calls": 80,
        "reflection_minibatch_size": 4,
        "perfect_score": 0.5,
        **kwargs,
    }
    return world.combee(**arguments)


@pytest.mark.parametrize("at_once", slow_but((None,), [None, 1]))
def test_each_program_is_what_it_would_be_alone(
    world: World, tmp_path: Path, at_once: int | None
) -> None:
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        together = compile_many(tasks(), combee=optimizer(world, log_dir=tmp_path), at_once=at_once)
        for task, result in zip(tasks(), together, strict=True):
            alone = optimizer(world, metric=task.metric or metric, seed=task.seed or 0).compile(
                task.student, trainset=task.trainset, valset=task.valset, heldout=task.heldout
            )
            assert result.error is None
            assert result.program.dump_state() == alone.dump_state()
            assert (result.report.rollouts, result.report.heldout) == (
                alone.combee_report.rollouts,
                alone.combee_report.heldout,
            )
    assert [row["name"] for row in rows(tmp_path, "SELECT name FROM run ORDER BY name")] == [
        "metric",
        "steps",
        "words",
    ]


def test_a_task_that_fails_leaves_the_others_alone(world: World, tmp_path: Path) -> None:
    class Broken(dspy.Module):
        def forward(self, question: str) -> Any:
            return dspy.Prediction(answer="x")

    several = tasks()
    bad = [
        Task("no predictor", Broken(), examples(6)),
        Task("no rows", dspy.Predict("question -> answer"), []),
    ]
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        results = compile_many(
            [several[0], *bad, several[1]], combee=optimizer(world, log_dir=tmp_path)
        )
    assert [type(result.error) for result in results] == [
        type(None),
        ArgumentValueError,
        EmptyTrainsetError,
        type(None),
    ]
    assert results[0].report.best_score > results[0].report.seed_score
    assert isinstance(TaskCancelledError("x"), Exception)
    asked = world.asked
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        again = compile_many([several[0], several[1]], combee=optimizer(world, log_dir=tmp_path))
    assert world.asked == asked, "a journal of several runs goes on with each"
    assert again[0].program.dump_state() == results[0].program.dump_state()


def test_a_program_that_the_executor_cannot_run_fails_alone(world: World) -> None:
    class Blocking(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = dspy.Predict("question -> answer")

        def forward(self, question: str) -> dspy.Prediction:
            return self.part(question=question)

    several = [
        Task("awaited", dspy.Predict("question -> answer"), examples(6)),
        Task("b", Blocking(), examples(6)),
    ]
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        fit, unfit = compile_many(
            several, combee=world.combee(max_metric_calls=20, executor="asyncio")
        )
    assert fit.error is None
    assert isinstance(unfit.error, ArgumentTypeError)


def test_settings_of_one_task_alone(world: World) -> None:
    other = World.made()
    several = [
        Task("one", dspy.Predict("question -> answer"), examples(6), examples(4, 100)),
        Task(
            "two",
            dspy.Predict("question -> answer"),
            examples(6, 50),
            examples(4, 100),
            context={"lm": other.task_lm},
        ),
    ]
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        results = compile_many(several, combee=world.combee(max_metric_calls=30))
    assert len(world.task_lm.requests) == results[0].report.rollouts
    assert len(other.task_lm.requests) == results[1].report.rollouts


def test_tasks_are_checked(world: World) -> None:
    combee = world.combee()
    task = tasks()[0]
    with pytest.raises(ArgumentValueError, match="is given to two tasks"):
        compile_many([task, task], combee=combee)
    with pytest.raises(ArgumentTypeError, match="is no task"):
        compile_many([task.student], combee=combee)  # type: ignore[list-item]  # what is tested
    with pytest.raises(ArgumentValueError, match="at_once"):
        compile_many([task], combee=combee, at_once=0)
    assert compile_many([], combee=combee) == []
    assert issubclass(ArgumentValueError, ArgumentError)
    assert issubclass(JournalError, Exception)
