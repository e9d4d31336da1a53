"""A run starts at once: its trial runs beside the first effects, few of which begin before it has
ended.
"""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from combee_dspy import Budget
from combee_dspy.exceptions import LMUnreachableError
from combee_dspy.search import _preflight
from tests.worlds import World, task_answer

WITHIN = 20.0  # seconds after which nobody comes any more


def number_of(request: Any) -> int:
    return int(re.findall(r"Number (\d+)", request.last)[-1])


def compiled(world: World) -> Any:
    return world.compile(
        num_threads=8, reflection_minibatch_size=6, budget=Budget(updates=1)
    ).combee_report


def test_the_first_minibatch_runs_beside_the_first_rows_that_are_tried() -> None:
    rows: set[int] = set()
    third, beside = threading.Event(), []

    def held(request: Any) -> str:
        rows.add(number_of(request))
        if len(rows) > 2:
            third.set()
        beside.append(third.wait(WITHIN))
        return task_answer(request)

    compiled(World.made(held))
    assert all(beside), "nothing ran before the first rows had ended"


def test_the_first_rows_run_beside_the_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, beside = threading.Event(), []

    def answer(request: Any) -> str:
        asked.set()
        return task_answer(request)

    def probe(lms: Any) -> None:
        beside.append(asked.wait(WITHIN))

    monkeypatch.setattr(_preflight, "probe", probe)
    compiled(World.made(answer))
    assert beside == [True]


@pytest.mark.parametrize("threads", [8, 32])
def test_few_effects_begin_before_the_probe_has_ended(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, few = World.made(), 8
    enough = threading.Event()

    def answer(request: Any) -> str:
        if len(world.task_lm.requests) >= few:
            enough.set()
        return task_answer(request)

    def probe(lms: Any) -> None:
        enough.wait(WITHIN)
        raise LMUnreachableError("proposer", "scripted/proposer", "no such model")

    world = World.made(answer)
    monkeypatch.setattr(_preflight, "probe", probe)
    with pytest.raises(LMUnreachableError, match="no such model"):
        world.compile(num_threads=threads, reflection_minibatch_size=12, budget=Budget(updates=1))
    assert world.asked == few


def test_in_one_slot_the_probe_lets_two_effects_pass_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def probe(lms: Any) -> None:
        raise LMUnreachableError("proposer", "scripted/proposer", "no such model")

    world = World.made()
    monkeypatch.setattr(_preflight, "probe", probe)
    with pytest.raises(LMUnreachableError, match="no such model"):
        world.compile(num_threads=1, reflection_minibatch_size=12, budget=Budget(updates=1))
    assert world.asked <= 2


def test_what_the_probe_says_comes_before_what_the_rows_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = threading.Event()

    def metric(*given: Any) -> float:
        failed.set()
        raise ValueError("no score")

    def probe(lms: Any) -> None:
        failed.wait(WITHIN)
        raise LMUnreachableError("task", "scripted/task", "a wrong key")

    monkeypatch.setattr(_preflight, "probe", probe)
    with pytest.raises(LMUnreachableError, match="a wrong key"):
        World.made().compile(metric=metric, num_threads=8, reflection_minibatch_size=12)
