"""What releases waiting jobs, and the batches in which they go."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.exceptions import ArgumentError
from combee_dspy.records import Rollout
from combee_dspy.registry import Spec
from combee_dspy.rollouts import Batching, RolloutJob, Threads
from combee_dspy.rollouts._batching import Batches, Lengths, Turn


def job(name: str, question: str = "q") -> RolloutJob:
    example = dspy.Example(question=question).with_inputs("question")
    return RolloutJob(dspy.Predict("question -> answer"), example, name, lambda *_: 1.0)


JOB = job("row")


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


def test_by_default_a_job_waits_for_nothing():
    assert Batching().releases(1, 0.0, 64)


@pytest.mark.parametrize(
    "params",
    [
        {"queue": 0},
        {"queue": "full"},
        {"seconds": -1},
        {"seconds": float("nan")},
        {"variance": 0},
        {"variance": float("nan")},
        {"preempt": "x"},
        {"tokens": 0},
        {"patience": -1},
    ],
)
def test_parameters_out_of_range_are_refused_by_name(params):
    with pytest.raises(ArgumentError, match=f"Batching.{next(iter(params))}"):
        Batching(**params)


def test_an_executor_with_batching_comes_back_from_its_spec():
    batching = Batching(queue=8, seconds=0.2, tokens=100)
    executor = Threads(batching=batching)
    assert Spec.from_dict(Spec.of(executor).to_dict()).build() == executor
    assert Threads(batching={"queue": 8, "seconds": 0.2, "tokens": 100}).batching == batching


class Line:
    """Batches with a clock of its own."""

    def __init__(self, **options: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.batches = Batches(Batching(**options))
        self.numbers = itertools.count()
        self.now = 0.0

    def push(self, *priority: int, program: int = 0, tokens: int = 1) -> Turn:
        group = (program, tokens.bit_length())
        turn = Turn(
            priority, group, next(self.numbers), self.now, tokens, self.loop.create_future()
        )
        self.batches.push(turn)
        return turn

    def pop(self, free: int = 1, target: int = 4) -> Turn | float:
        return self.batches.pop(free, target, self.now)

    def popped(self, count: int) -> list[Turn | float]:
        return [self.pop() for _ in range(count)]


@pytest.fixture
def line():
    made: list[Line] = []

    def make(**options: Any) -> Line:
        made.append(Line(**options))
        return made[-1]

    yield make
    for one in made:
        one.loop.close()


def test_batch_waits_for_company_or_the_clock(line):
    one = line(queue=3, seconds=0.5)
    first, second = one.push(1), one.push(1)
    assert one.pop() == 0.5
    one.now = 0.2
    third = one.push(0)

    assert one.popped(3) == [third, first, second]
    assert one.pop() == float("inf")
    late = one.push(1)
    assert one.pop() == pytest.approx(0.7)
    one.now = 0.7
    assert one.pop() is late


def test_jobs_of_one_program_and_length_go_together_within_one_urgency(line):
    one = line()
    a, b, c, d = (
        one.push(1, program=number % 2, tokens=[5, 5, 50, 50][number]) for number in range(4)
    )
    urgent = one.push(0, program=1)

    assert one.popped(5) == [urgent, a, c, b, d]


def test_batch_holds_one_length_class_and_no_more_tokens_than_said(line):
    one = line(tokens=12)
    short = [one.push(1, tokens=5) for _ in range(3)]
    long = one.push(1, tokens=90)

    assert one.popped(2) == short[:2]
    assert one.popped(2) == [short[2], long]


@pytest.mark.parametrize(
    ("preempt", "order"), [("drain", "abu"), ("rollback", "aub"), ("drop", "aub")]
)
def test_more_urgent_job_waits_for_the_batch_or_sends_it_back(line, preempt, order):
    one = line(preempt=preempt)
    named = {"a": one.push(1), "b": one.push(1)}
    found = [one.pop()]
    named["u"] = one.push(0)
    found += one.popped(2)

    assert found == [named[name] for name in order]


@pytest.mark.parametrize(("preempt", "due"), [("rollback", 0.5), ("drop", 0.7)])
def test_what_was_dropped_waits_anew_and_what_was_rolled_back_goes_on_waiting(line, preempt, due):
    one = line(preempt=preempt, queue=4, seconds=0.5)
    first, second, third, fourth = (one.push(1) for _ in range(4))
    assert one.popped(2) == [first, second]
    one.now = 0.2
    urgent = one.push(0)
    assert one.pop() == pytest.approx(due)

    one.now = due
    went = [turn.future for turn in one.popped(3)]
    assert went == [turn.future for turn in (urgent, third, fourth)], "none is lost"


@given(st.lists(st.integers(1, 400), min_size=1, max_size=20))
def test_lengths_are_prompt_tokens_as_they_were_measured(lengths):
    """Of rows that ran; of others by what their kind made of a character."""
    estimates = Lengths()
    rows = [job(str(number), "x" * length) for number, length in enumerate(lengths)]
    characters = [len(str(dict(row.example.inputs()))) for row in rows]
    assert estimates.estimate(rows[0]) == characters[0] // 4, (
        "four characters a token, before anything is known"
    )
    for row, count in zip(rows, characters, strict=True):
        estimates.note(row, 3 * count)
    assert [estimates.estimate(row) for row in rows] == [3 * count for count in characters]
    new = job("new", "y" * 50)
    assert estimates.estimate(new) == 3 * len(str(dict(new.example.inputs())))


def test_what_no_longer_waits_is_not_counted(line):
    one = line(queue=2, patience=9.0)
    one.push(1).future.cancel()
    one.push(1)

    assert one.pop(free=4) == 9.0


def test_run_in_which_nothing_else_can_happen_does_not_hang(line):
    one = line(queue=64, patience=1.0)
    left = one.push(1)

    assert one.pop(free=3) == float("inf")  # something is in flight, and may bring more
    assert one.pop(free=4) == 1.0
    one.now = 1.0
    assert one.pop(free=4) is left


def test_variance_of_the_latest_scores_can_release(line):
    one = line(queue=64, variance=0.1)
    turn = one.push(1)
    for score in [0.0, 1.0] * 8:
        one.batches.note(JOB, Rollout("row", score=score))
    assert one.pop() == float("inf")
    for _ in range(32):
        one.batches.note(JOB, Rollout("row", score=1.0))

    assert one.pop() is turn
