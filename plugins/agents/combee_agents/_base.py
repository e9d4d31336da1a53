"""The contract of agent environments: a session to act in, and a worker that holds one at a
time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from combee_dspy.rollouts import InfrastructureFaultError

__all__ = ["AgentSession", "Environment", "EnvironmentFaultError", "Evaluation", "FaultKind"]

FaultKind = Literal["setup", "start", "lost", "timeout", "protocol"]
"""What went wrong with an environment:

- ``setup``: it is not installed, or its data is missing. Trying again does not help.
- ``start``: it did not come up, or opened no session, or no worker became free.
- ``lost``: its process died, or the connection to it broke.
- ``timeout``: it took longer than its limit and was killed.
- ``protocol``: it answered something that cannot be read.
"""


class EnvironmentFaultError(InfrastructureFaultError):
    """An environment failed, for a reason that says nothing about the agent in it.

    Raised inside a rollout it makes the run try again, and is never scored.

    Args:
        kind: What went wrong.
        reason: The same in words.
    """

    def __init__(self, kind: FaultKind, reason: str) -> None:
        super().__init__(f"environment fault ({kind}): {reason}", retryable=kind != "setup")
        self.kind: FaultKind = kind
        self.reason = reason

    def __reduce__(self) -> tuple[type[EnvironmentFaultError], tuple[FaultKind, str]]:
        return type(self), (self.kind, self.reason)


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What an environment says about the state that an agent left.

    Attributes:
        score: From 0 to 1; 1 is a success.
        feedback: Why it is no success, or that it is one.
        passed: Requirements that are met.
        failed: Requirements that are not, each to what was found.
        details: More figures, plain JSON values.
    """

    score: float
    feedback: str
    passed: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


class AgentSession(ABC):
    """One attempt at one task. Used by one thread at a time.

    A mistake of the agent is part of what :meth:`exec` returns. What says
    nothing about the agent is raised as :class:`EnvironmentFaultError`.
    """

    @abstractmethod
    def exec(self, code: str) -> str:
        """Carry out code or a command, and return what it printed, errors included."""

    @abstractmethod
    def evaluate(self) -> Evaluation:
        """Judge the present state. The session stays open."""

    @abstractmethod
    def close(self) -> None:
        """End the attempt, so that its environment can take the next one. May be called twice."""


class Environment(ABC):
    """A worker of a pool: something that holds one session at a time, such as a server process.

    Where it fails, ``start`` and ``open`` raise :class:`EnvironmentFaultError`.
    """

    @abstractmethod
    def start(self) -> None:
        """Come up, and return once sessions can be opened."""

    @abstractmethod
    def open(self, task: str) -> AgentSession:
        """Begin an attempt at a task, by its id."""

    def healthy(self) -> bool:
        """Whether a session may be opened, as far as can be told without opening one. By default
        yes.
        """
        return True

    @abstractmethod
    def kill(self) -> None:
        """End everything that belongs to this environment, at once, and remove what it wrote.

        Called from any thread, also while another one waits in ``start``,
        ``open`` or the session, whose call must then fail soon. May be called twice. Does not
        raise.
        """
