"""When waiting jobs are released, and in which order they go."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from combee_dspy.exceptions import ArgumentError
from combee_dspy.registry import Spec
from combee_dspy.rollouts import Batching, Threads
from combee_dspy.rollouts._batching import Queue, Turn


@pytest.mark.parametrize(
    ("queued", "oldest", "variance", "released"),
    [
        (3, 0.0, None, False),
        (4, 0.0, None, True),
        (1, 0.19, 0.05, False),
        (1, 0.2, None, True),
        (1, 0.0, 0.05, False),
        (1, 0.0, 0.009, True),
    ],
)
def test_jobs_go_by_number_time_or_scores_whichever_comes_first(queued, oldest, variance, released):
    by_target = Batching(queue="target", seconds=0.2, variance=0.01)
    by_number = Batching(queue=4, seconds=0.2, variance=0.01)
    assert by_target.releases(queued, oldest, 4, variance) is released
    assert by_number.releases(queued, oldest, 64, variance) is released


@pytest.mark.parametrize(
    "params",
    [
        {"queue": 0},
        {"queue": "full"},
        {"seconds": -1},
        {"seconds": math.nan},
        {"variance": 0},
        {"variance": math.nan},
        {"patience": -1},
    ],
)
def test_parameters_out_of_range_are_refused_by_name(params):
    with pytest.raises(ArgumentError, match=f"Batching.{next(iter(params))}"):
        Batching(**params)


def test_an_executor_with_batching_comes_back_from_its_spec():
    batching = Batching(queue=8, seconds=0.2)
    executor = Threads(batching=batching)
    assert Spec.from_dict(Spec.of(executor).to_dict()).build() == executor
    assert Threads(batching={"queue": 8, "seconds": 0.2}).batching == batching


class Line(Queue):
    """A queue with a clock of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop, options: Batching) -> None:
        super().__init__(options)
        self.loop, self.numbers, self.now = loop, itertools.count(), 0.0

    def add(self, *priority: int) -> Turn:
        turn = Turn(priority, next(self.numbers), self.now, self.loop.create_future())
        self.push(turn)
        return turn

    def next(self, free: int = 1) -> Turn | float:
        return self.pop(free, 4, self.now)


@pytest.fixture
def make_line() -> Iterator[Callable[..., Line]]:
    loop = asyncio.new_event_loop()

    def make(**options: Any) -> Line:
        return Line(loop, Batching(**options))

    yield make
    loop.close()


def test_by_default_the_most_urgent_goes_first_and_equals_by_arrival(make_line):
    line = make_line()
    turns = [line.add(1), line.add(1), line.add(0)]
    assert [line.next() for _ in turns] == [turns[2], turns[0], turns[1]]
    assert line.next() == math.inf
    assert len(line) == 0


def test_a_batch_waits_for_company_or_the_clock(make_line):
    line = make_line(queue=3, seconds=0.5)
    first, second = line.add(1), line.add(1)
    assert line.next() == 0.5
    line.now = 0.2
    third = line.add(0)
    assert [line.next() for _ in range(3)] == [third, first, second]
    late = line.add(1)
    assert line.next() == pytest.approx(0.7)
    line.now = 0.7
    assert line.next() is late


def test_a_cancelled_turn_is_not_counted(make_line):
    line = make_line(queue=2, patience=9.0)
    line.add(1).future.cancel()
    line.add(1)
    assert line.next(free=4) == 9.0


def test_a_run_in_which_nothing_else_can_happen_does_not_hang(make_line):
    line = make_line(queue=64, patience=1.0)
    left = line.add(1)
    assert line.next(free=3) == math.inf, "something is in flight, and may bring more"
    assert line.next(free=4) == 1.0
    line.now = 1.0
    assert line.next(free=4) is left


def test_scores_that_are_alike_release(make_line):
    line = make_line(queue=64, variance=0.1)
    turn = line.add(1)
    for score in [0.0, 1.0] * 8:
        line.note_score(score)
    assert line.next() == math.inf
    for _ in range(32):
        line.note_score(1.0)
    assert line.next() is turn
