"""Batching reached from ``Combee`` and from a file, seen by a service that takes batches."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import dspy
import pytest

from combee_dspy import Budget, Combee, Search
from combee_dspy.cli._plan import plan_run
from combee_dspy.controllers import BatchController, BatchView
from combee_dspy.costs import Costs
from combee_dspy.records import BatchDecision
from combee_dspy.rollouts import (
    Batching,
    Fixed,
    Slots,
    Threads,
    ThreadSession,
)
from combee_dspy.rollouts._batching import Queue, Turn
from tests.worlds import World, examples, metric


def compiled(batching: Batching | None) -> Any:
    world = World.made()
    with dspy.context(lm=world.task_lm, adapter=dspy.ChatAdapter()):
        combee = world.combee(
            executor=Threads(batching),
            reflection_minibatch_size=8,
            max_metric_calls=80,
            search=Search(keep="pareto"),
        )
        return combee.compile(
            dspy.Predict("question -> answer"),
            trainset=examples(24),
            valset=examples(12, 100),
        )


@pytest.fixture(scope="module")
def at_once() -> Any:
    return compiled(None)


@pytest.mark.parametrize(
    "batching",
    [
        Batching("target", seconds=0.2, variance=0.01),
        Batching("target", patience=0.02),
        Batching(4, seconds=0.02),
        Batching("target", seconds=0.02, variance=0.3),
    ],
    ids=str,
)
def test_batches_change_when_and_never_what(batching, at_once):
    program = compiled(batching)
    assert program.combee_report.texts == at_once.combee_report.texts
    assert program.combee_report.rollouts == at_once.combee_report.rollouts


def test_a_service_gets_as_many_at_once_as_it_takes(monkeypatch):
    """Four, by num_threads: jobs are released when four wait, or when nothing is in flight."""
    released: list[tuple[int, bool]] = []
    pop = Queue.pop

    def noted(queue: Queue, free: int, target: int, now: float) -> Turn | float:
        held = len(queue._held)
        turn = pop(queue, free, target, now)
        if held and not queue._held:
            released.append((held, free == target))
        return turn

    monkeypatch.setattr(Queue, "pop", noted)
    compiled(Batching("target", patience=0.1))
    assert max(held for held, _ in released) >= 4
    assert all(held >= 4 or idle for held, idle in released)


def test_a_file_sets_them_as_python_does(tmp_path):
    (tmp_path / "rows.jsonl").write_text("", encoding="utf-8")
    text = {
        "data": {
            "benchmark": {
                "name": "formula-mini",
                "params": {"train": 12, "validation": 6, "heldout": 6},
            }
        },
        "lms": {"task": "embedded"},
        "budget": {"rollouts": 60},
        "strategies": {
            "executor": {
                "name": "threads",
                "params": {"batching": {"queue": "target", "seconds": 2}},
            }
        },
    }
    executor = plan_run(text, tmp_path).combee(dspy.utils.DummyLM([])).settings.executor
    assert executor.batching == Batching("target", seconds=2)
    given = {"name": "threads", "params": {"batching": {"queue": 64, "seconds": 0.5}}}
    same = Combee(metric, max_metric_calls=9, reflection_lm=dspy.utils.DummyLM([]), executor=given)
    assert same.settings.executor == Threads(Batching(64, seconds=0.5))


class Told(BatchController):
    """A fixed size that keeps what it was told."""

    name = "told"

    def __init__(self) -> None:
        self.views: list[BatchView] = []

    def plan(self, view: BatchView) -> BatchDecision:
        self.views.append(view)
        return BatchDecision(8, "a test")


def test_a_controller_is_told_of_queue_prompts_variance_and_hardware():
    controller = Told()
    World.made().compile(controller=controller, costs=Costs(gpus={"task": 8}), num_threads=2)
    first, last = controller.views[0], controller.views[-1]
    assert (first.prompt_tokens, first.score_variance, first.gpus) == (None, None, 8)
    assert last.prompt_tokens is not None and last.prompt_tokens > 0
    assert last.score_variance is not None and last.score_variance > 0
    assert {view.capacity for view in controller.views} == {2}, "as stated"
    assert all(view.queued >= 0 for view in controller.views)


def test_a_controller_sees_seconds_as_they_were_measured_when_a_run_goes_on(tmp_path):
    def measured(updates: int) -> Any:
        controller = Told()
        World.made().compile(
            controller=controller,
            budget=Budget(updates=updates),
            search=Search(keep="pareto", staleness=0),
            skip_perfect_score=False,
            log_dir=tmp_path,
        )
        return controller.views[-1].measurements

    before, later = measured(3), measured(5)
    assert (len(before), len(later)) == (2, 4)
    assert later[:2] == before


def test_what_waits_for_a_slot_is_counted():
    async def counted() -> tuple[int, int]:
        slots = Slots(ThreadSession(1), Fixed(1))
        gate = threading.Event()
        waiting = [asyncio.ensure_future(slots.run(gate.wait, (number,))) for number in range(4)]
        await asyncio.sleep(0)
        found = slots.queued, slots._flying
        gate.set()
        await asyncio.gather(*waiting)
        await slots.close()
        return found

    assert asyncio.run(counted()) == (3, 1)
