from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ClassVar

import pytest

from combee_dspy.controllers import BatchController
from combee_dspy.records import BatchDecision, Clamp
from combee_dspy.rollouts import Executor, Threads
from combee_dspy.testing import ConformanceError
from combee_dspy.testing.checks import controllers, executors


def controller(make):
    methods = {"name": "test", "__doc__": "A controller.", "plan": lambda self, view: make(view)}
    return type("Test", (BatchController,), methods)()


def one(view):
    return BatchDecision(1, "one is enough")


counter = itertools.count()
WRONG_CONTROLLERS = [
    (lambda v: 1, "check_sizes_are_within_the_trainset", "int for"),
    (lambda v: BatchDecision(8, "eight"), "check_sizes_are_within_the_trainset", "from 1 to 1"),
    (lambda v: BatchDecision(0, "none"), "check_sizes_are_within_the_trainset", "size 0"),
    (lambda v: BatchDecision(v.trainset_size / 1, "all"), "check_sizes_are_within_the_trainset", "size 1.0"),
    (lambda v: v.measurements[0], "check_sizes_are_within_the_trainset", "IndexError"),
    (lambda v: BatchDecision(1, ""), "check_says_why", "reason in one sentence"),
    (lambda v: BatchDecision(1, "x", clamps=(Clamp("a", 1, 1, "b"),)), "check_says_why", "each changed the size"),
    (
        lambda v: BatchDecision(1 + next(counter) % v.trainset_size, "counted"),
        "check_is_a_pure_function_of_the_view",
        "nothing kept",
    ),
    (lambda v: BatchDecision(v.trainset_size, "all"), "check_never_plans_beyond_the_budget", "rollouts that are left"),
]


@pytest.mark.parametrize("check", controllers.CHECKS, ids=lambda c: c.__name__)
def test_a_right_controller_passes(check):
    check(controller(one))


@pytest.mark.parametrize(("make", "check", "says"), WRONG_CONTROLLERS)
def test_wrong_controllers_fail_with_a_message_that_teaches(make, check, says):
    with pytest.raises(ConformanceError, match=r"expected: (.|\n)+happened: (.|\n)+to mend: ") as caught:
        getattr(controllers, check)(controller(make))
    assert says in str(caught.value)


def test_every_controller_check_has_a_strategy_that_fails_it():
    assert {check.__name__ for check in controllers.CHECKS} == {check for _, check, _ in WRONG_CONTROLLERS}


class Session:
    """Runs each task at once, in the caller's thread."""

    def __init__(self, workers):
        self.workers = workers

    def submit(self, task, /, *args):
        future = Future()
        try:
            future.set_result(task(*args))
        except Exception as error:  # noqa: BLE001 - a future holds whatever its task raised
            future.set_exception(error)
        return future

    def close(self):
        pass


class ReversedSession(Session):
    def submit(self, task, /, *args):
        return super().submit(task, *(-a - 1 if isinstance(a, int) else a for a in args))


class OneWorkerSession(Session):
    def __init__(self, workers):
        self.workers = 1


class WrappingSession(Session):
    def submit(self, task, /, *args):
        future = super().submit(task, *args)
        if future.exception():
            wrapped = Future()
            wrapped.set_exception(RuntimeError("a task failed"))
            return wrapped
        return future


class BareThreadSession(Session):
    def submit(self, task, /, *args):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(task, *args)


class ClosesOnceSession(Session):
    closed = False

    def close(self):
        if self.closed:
            raise RuntimeError("closed")
        self.closed = True


class ForgetfulSession(Session):
    def submit(self, task, /, *args):
        return Future()


def executor(session, refuse=True):
    class Test(Executor):
        name: ClassVar[str] = "test"

        def start(self, workers):
            return Threads().start(workers) if refuse and workers < 1 else session(workers)

    return Test()


def explodes(workers):
    raise OSError("no room")


WRONG_EXECUTORS = [
    (executor(ReversedSession), "check_results_come_in_the_order_of_submission", "own task"),
    (executor(explodes), "check_results_come_in_the_order_of_submission", "OSError"),
    (executor(OneWorkerSession), "check_says_how_many_workers_it_has", "it is 1"),
    (executor(WrappingSession), "check_exceptions_travel", "RuntimeError"),
    (executor(BareThreadSession), "check_copies_context_variables", "'default'"),
    (executor(ClosesOnceSession), "check_close_leaves_no_task_behind", "twice"),
    (executor(ForgetfulSession), "check_close_leaves_no_task_behind", "50 of 50"),
    (executor(Session, refuse=False), "check_refuses_fewer_than_one_worker", "returned a session"),
    (executor(explodes, refuse=False), "check_refuses_fewer_than_one_worker", "OSError"),
]


@pytest.mark.parametrize("check", executors.CHECKS, ids=lambda c: c.__name__)
def test_right_executors_pass(check):
    check(executor(Session))
    check(Threads())


@pytest.mark.parametrize(("strategy", "check", "says"), WRONG_EXECUTORS)
def test_wrong_executors_fail_with_a_message_that_teaches(strategy, check, says):
    with pytest.raises(ConformanceError, match=r"expected: (.|\n)+happened: (.|\n)+to mend: ") as caught:
        getattr(executors, check)(strategy)
    assert says in str(caught.value)


def test_a_future_that_never_finishes_is_reported_and_not_waited_for_without_end(monkeypatch):
    monkeypatch.setattr(executors, "_PATIENCE", 0.01)
    with pytest.raises(ConformanceError, match="never finished"):
        executors.check_results_come_in_the_order_of_submission(executor(ForgetfulSession))


def test_every_executor_check_has_a_strategy_that_fails_it():
    assert {check.__name__ for check in executors.CHECKS} == {check for _, check, _ in WRONG_EXECUTORS}


def test_executor_checks_leave_no_thread_behind():
    before = threading.active_count()
    for check in executors.CHECKS:
        check(Threads())
    assert threading.active_count() == before
