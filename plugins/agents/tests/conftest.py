"""An environment in memory: tasks ask for a password, and a door that only some agents shut."""

from __future__ import annotations

import os
import threading
import time
from typing import ClassVar

import pytest

from combee_agents import AgentSession, Environment, EnvironmentFaultError, Evaluation, SessionPool

# No test writes into anybody's home.
os.environ["COMBEE_RECEIPTS"] = "off"


class DoorSession(AgentSession):
    def __init__(self, door: Door, task: str) -> None:
        self.door, self.task, self.said = door, task, []

    def exec(self, code: str) -> str:
        if code == "hang":
            self.door.killed.wait(30)
            raise ConnectionError("the door is gone")
        if code == "break":
            raise ZeroDivisionError("a fault in the environment's own code")
        if self.door.killed.is_set():
            raise EnvironmentFaultError("lost", "the door is gone")
        if code == "slow":
            time.sleep(0.02)
        self.said.append(code)
        return f"did {code}"

    def evaluate(self) -> Evaluation:
        if self.door.killed.is_set():
            raise EnvironmentFaultError("lost", "the door is gone")
        if "shut" in self.said:
            return Evaluation(1.0, "The door is shut.", passed=("the door is shut",))
        return Evaluation(
            0.0, "Failed: the door is shut.", failed={"the door is shut": "it is open"}
        )

    def close(self) -> None:
        self.door.closed.append(self.task)


class Door(Environment):
    made: ClassVar[list[Door]] = []
    fails_to_start: ClassVar[int] = 0

    def __init__(self) -> None:
        self.killed = threading.Event()
        self.kills = 0
        self.tasks: list[str] = []
        self.closed: list[str] = []
        Door.made.append(self)

    def start(self) -> None:
        if Door.fails_to_start:
            Door.fails_to_start -= 1
            raise EnvironmentFaultError("start", "the hinge is stuck")

    def open(self, task: str) -> AgentSession:
        if self.killed.is_set():
            raise EnvironmentFaultError("lost", "the door is gone")
        self.tasks.append(task)
        return DoorSession(self, task)

    def healthy(self) -> bool:
        return not self.killed.is_set()

    def kill(self) -> None:
        self.kills += 1
        self.killed.set()


@pytest.fixture
def doors():
    Door.made, Door.fails_to_start = [], 0
    return Door


@pytest.fixture
def pool(doors):
    with SessionPool(doors, 2) as made:
        yield made
