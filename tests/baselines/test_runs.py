"""Whole runs: what is counted, what is told, and what is left alone."""

from __future__ import annotations

import contextlib
import gc
import json
from collections.abc import Callable
from typing import Any

import dspy
import pytest
from dspy.utils.exceptions import AdapterParseError, LMServerError

from combee_dspy.baselines import ACE, GEPA, MIPRO, Baseline, BaselineTask, CombeeMethod, Desk
from combee_dspy.events import (
    ErrorRaised,
    HeldoutEvaluated,
    HeldoutPinned,
    RolloutFinished,
    RunFinished,
    RunStarted,
)
from combee_dspy.exceptions import ArgumentTypeError, ArgumentValueError, SplitOverlapError
from combee_dspy.rollouts._garbage import OBJECTS
from tests.baselines.conftest import World, metric


class Scripted(Baseline):
    """Does what a test says."""

    name = "scripted"

    def __init__(self, does: Callable[[BaselineTask, Desk], Any]) -> None:
        self.does = does

    def search(self, task: BaselineTask, desk: Desk) -> Any:
        return self.does(task, desk)


def evaluated(program: Any, rows: Any, metric: Any, threads: int = 4) -> Any:
    run = dspy.Evaluate(devset=list(rows), metric=metric, num_threads=threads, max_errors=1_000, display_progress=False)
    return run(program)


def taught(task: BaselineTask, lesson: str) -> dspy.Module:
    program = task.program.deepcopy()
    for predictor in program.predictors():
        predictor.signature = predictor.signature.with_instructions(f"{predictor.signature.instructions}\n{lesson}")
    return program


LESSONS = "[copper] known. [silver] known. [amber] known."


@pytest.mark.parametrize("method", [GEPA(), MIPRO(), ACE(), CombeeMethod()], ids=lambda one: one.name)
def test_every_method_learns_what_the_service_can_learn(world: World, method: Baseline):
    result = method.run(world.task(budget=120))
    assert result.heldout.low > 0
    assert result.simulated
    assert any("no language model" in warning for warning in result.warnings)
    assert result.method == method.name
    assert result.curve[-1].best == max(point.validation for point in result.curve) == result.validation
    assert world.heard.closed == 1
    json.dumps(result.to_dict())


def test_an_optimizer_that_runs_programs_itself_is_counted(world: World):
    def search(task, desk):
        evaluated(task.program, task.validation, desk.number)
        evaluated(taught(task, LESSONS), task.validation, desk.number)

    result = Scripted(search).run(world.task())
    assert [(point.rollouts, point.validation) for point in result.curve][1] == (12, 1.0)
    assert result.rollouts == 12
    assert result.program.signature.instructions.endswith(LESSONS)
    told = world.heard.of(RolloutFinished)
    assert {event.rollout.usage[0].calls for event in told} == {1}
    assert world.service.stats().calls == len(told) == 12 + 2 * 9


def test_garbage_is_looked_for_as_rarely_as_in_a_run_of_combee(world: World):
    seen = []

    def looking(gold: Any, pred: Any, *rest: Any) -> dspy.Prediction:
        seen.append(gc.get_threshold()[0])
        return metric(gold, pred)

    def search(task, desk):
        evaluated(task.program, task.validation, desk.number)

    before = gc.get_threshold()
    gc.set_threshold(700, *before[1:])
    try:
        Scripted(search).run(world.task(metric=looking, heldout=()))
        assert gc.get_threshold()[0] == 700
    finally:
        gc.set_threshold(*before)
    assert set(seen) == {OBJECTS}


def test_a_stopped_optimizer_buys_nothing_more_and_its_best_is_returned(world: World):
    def search(task, desk):
        evaluated(taught(task, "[copper] known."), task.validation, desk.number)
        while True:
            evaluated(task.program, task.train, desk.number, threads=8)

    result = Scripted(search).run(world.task(budget=20, heldout=()))
    assert result.rollouts == 20 == world.service.stats().calls
    assert result.program.signature.instructions.endswith("[copper] known.")
    assert "budget of 20 rollouts is spent" in result.reason
    assert world.heard.of(RunFinished)[0].rollouts == 20


def test_optimizers_that_swallow_errors_are_stopped_too(world: World):
    def search(task, desk):
        while True:
            with contextlib.suppress(Exception):
                evaluated(task.program, task.train, desk.number)

    assert Scripted(search).run(world.task(budget=13)).rollouts == 13


def test_feedback_calls_of_the_metric_are_no_rollouts(world: World):
    def search(task, desk):
        row = task.train[0]
        prediction = task.program(question=row.question)
        desk.metric(row, prediction, None, None, None)
        for _ in range(3):
            desk.metric(row, prediction, None, "self", None)
            desk.metric(row, prediction)

    result = Scripted(search).run(world.task(heldout=()))
    assert result.rollouts == 1
    assert result.validation is None
    assert not result.curve


def test_a_program_that_raises_is_a_rollout_that_failed(world: World):
    class Broken(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = dspy.Predict("question -> answer")

        def forward(self, question: str) -> Any:
            if "copper" in question:
                raise KeyError("nothing about copper")
            return self.step(question=question)

    def search(task, desk):
        evaluated(task.program, task.validation, desk.number)

    result = Scripted(search).run(world.task(program=Broken(), failure_score=-1.0, heldout=()))
    failed = [event.rollout for event in world.heard.of(RolloutFinished) if event.rollout.error]
    assert result.rollouts == 6
    assert [(one.score, one.failed_in) for one in failed] == [(-1.0, "program")] * 2
    assert all("copper" in one.example.question and "nothing about copper" in one.error for one in failed)
    assert len(result.curve) == 1


def test_an_outage_is_told_from_a_wrong_answer(world: World):
    class Down(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = dspy.Predict("question -> answer")

        def forward(self, question: str) -> Any:
            raise LMServerError("the service is down")

    def search(task, desk):
        evaluated(task.program, task.validation, desk.number)

    Scripted(search).run(world.task(program=Down(), heldout=()))
    assert {event.rollout.failed_in for event in world.heard.of(RolloutFinished)} == {"service"}


def test_a_metric_that_raises_is_entered_and_raised(world: World):
    def broken(gold, pred, trace=None, pred_name=None, pred_trace=None):
        raise ValueError("no score today")

    def search(task, desk):
        prediction = task.program(question=task.train[0].question)
        with pytest.raises(ValueError, match="no score today"):
            desk.metric(task.train[0], prediction)

    result = Scripted(search).run(world.task(metric=broken, heldout=()))
    (event,) = world.heard.of(RolloutFinished)
    assert (event.rollout.failed_in, event.rollout.score, result.rollouts) == ("metric", 0.0, 1)


def test_a_candidate_that_is_edited_after_its_validation_is_returned_as_it_was_scored(world: World):
    def search(task, desk):
        program = taught(task, LESSONS)
        evaluated(program, task.validation, desk.number)
        program.predictors()[0].signature = program.signature.with_instructions("spoilt")

    result = Scripted(search).run(world.task())
    assert result.program.signature.instructions.endswith(LESSONS)
    assert result.heldout.after == 1.0


def test_what_the_desk_evaluates_is_counted_once_and_keeps_its_traces(world: World):
    def search(task, desk):
        rollouts = desk.evaluate(task.program, task.train[:3])
        assert [rollout.example.question for rollout in rollouts] == [row.question for row in task.train[:3]]
        assert all(rollout.trace and rollout.callers == ("self",) for rollout in rollouts)
        assert desk.left == 57

    result = Scripted(search).run(world.task(heldout=()))
    assert result.rollouts == 3 == world.service.stats().calls


def test_calls_outside_of_rollouts_are_the_proposers(world: World):
    def search(task, desk):
        desk.evaluate(task.program, task.validation)
        task.reflection_lm("hello")

    costs = Scripted(search).run(world.task(heldout=())).costs["by_role"]
    assert {role: counts["calls"] for role, counts in costs.items()} == {"task": 6, "proposer": 1}


def test_reading_the_heldout_set_is_not_in_the_price_of_the_search(world: World):
    def search(task, desk):
        desk.evaluate(task.program, task.validation)

    result = Scripted(search).run(world.task())
    assert result.costs["total"]["calls"] == 6
    assert world.service.stats().calls == 6 + 9
    assert len(world.heard.of(HeldoutPinned)) == len(world.heard.of(HeldoutEvaluated)) == 1
    # Nothing was learned: one program, read once.
    assert result.receipt.programs[0] == result.receipt.programs[1]


def test_an_error_of_the_method_is_told_before_the_hooks_are_closed(world: World):
    def search(task, desk):
        raise RuntimeError("broken method")

    with pytest.raises(RuntimeError, match="broken method"):
        Scripted(search).run(world.task())
    (event,) = world.heard.of(ErrorRaised)
    assert (event.error, event.fatal, world.heard.closed) == ("RuntimeError: broken method", True, 1)


def test_a_method_that_cannot_read_its_proposer_ends_with_its_best_so_far(world: World):
    def search(task, desk):
        evaluated(taught(task, LESSONS), task.validation, desk.number)
        signature = task.program.signature
        raise AdapterParseError(adapter_name="ChatAdapter", signature=signature, lm_response="la la la")

    result = Scripted(search).run(world.task())
    assert result.heldout.after == 1.0
    assert "could not be read" in result.reason
    assert "its best so far counts" in result.notes[0]
    assert not world.heard.of(ErrorRaised)[0].fatal


def test_a_journal_holds_the_run_and_no_key(world: World, tmp_path):
    lm = world.service.lm(api_key="sk-very-secret-key-1234567890")
    task = world.task(task_lm=lm, reflection_lm=lm, journal=tmp_path / "journal")
    Scripted(lambda task, desk: desk.evaluate(task.program, task.validation) and None).run(task)
    text = "".join(path.read_text() for path in (tmp_path / "journal").iterdir() if path.is_file())
    kinds = [json.loads(line)["kind"] for line in text.splitlines()]
    assert kinds.count("RunStarted") == kinds.count("RunFinished") == 1
    assert kinds.count("rollout") == 6 + 9
    assert "sk-very-secret" not in text


def test_versions_and_splits_are_told(world: World):
    GEPA().run(world.task(budget=20))
    (started,) = world.heard.of(RunStarted)
    assert set(started.specs["versions"]) == {"dspy", "gepa", "combee-dspy"}
    assert started.specs["baseline"]["name"] == "gepa"
    assert started.sizes == {"train": 12, "validation": 6, "heldout": 9}


def test_combees_own_beginning_and_end_are_replaced_by_the_runners(world: World):
    result = CombeeMethod({"aggregator": "union"}).run(world.task(budget=40))
    (started,) = world.heard.of(RunStarted)
    assert started.specs["baseline"]["params"] == {"arguments": {"aggregator": "union"}}
    assert not any("held-out" in warning for warning in started.warnings)
    assert len(world.heard.of(RunFinished)) == 1
    assert result.rollouts <= 40


@pytest.mark.parametrize(
    ("changes", "error", "argument"),
    [
        ({"validation": ()}, ArgumentValueError, "validation"),
        ({"budget": 0}, ArgumentValueError, "budget"),
        ({"budget": 5}, ArgumentValueError, "budget"),
        ({"threads": 0}, ArgumentValueError, "threads"),
        ({"task_lm": "openai/x"}, ArgumentTypeError, "task_lm"),
        ({"program": "no program"}, ArgumentTypeError, "student"),
        ({"metric": 3}, ArgumentTypeError, "metric"),
    ],
)
def test_a_task_that_cannot_be_run_is_refused_before_anything_is_bought(world: World, changes, error, argument):
    with pytest.raises(error) as caught:
        GEPA().run(world.task(**changes))
    assert caught.value.argument == argument
    assert world.service.stats().calls == 0


def test_a_heldout_row_among_the_training_rows_is_refused(world: World):
    with pytest.raises(SplitOverlapError):
        GEPA().run(world.task(heldout=(world.rows[0],)))


def test_something_else_than_a_task_is_refused():
    with pytest.raises(ArgumentTypeError, match="is no BaselineTask"):
        GEPA().run({"program": None})


def test_the_metric_of_the_world_is_what_it_says():
    gold = dspy.Example(question="q", answer="a")
    assert metric(gold, dspy.Prediction(answer="a")).score == 1.0
