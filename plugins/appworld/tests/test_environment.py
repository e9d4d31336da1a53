"""Real worlds in real server processes."""

from __future__ import annotations

import os
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from acting import FINISH, PAGES, steps_for
from combee_agents import EnvironmentFaultError, SessionLimits, SessionPool

from combee_appworld import AppWorldEnvironment


def task(world: Path, name: str, place: int = 0) -> str:
    return (world / "data" / "datasets" / f"{name}.txt").read_text().split()[place]


def instruction(world: Path, task_id: str) -> str:
    import json

    return json.loads((world / "data" / "tasks" / task_id / "specs.json").read_text())["instruction"]


def test_the_oracle_completes_every_task_and_doing_nothing_none(pool, world):
    tasks = [one for path in sorted((world / "data" / "datasets").glob("*.txt")) for one in path.read_text().split()]
    assert len(tasks) == 21

    def attempt(task_id: str) -> tuple[float, float]:
        solution = (world / "data" / "tasks" / task_id / "ground_truth" / "solution.py").read_text()
        with pool.session(task_id) as session:
            before = session.evaluate().score
            assert session.exec(f"{solution}\nsolution(apis, requester)") == "Execution successful."
            return before, session.evaluate().score

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(attempt, tasks)) == [(0.0, 1.0)] * 21


def test_feedback_names_what_is_not_met_and_what_was_found(pool, world):
    task_id = task(world, "train", 3)
    steps = steps_for(instruction(world, task_id), FINISH)
    with pool.session(task_id) as session:
        for step in steps:
            session.exec(step)
        judged = session.evaluate()
    assert judged.score == 0.0
    assert (
        judged.feedback == "The task is not complete: 2 of 3 requirements are met.\n\n"
        "Not met:\n- assert answers match.\n    '5' == '6'\n\n"
        "Met:\n- assert the task was marked complete.\n- assert no model changes."
    )
    assert judged.details == {"requirements": 3, "requirements_met": 2, "difficulty": 1}


def test_the_agents_mistakes_are_observations_and_state_stays(pool, world):
    with pool.session(task(world, "train")) as session:
        assert "Syntax error" in session.exec("print(")
        assert "ZeroDivisionError" in session.exec("1 / 0")
        assert "Execution failed" in session.exec("import os; os.listdir('/')")
        session.exec("kept = 7")
        assert session.exec("print(kept)").strip() == "7"
        # AppWorld cannot write this down, and nothing that is printed after it either; the state is
        # not touched.
        assert "could not report" in session.exec("print('\\ud800')")
        assert session.evaluate().score == 0.0
        assert session.fault is None
    with pool.session(task(world, "train")) as session:
        assert "NameError" in session.exec("print(kept)")
    assert pool.stats.faults == {}


def test_code_that_hangs_is_ended_by_the_world_and_told(world, installation):
    with SessionPool(lambda: AppWorldEnvironment(world, installation, seconds_a_step=1), 1) as pool:
        with pool.session(task(world, "train")) as session:
            assert "timed out" in session.exec("while True: pass")
            assert session.exec("print(1)").strip() == "1"


def test_a_server_that_hangs_is_a_fault_and_leaves_nothing(world, installation):
    made: list[AppWorldEnvironment] = []

    def make() -> AppWorldEnvironment:
        made.append(AppWorldEnvironment(world, installation))
        return made[-1]

    with SessionPool(make, 1, limits=SessionLimits(exec=2)) as pool:
        with (
            pytest.raises(EnvironmentFaultError) as caught,
            pool.session(task(world, "train")) as session,
        ):
            session.exec("while True:\n    try:\n        while True: pass\n    except BaseException: pass")
        assert caught.value.kind == "timeout"
        assert not made[0].healthy()
        assert not made[0].folder.exists()
        with pool.session(task(world, "train")) as session:
            assert session.exec("print(1)").strip() == "1"


def test_it_listens_on_loopback_alone_and_writes_nothing_of_the_users(world, installation):
    before = sorted(path for path in world.rglob("*") if "__pycache__" not in path.parts)
    environment = AppWorldEnvironment(world, installation)
    try:
        environment.start()
        port = environment._port
        with socket.create_connection(("127.0.0.1", port), timeout=10):
            pass
        listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
        bound = {line.split()[1] for line in listening.splitlines() if f":{port:04X} " in f"{line.split()[1]} "}
        assert bound == {f"0100007F:{port:04X}"}
        session = environment.open(task(world, "train"))
        session.exec("print(1)")
        session.close()
        assert (environment.folder / "experiments").is_dir()
    finally:
        environment.kill()
    assert not environment.folder.exists()
    assert sorted(path for path in world.rglob("*")) == before


def test_eight_in_parallel_one_killed_in_the_middle(world, installation):
    """All eight are open at once; the killed one alone is lost, and its task is done again by
    another worker.
    """
    task_ids = [task(world, name, place) for name in ("train", "dev") for place in range(4)]
    made: dict[int, AppWorldEnvironment] = {}
    together = threading.Barrier(8)
    victim = task_ids[5]

    def make() -> AppWorldEnvironment:
        environment = AppWorldEnvironment(world, installation)
        made[id(environment)] = environment
        return environment

    def attempt(task_id: str, again: bool = False) -> float:
        with pool.session(task_id) as session:
            first, *rest = steps_for(instruction(world, task_id), FINISH + PAGES)
            session.exec(first)
            if not again:
                together.wait(500)
                if task_id == victim:
                    os.killpg(session._environment.pid, signal.SIGKILL)
            for step in rest:
                session.exec(step)
            return session.evaluate().score

    def retried(task_id: str) -> tuple[float, str | None]:
        try:
            return attempt(task_id), None
        except EnvironmentFaultError as fault:
            return attempt(task_id, again=True), fault.kind

    limits = SessionLimits(start=500, open=500, exec=500, evaluate=500)
    with SessionPool(make, 8, limits=limits) as pool, ThreadPoolExecutor(8) as threads:
        done = dict(zip(task_ids, threads.map(retried, task_ids), strict=True))
        assert pool.stats.peak == 8
        assert pool.stats.faults == {"lost": 1}
        folders = [environment.folder for environment in made.values()]
    assert done == {one: (1.0, "lost" if one == victim else None) for one in task_ids}
    assert len(folders) == 9
    assert not any(folder.exists() for folder in folders)


def test_what_is_missing_is_no_fault_that_trying_again_would_mend(tmp_path, installation, world):
    from combee_appworld import Installation

    for environment in (
        AppWorldEnvironment(tmp_path, installation),
        AppWorldEnvironment(world, Installation(tmp_path / "nowhere", "")),
    ):
        with pytest.raises(EnvironmentFaultError) as caught:
            environment.start()
        assert (caught.value.kind, caught.value.retryable) == ("setup", False)
        environment.kill()


def test_a_task_that_is_not_there_is_a_fault_and_not_a_score(pool):
    with pytest.raises(EnvironmentFaultError, match="cannot be opened"), pool.session("zzzzzz9_1"):
        pass
