"""Flush rules, their algebra and how they are written; batches."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import dspy
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.exceptions import ArgumentError
from combee_dspy.records import Rollout
from combee_dspy.registry import Spec
from combee_dspy.rollouts import (
    Batching,
    FlushRule,
    FlushView,
    RolloutJob,
    Threads,
    at_once,
    queue_at_least,
    variance_below,
    waited,
)
from combee_dspy.rollouts._batching import Batches, Lengths, Turn


def job(name: str, question: str = "q") -> RolloutJob:
    example = dspy.Example(question=question).with_inputs("question")
    return RolloutJob(dspy.Predict("question -> answer"), example, name, lambda *_: 1.0)


JOB = job("row")
VIEWS = st.builds(
    FlushView,
    queued=st.integers(1, 100),
    oldest=st.floats(0, 10),
    free=st.integers(1, 10),
    target=st.integers(1, 64),
    variance=st.none() | st.floats(0, 1),
)
SIMPLE = st.one_of(
    st.builds(queue_at_least, st.integers(1, 80) | st.just("target")),
    st.builds(waited, st.floats(0, 10)),
    st.builds(variance_below, st.floats(0.001, 1)),
    st.builds(at_once),
)
RULES = st.recursive(
    SIMPLE, lambda inner: st.builds(lambda a, b, both: a & b if both else a | b, inner, inner, st.booleans())
)


@given(RULES, RULES, RULES, VIEWS)
def test_composition_is_the_algebra_of_or_and_and(a, b, c, view):
    assert (a | b).check(view) == (a.check(view) or b.check(view))
    assert (a & b).check(view) == (a.check(view) and b.check(view))
    assert (a & (b | c)).check(view) == ((a & b) | (a & c)).check(view)


@given(RULES, VIEWS)
def test_rule_is_what_it_is_written_as(rule, view):
    read = Batching(flush=str(rule)).flush

    assert read == rule
    assert read.check(view) == rule.check(view)
    assert read.due(view) == rule.due(view)


@given(RULES, VIEWS)
def test_rule_that_waits_for_the_clock_alone_fires_when_it_says_so(rule, view):
    due = rule.due(view)
    if due is None or rule.check(view):
        return
    assert due >= 0
    later = FlushView(view.queued, view.oldest + due + 1e-9, view.free, view.target, view.variance)
    # Either it fires then, or what it still waits for is not the clock.
    assert rule.check(later) or rule.due(later) is None or rule.due(later) > 0


@pytest.mark.parametrize(
    "text", ["", "now()", "waited(x)", "waited(-1)", "queue_at_least(0)", "waited(1) + waited(2)", "f", 3]
)
def test_what_is_no_rule_is_refused_with_the_remedy(text):
    with pytest.raises(ArgumentError, match="Give"):
        Batching(flush=text)


@pytest.mark.parametrize("make", [waited, variance_below])
@pytest.mark.parametrize("value", ["a", None, -1, float("nan")])
def test_what_is_no_number_is_refused(make: Any, value: Any) -> None:
    with pytest.raises(ArgumentError, match="is no number"):
        make(value)


def test_executor_with_batching_round_trips_through_its_spec_and_a_schema():
    made = Threads(batching=Batching(flush=queue_at_least(8) & (waited(0.2) | at_once()), tokens=100))

    assert Spec.from_dict(Spec.of(made).to_dict()).build() == made
    assert Threads(batching={"flush": "waited(0.2)"}).batching.flush == waited(0.2)
    schema = pydantic.TypeAdapter(Batching).json_schema()
    assert schema["properties"]["flush"]["type"] == "string"


class Line:
    """Batches with a clock of its own."""

    def __init__(self, **options: Any) -> None:
        self.loop = asyncio.new_event_loop()
        self.batches = Batches(Batching(**options))
        self.numbers = itertools.count()
        self.now = 0.0

    def push(self, *priority: int, program: int = 0, tokens: int = 1) -> Turn:
        group = (program, tokens.bit_length())
        turn = Turn(priority, group, next(self.numbers), self.now, tokens, self.loop.create_future())
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
    one = line(flush=queue_at_least(3) | waited(0.5))
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
    a, b, c, d = (one.push(1, program=number % 2, tokens=[5, 5, 50, 50][number]) for number in range(4))
    urgent = one.push(0, program=1)

    assert one.popped(5) == [urgent, a, c, b, d]


def test_batch_holds_one_length_class_and_no_more_tokens_than_said(line):
    one = line(tokens=12)
    short = [one.push(1, tokens=5) for _ in range(3)]
    long = one.push(1, tokens=90)

    assert one.popped(2) == short[:2]
    assert one.popped(2) == [short[2], long]


@pytest.mark.parametrize(("preempt", "order"), [("drain", "abu"), ("rollback", "aub"), ("drop", "aub")])
def test_more_urgent_job_waits_for_the_batch_or_sends_it_back(line, preempt, order):
    one = line(preempt=preempt)
    named = {"a": one.push(1), "b": one.push(1)}
    found = [one.pop()]
    named["u"] = one.push(0)
    found += one.popped(2)

    assert found == [named[name] for name in order]


@pytest.mark.parametrize(("preempt", "due"), [("rollback", 0.5), ("drop", 0.7)])
def test_what_was_dropped_waits_anew_and_what_was_rolled_back_goes_on_waiting(line, preempt, due):
    one = line(preempt=preempt, flush=queue_at_least(4) | waited(0.5))
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
    known = Lengths()
    rows = [job(str(number), "x" * length) for number, length in enumerate(lengths)]
    characters = [len(str(dict(row.example.inputs()))) for row in rows]
    assert known.of(rows[0]) == characters[0] // 4, "four characters a token, before anything is known"
    for row, count in zip(rows, characters, strict=True):
        known.measured(row, 3 * count)
    assert [known.of(row) for row in rows] == [3 * count for count in characters]
    new = job("new", "y" * 50)
    assert known.of(new) == 3 * len(str(dict(new.example.inputs())))


def test_what_no_longer_waits_is_not_counted(line):
    one = line(flush=queue_at_least(2), patience=9.0)
    one.push(1).future.cancel()
    one.push(1)

    assert one.pop(free=4) == 9.0


def test_run_in_which_nothing_else_can_happen_does_not_hang(line):
    one = line(flush=queue_at_least(64), patience=1.0)
    left = one.push(1)

    assert one.pop(free=3) == float("inf")  # something is in flight, and may bring more
    assert one.pop(free=4) == 1.0
    one.now = 1.0
    assert one.pop(free=4) is left


def test_variance_of_the_latest_scores_can_release(line):
    one = line(flush=variance_below(0.1))
    turn = one.push(1)
    for score in [0.0, 1.0] * 8:
        one.batches.heard(JOB, Rollout("row", score=score))
    assert one.pop() == float("inf")
    for _ in range(32):
        one.batches.heard(JOB, Rollout("row", score=1.0))

    assert one.pop() is turn


def test_rule_that_fails_lets_everything_go(line, caplog):
    one = line(flush=FlushRule("mine()", lambda view: 1 / 0 > 0))

    assert one.push(1) is one.pop()
    assert "mine()" in caplog.text
