"""Harbor as an environment of agent sessions: a process with one trial at a time."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

from combee_agents import (
    AgentSession,
    Environment,
    EnvironmentFaultError,
    Evaluation,
    FaultKind,
    ServerProcess,
)

from combee_terminal_bench._setup import harbor_python
from combee_terminal_bench._verdict import verdict

__all__ = ["HarborEnvironment", "Where", "judge"]

Where = Literal["docker", "namespace"]

_HARNESS = Path(__file__).parent / "harness"
# What a task's process must not see: keys of services, and this process's own Python.
_KEPT = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "USER",
    "XDG_CACHE_HOME",
    "SSL_CERT_FILE",
    "DOCKER_HOST",
    "DOCKER_CONTEXT",
    "DOCKER_CERT_PATH",
    "DOCKER_TLS_VERIFY",
    "DOCKER_CONFIG",
)
_FAULTS = frozenset({"setup", "start", "lost", "timeout", "protocol"})
_OVER = "(the time that the task gives to an agent is used up: nothing was carried out)"


class HarborEnvironment(Environment):
    """A worker of a pool: Harbor in its own Python, told over a socket what to do.

    Args:
        tasks: Folder of each task, by name.
        where: ``"docker"``, or ``"namespace"`` for tests of the harness.
        python: The Python that has Harbor (see :func:`combee_terminal_bench.harbor_python`).
        command_timeout: Seconds after which an agent's command is stopped, which the agent is told.
    """

    def __init__(
        self,
        tasks: Mapping[str, str],
        where: Where = "docker",
        python: str | None = None,
        command_timeout: int = 180,
    ) -> None:
        self._tasks = dict(tasks)
        self._where = where
        self._python = python
        self._command_timeout = command_timeout
        self._server: ServerProcess | None = None
        self._socket: socket.socket | None = None
        self._trials: list[str] = []
        self._killed = False

    def start(self) -> None:
        """Start Harbor's process, and return once it listens.

        Raises:
            EnvironmentFaultError: It does not come up.
        """
        env = {name: os.environ[name] for name in _KEPT if name in os.environ}
        env |= {
            "HARBOR_TELEMETRY": "0",
            "DO_NOT_TRACK": "1",
            "PYTHONPATH": str(_HARNESS),
            "TMPDIR": "{folder}",
        }
        command = [harbor_python(self._python), "-m", "combee_harbor.serve", "{folder}"]
        server = self._server = ServerProcess(command, env=env, name="harbor")
        if self._killed:
            server.kill()
        server.start()
        server.wait_for(r"(?m)^listening$")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(str(server.folder / "s"))

    def healthy(self) -> bool:
        """Tell whether the process runs."""
        return self._server is not None and self._server.alive

    def open(self, task: str) -> AgentSession:
        """Begin a trial, and return once its environment is up.

        Raises:
            EnvironmentFaultError: It does not come up; Harbor's words are in the reason.
        """
        self.begin(task)
        return HarborSession(self, self._command_timeout)

    def begin(self, task: str, agent: str = "combee") -> None:
        """Begin a trial with one of Harbor's agents, or ours."""
        if task not in self._tasks:
            raise EnvironmentFaultError("setup", f"there is no task {task!r}")
        self._trials.append(f"combee-{uuid.uuid4().hex[:12]}")
        request = {
            "task": self._tasks[task],
            "trial": self._trials[-1],
            "environment": self._where,
            "agent": agent,
        }
        self.ask("open", **request)

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a request, and return its answer.

        Raises:
            EnvironmentFaultError: The environment failed, or cannot be reached.
        """
        if self._socket is None:
            raise EnvironmentFaultError("lost", "Harbor's process has not been started")
        try:
            self._socket.sendall(json.dumps({"op": op, **fields}).encode() + b"\n")
            answer = json.loads(self._line())
        except OSError as error:
            log = self._server.log.strip() if self._server is not None else ""
            reason = f"Harbor's process does not answer: {error}. {log}".strip()
            raise EnvironmentFaultError("lost", reason) from error
        except ValueError as error:
            raise EnvironmentFaultError("protocol", f"Harbor's process answered what is no JSON: {error}") from error
        if answer.get("fault"):
            kind = cast("FaultKind", answer["fault"] if answer["fault"] in _FAULTS else "lost")
            raise EnvironmentFaultError(kind, str(answer.get("reason")))
        return dict(answer)

    def _line(self) -> bytes:
        data = bytearray()
        while not data.endswith(b"\n"):
            chunk = self._socket.recv(1 << 16) if self._socket is not None else b""
            if not chunk:
                raise ConnectionError("the connection was closed")
            data += chunk
        return bytes(data)

    def kill(self) -> None:
        """End the process, with the trial and all that belongs to it."""
        self._killed = True
        if self._socket is not None:
            # Wakes whoever waits for an answer.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
        if self._server is not None:
            self._server.kill()
        if self._where == "docker":
            remove_containers(self._trials)
        self._trials.clear()


class HarborSession(AgentSession):
    """One trial of Harbor's, from the agent's side.

    :meth:`evaluate` ends the agent's phase; then commands are not carried out any more.

    Args:
        environment: The worker.
        command_timeout: Seconds.
    """

    def __init__(self, environment: HarborEnvironment, command_timeout: int) -> None:
        self._environment = environment
        self._command_timeout = command_timeout
        self._closed = False

    def exec(self, code: str) -> str:
        """Run a shell command, and return what it printed, with its exit status where that is not
        0.

        Raises:
            EnvironmentFaultError: The environment failed.
        """
        answer = self._environment.ask("exec", command=code, timeout=self._command_timeout)
        if answer.get("over"):
            return _OVER
        if answer.get("late"):
            return f"(the command was stopped after {self._command_timeout} seconds; what it printed is lost)"
        parts = [str(answer["stdout"]).rstrip("\n"), str(answer["stderr"]).rstrip("\n")]
        if answer["code"] != 0:
            parts.append(f"[exit status {answer['code']}]")
        return "\n".join(part for part in parts if part) or "(no output)"

    def evaluate(self) -> Evaluation:
        """End the agent's phase, and run the task's verifier once.

        Raises:
            EnvironmentFaultError: There is no reward: the verifier failed, or took too long.
        """
        return verdict(self._environment.ask("evaluate"))

    def close(self) -> None:
        """Stop the task's environment and remove it.

        Raises:
            EnvironmentFaultError: The environment failed.
        """
        if not self._closed:
            self._closed = True
            self._environment.ask("close")


def judge(environment: HarborEnvironment, task: str, agent: Literal["oracle", "nop"]) -> Evaluation:
    """Return what the verifier says after Harbor's own oracle, or after nobody, has been at work.

    Args:
        environment: A worker that has been started.
        task: The task's name.
        agent: ``"oracle"`` runs the task's solution; ``"nop"`` does nothing.

    Raises:
        EnvironmentFaultError: The environment failed.
    """
    environment.begin(task, agent)
    try:
        return verdict(environment.ask("evaluate"))
    finally:
        environment.ask("close")


def remove_containers(trials: list[str]) -> None:
    """Remove what the container engine holds of trials whose process was killed."""
    for trial in trials:
        # As Harbor names its compose projects: one for the agent, further ones for verifiers.
        project = re.compile(re.escape(trial.lower()))
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            listed = subprocess.run(
                [
                    "docker",
                    "ps",
                    "-aq",
                    "--format",
                    '{{.ID}} {{.Label "com.docker.compose.project"}}',
                ],
                capture_output=True,
                text=True,
                timeout=30,
            )
            ids = [line.split()[0] for line in listed.stdout.splitlines() if project.search(line.partition(" ")[2])]
            if ids:
                subprocess.run(["docker", "rm", "-f", "-v", *ids], capture_output=True, timeout=60)
