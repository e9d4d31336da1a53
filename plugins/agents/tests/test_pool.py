from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from combee_agents import Environment, EnvironmentFaultError, SessionLimits, SessionPool
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.rollouts import InfrastructureFaultError


def test_an_environment_serves_one_session_after_another(pool, doors):
    for task in ("a", "b", "c"):
        with pool.session(task) as session:
            assert session.exec("knock") == "did knock"
            assert session.steps == [("knock", "did knock")]
    assert [door.tasks for door in doors.made] == [["a", "b", "c"]]
    assert doors.made[0].closed == ["a", "b", "c"]
    assert (pool.stats.started, pool.stats.sessions, pool.stats.peak) == (1, 3, 1)


def test_no_more_sessions_than_environments_are_open_at_once(doors):
    together = threading.Barrier(3)

    def act(task: int) -> str:
        with pool.session(str(task)) as session:
            if task < 3:
                together.wait(20)
            return session.exec("slow")

    with SessionPool(doors, 3) as pool, ThreadPoolExecutor(9) as threads:
        first = [threads.submit(act, task) for task in range(3)]
        rest = [threads.submit(act, task) for task in range(3, 30)]
        assert [one.result(30) for one in first + rest] == ["did slow"] * 30
        assert pool.stats.peak == 3
        assert len(doors.made) == pool.stats.started == 3
        assert sorted(task for door in doors.made for task in door.tasks) == sorted(
            map(str, range(30))
        )


def test_what_the_agent_does_wrong_leaves_the_environment_in_use(pool, doors):
    with pytest.raises(KeyError), pool.session("a"):
        raise KeyError("the agent's own")
    with pool.session("b"):
        pass
    assert len(doors.made) == 1
    assert doors.made[0].closed == ["a", "b"]
    assert pool.stats.faults == {}


@pytest.mark.parametrize(("code", "kind"), [("hang", "timeout"), ("break", "protocol")])
def test_a_fault_replaces_the_environment_and_stays_with_the_session(doors, code, kind):
    with SessionPool(doors, 1, limits=SessionLimits(exec=0.2)) as pool:
        with pytest.raises(EnvironmentFaultError) as caught, pool.session("a") as session:
            for _ in range(2):
                with pytest.raises(EnvironmentFaultError) as inner:
                    session.exec(code)
                assert inner.value.kind == kind
            session.evaluate()
        assert caught.value.kind == kind
        assert caught.value.retryable
        assert doors.made[0].killed.is_set()
        with pool.session("a") as session:
            assert session.exec("shut") == "did shut"
        assert len(doors.made) == 2
        assert pool.stats.faults == {kind: 1}


def test_a_session_that_takes_too_long_as_a_whole_is_ended(doors):
    with SessionPool(doors, 1, limits=SessionLimits(session=0.2)) as pool:
        with pytest.raises(EnvironmentFaultError) as caught, pool.session("a") as session:
            doors.made[0].killed.wait(20)
            session.exec("shut")
        assert caught.value.kind == "timeout"
        assert "session of task a" in caught.value.reason


def test_an_environment_that_is_killed_from_outside_is_lost_to_its_session_alone(pool, doors):
    with pytest.raises(EnvironmentFaultError) as caught, pool.session("a") as session:
        doors.made[0].kill()
        session.evaluate()
    assert caught.value.kind == "lost"
    with pool.session("b") as session:
        assert session.evaluate().score == 0.0


def test_an_idle_environment_that_ended_costs_no_session(pool, doors):
    with pool.session("a"):
        pass
    doors.made[0].kill()
    with pool.session("b"):
        pass
    assert pool.stats.faults == {}
    assert [door.tasks for door in doors.made] == [["a"], ["b"]]


def test_one_that_does_not_start_makes_room_for_the_next(pool, doors):
    doors.fails_to_start = 2
    for _ in range(2):
        with pytest.raises(EnvironmentFaultError, match="hinge"), pool.session("a"):
            pass
    with pool.session("a"):
        pass
    assert pool.stats.faults == {"start": 2}


def test_waiting_for_a_free_environment_has_an_end(doors):
    with (
        SessionPool(doors, 1, limits=SessionLimits(wait=0.05)) as pool,
        pool.session("a"),
        pytest.raises(EnvironmentFaultError, match="became free"),
        pool.session("b"),
    ):
        pass


def test_closing_kills_what_is_idle_and_what_is_used(doors):
    pool = SessionPool(doors, 2)
    with pytest.raises(EnvironmentFaultError), pool.session("a") as session:
        with pool.session("b"):
            pass
        pool.close()
        session.exec("shut")
    assert [door.killed.is_set() for door in doors.made] == [True, True]
    with pytest.raises(ArgumentValueError, match="closed"), pool.session("c"):
        pass
    pool.close()


def test_a_pool_that_nobody_closed_leaves_nothing_behind(doors):
    pool = SessionPool(doors, 1)
    with pool.session("a"):
        pass
    del pool
    assert doors.made[0].killed.is_set()


def test_an_environment_is_replaced_after_its_uses(doors):
    with SessionPool(doors, 1, reuse=2) as pool:
        for task in "abcde":
            with pool.session(task):
                pass
    assert [door.tasks for door in doors.made] == [["a", "b"], ["c", "d"], ["e"]]
    assert doors.made[0].kills


def test_copies_share_the_pool_and_a_pickled_one_starts_anew(pool):
    assert copy.deepcopy({"pool": pool})["pool"] is pool
    assert copy.copy(pool) is pool
    with SessionPool(Environment, 3, reuse=7, identity="doors, oak") as given:
        again = pickle.loads(pickle.dumps(given))  # noqa: S301 - what this test has just made
    assert (again.size, repr(again)) == (3, "SessionPool('doors, oak')")


def test_a_fault_is_an_infrastructure_fault_and_survives_pickling():
    fault = pickle.loads(pickle.dumps(EnvironmentFaultError("setup", "not installed")))  # noqa: S301 - made here
    assert isinstance(fault, InfrastructureFaultError)
    assert (fault.kind, fault.reason, fault.retryable, fault.rollout) == (
        "setup",
        "not installed",
        False,
        None,
    )


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"size": 0}, "size"),
        ({"size": 1, "reuse": 0}, "reuse"),
    ],
)
def test_bad_parameters_are_named(doors, arguments, named):
    with pytest.raises(ArgumentValueError) as caught:
        SessionPool(doors, **arguments)
    assert caught.value.argument == named
