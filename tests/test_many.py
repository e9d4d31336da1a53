"""How several tasks share one pool: the choice of a shape."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.many import FULL, HYBRID_BELOW, SHAPES, ShapeDecision, choose_shape
from combee_dspy.many._crew import Crew, Job
from combee_dspy.many._shapes import given_shape

SHARES = st.floats(0, 1)
TASKS = st.integers(0, 100)
AT_ONCE = st.one_of(st.none(), st.integers(1, 50))


@given(SHARES, TASKS, AT_ONCE)
def test_hybrid_is_chosen_below_half_of_the_slots_and_never_above(utilisation, tasks, at_once):
    decision = choose_shape(utilisation, tasks, at_once=at_once)
    several = tasks > 1 and at_once != 1
    assert (decision.shape == "hybrid") == (several and utilisation < HYBRID_BELOW)
    assert (decision.shape == "task-parallel") == (several and HYBRID_BELOW <= utilisation < FULL)


@given(SHARES, TASKS, AT_ONCE)
def test_no_more_tasks_are_active_than_there_are_or_were_asked_for(utilisation, tasks, at_once):
    decision = choose_shape(utilisation, tasks, at_once=at_once)
    assert 1 <= decision.at_once <= max(1, tasks)
    assert at_once is None or decision.at_once <= at_once
    assert (decision.at_once == 1) == (decision.shape == "candidate-parallel")


@given(SHARES, SHARES)
def test_a_task_that_uses_less_gets_no_less_company(one, other):
    low, high = sorted((one, other))
    assert choose_shape(low, 100).at_once >= choose_shape(high, 100).at_once


@given(SHARES, st.integers(2, 100))
def test_the_reason_names_what_was_measured(utilisation, tasks):
    decision = choose_shape(utilisation, tasks)
    assert f"{utilisation:.0%}" in decision.reason
    assert decision.utilisation == utilisation


def test_as_many_tasks_as_fill_the_slots():
    assert choose_shape(0.25, 6) == ShapeDecision(
        "hybrid",
        4,
        "one task alone kept 25% of the slots busy, below 50%: 4 at once, and each takes the slots that are free",
        0.25,
    )
    assert choose_shape(0.1, 6).at_once == 6
    assert choose_shape(0.0, 100).at_once == 16
    assert choose_shape(0.6, 6).shape == "task-parallel"
    assert choose_shape(0.9, 6).shape == "candidate-parallel"


def test_where_the_border_lies_can_be_said():
    assert choose_shape(0.4, 6, below=0.3).shape == "task-parallel"
    assert choose_shape(0.6, 6, below=0.3, full=0.5).shape == "candidate-parallel"


@pytest.mark.parametrize(
    ("utilisation", "tasks", "more"),
    [
        (1.1, 2, {}),
        (-0.1, 2, {}),
        (float("nan"), 2, {}),
        (0.5, -1, {}),
        (0.5, 2, {"at_once": 0}),
        (0.5, 2, {"at_once": True}),
        (0.5, 2, {"below": 0.9, "full": 0.5}),
    ],
)
def test_what_is_no_measurement_is_refused(utilisation, tasks, more):
    with pytest.raises(ArgumentValueError):
        choose_shape(utilisation, tasks, **more)


@given(st.sampled_from(SHAPES), st.integers(0, 50), st.one_of(st.none(), st.integers(2, 9)))
def test_what_was_asked_for_is_done(shape, tasks, at_once):
    if shape == "candidate-parallel":
        at_once = None
    decision = given_shape(shape, tasks, at_once)
    assert decision.shape == shape
    assert 1 <= decision.at_once <= max(1, min(tasks, at_once or 4))


def test_a_failure_is_logged_without_a_piece_of_a_key(monkeypatch, caplog):
    key = "Zq7w" + "x9Kd" * 9
    monkeypatch.setenv("SOME_API_KEY", key)

    def compile_(*args, **kwargs):
        raise RuntimeError("a" * 260 + f" {key}" + " tail" * 20)

    task = SimpleNamespace(name="one", context={}, student=None, trainset=(), valset=None, heldout=None)
    job = Job(task, SimpleNamespace(compile=compile_), SimpleNamespace(cancelled=False))
    crew = Crew([job], stops=False)
    crew.run([0], 1)
    assert key in str(crew.results[0].error)
    assert "Task 'one' failed: RuntimeError: aaa" in caplog.text
    assert key[:6] not in caplog.text
