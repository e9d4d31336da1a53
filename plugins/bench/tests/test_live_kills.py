"""Servers and a learner are killed: no request is lost, no trace is learned twice."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.process import BaseProcess
from pathlib import Path

import dspy
import pytest

from combee_dspy.journal import Reader, RunHistory
from combee_dspy.streams import derive
from combee_strategist.canary import CanaryPlan, Registry, RequestLabelled, Serving
from combee_strategist.live import Learning
from combee_strategist.live._records import SessionBegun, SessionEnded
from studies.fortnight.live import NAME, FastClock, open_live, store
from studies.fortnight.peers import quietly
from studies.fortnight.world import LAWS, make_world
from studies.weighing.service import Service

SEED, SERVERS = 0, 2
PLAN = CanaryPlan(epsilon=0.2, pairs=10, hours=0.5)
# Longer than a whole session on a machine that does much else.
WAIT = 1_800.0
# Importing is 10 s of one core, 6 of them MLflow's: workers are forked from one that has done so.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload([__name__, "mlflow.store.tracking.sqlalchemy_store"])


@pytest.mark.slow
def test_what_is_killed_loses_no_request_and_learns_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    from plugins.bench.tests.sizes import show, size

    kills, stream = size("kills", 3), derive(SEED, "live kills")
    roles = ("learner", *(f"server{number}" for number in range(SERVERS)))
    began = time.time()
    # One makes MLflow's store before the others look for it.
    processes = {"server0": start("server0", tmp_path, began)}
    processes |= {role: start(role, tmp_path, began) for role in roles if role not in processes}
    killed: Counter[str] = Counter()
    for _ in range(kills):
        time.sleep(stream.uniform(0.0, 3.0))
        role = stream.choice(roles)
        processes[role].kill()
        killed[role] += ended(processes[role]) == -signal.SIGKILL
        processes[role] = start(role, tmp_path, began)
    served = len(read_lines(tmp_path / "answered"))
    wait_until(lambda: len(read_lines(tmp_path / "answered")) > served + 100)
    (tmp_path / "stop").touch()
    assert {role: ended(process) for role, process in processes.items()} == dict.fromkeys(roles, 0)
    facts = read_journals(tmp_path)
    answered, labelled = (read_lines(tmp_path / name) for name in ("answered", "labelled"))
    registry = Registry(NAME, store(tmp_path))
    audit = registry.audit()
    published = [line["to"] for line in audit if line["action"] == "publish"]
    show(
        {
            "kills": dict(killed),
            "requests": len(answered),
            "labels": len(labelled),
            "versions": len(published),
            "sessions": len(facts.begun),
            "traces learned": sum(ended.taught for ended in facts.ended),
        }
    )
    assert killed.total() == kills
    assert {request(name) for name in answered} <= facts.requests
    assert {request(name) for name in labelled} <= facts.labels
    # Each session takes the labels behind the last one's, and ends once: none is learned twice,
    # and none is passed over.
    assert [begun.number for begun in facts.begun] == list(range(1, len(facts.begun) + 1))
    for earlier, later in pairwise(facts.begun):
        assert later.after == earlier.upto
    assert max(Counter(ended.number for ended in facts.ended).values(), default=1) == 1
    assert sorted(published) == list(range(1, len(published) + 1))
    for number in published:
        assert registry.version(number).number == number
    production = registry.at("production")
    moves = [line["to"] for line in audit if line["action"] in ("promote", "rollback")]
    assert production == (moves[-1] if moves and audit[-1]["carried_out"] else production)
    assert production in published


@dataclass(frozen=True, slots=True)
class Facts:
    """What the journals hold: served and labelled requests, and sessions."""

    requests: set[str]
    labels: set[str]
    begun: list[SessionBegun]
    ended: list[SessionEnded]


def read_journals(folder: Path) -> Facts:
    facts = Facts(set(), set(), [], [])
    for path in folder.glob("serving/*/journal.sqlite"):
        with Reader(path, checked=True) as reader:
            sql = "SELECT example FROM effect WHERE kind = 'rollout' AND purpose = 'serving'"
            facts.requests.update(row[0] for row in reader.rows(sql))
            labels = RunHistory(reader).entries(RequestLabelled)
            facts.labels.update(entry.event.request for entry in labels)
    for path in folder.glob("learner/journal.sqlite"):
        with Reader(path, checked=True) as reader:
            history = RunHistory(reader)
            facts.begun.extend(entry.event for entry in history.entries(SessionBegun))
            facts.ended.extend(entry.event for entry in history.entries(SessionEnded))
    return facts


def start(role: str, folder: Path, began: float) -> BaseProcess:
    """Start a server or a learner, and return when it works."""
    up = folder / f"{role}.up"
    up.unlink(missing_ok=True)
    process = CONTEXT.Process(target=work, args=(role, folder, began))
    process.start()
    wait_until(lambda: up.exists() or not process.is_alive())
    assert process.is_alive(), f"{role} ended by itself"
    return process


def ended(process: BaseProcess) -> int | None:
    """Wait for the end of a process, and return how it ended."""
    process.join(WAIT)
    return process.exitcode


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def request(name: str) -> str:
    """Return what a request goes by in a journal."""
    return hashlib.blake2b(f"{NAME}\0{name}".encode(), digest_size=8).hexdigest()


def read_lines(file: Path) -> list[str]:
    """Return the whole lines of a file; a process may have died within the last one."""
    if not file.exists():
        return []
    return [line for line in file.read_text(encoding="utf-8").split("\n")[:-1] if line]


def work(role: str, folder: Path, began: float) -> None:
    """Serve or learn until a file says stop."""
    world, lm = make_world(SEED, 280), Service(LAWS, SEED)
    live = open_live(
        world.program(),
        lm,
        folder,
        FastClock(began),
        learning=Learning(least=10, hours=6),
        plan=PLAN,
        serving=Serving(shadow=1.0, ttl=0.5, queue=1000),
    )
    with dspy.context(lm=lm), quietly():
        if role == "learner":
            while not (folder / "stop").exists():
                live.tick()
                (folder / f"{role}.up").touch()
                time.sleep(0.1)
            live.close()
            return
        qa, numbers = live.serve(), random.Random(f"{role} {os.getpid()}")
        rows = [request.row for request in world.requests]
        while not (folder / "stop").exists():
            row, name = numbers.choice(rows), f"{role}-{os.getpid()}-{numbers.random()}"
            qa(case=row.case.text(numbers.randrange(10**6)), request_id=name)
            say(folder / "answered", name)
            (folder / f"{role}.up").touch()
            if numbers.random() < 0.5:
                qa.feedback(name, code=row.code, trusted=numbers.random() < 0.5)
                say(folder / "labelled", name)
            time.sleep(0.02)
        qa.close()


def say(file: Path, name: str) -> None:
    """Tell the world that something was promised: in a single write, which no kill divides."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{name}\n".encode())
    os.close(descriptor)
