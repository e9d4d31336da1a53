"""AppWorld's environment server as an environment of combee_dspy: one process, bound to loopback, a
worker.
"""

from __future__ import annotations

import http.client
import json
import os
from pathlib import Path
from typing import Any

from combee_agents import (
    AgentSession,
    Environment,
    EnvironmentFaultError,
    Evaluation,
    ServerProcess,
)

from combee_appworld._setup import Installation

__all__ = ["AppWorldEnvironment", "AppWorldSession"]

_LONGEST = 3_600.0
_TRACE_SHOWN = 600
_REFUSED = "Execution failed. The world could not carry this out, or could not report what it printed."


class _RefusedError(Exception):
    """The server answered with an error."""


class AppWorldEnvironment(Environment):
    """One server process with one world at a time, in a scratch folder of its own.

    The user's ``APPWORLD_ROOT`` is read and never written: the server's root is
    the scratch folder, whose ``data`` points to the user's. It sees no variable
    of this process, so no key either, and listens on 127.0.0.1 alone, on a port that
    the system chooses; users of the same machine could reach it.

    Args:
        root: An ``APPWORLD_ROOT``, which holds ``data``.
        installation: AppWorld's environment.
        seconds_a_step: After how many seconds AppWorld itself ends a piece of code, and tells the
            agent.
    """

    def __init__(self, root: Path, installation: Installation, *, seconds_a_step: int = 100) -> None:
        self._root = root.resolve()
        self._installation = installation
        self._seconds = seconds_a_step
        self._server: ServerProcess | None = None
        self._port = 0

    @property
    def pid(self) -> int | None:
        """The server's process group."""
        return self._server.pid if self._server else None

    @property
    def folder(self) -> Path | None:
        """The scratch folder, once started."""
        return self._server.folder if self._server else None

    def start(self) -> None:
        """Start the server.

        Raises:
            EnvironmentFaultError: AppWorld or its data is not there, or the server does not come
                up.
        """
        if not self._installation.python.exists():
            reason = f"AppWorld is not at {self._installation.folder}; run `combee appworld setup`"
            raise EnvironmentFaultError("setup", reason)
        if not (self._root / "data" / "tasks").is_dir():
            raise EnvironmentFaultError("setup", f"{self._root} holds no data/tasks, so it is no APPWORLD_ROOT")
        python = str(self._installation.python)
        serve = [
            "-P",
            "-m",
            "uvicorn",
            "appworld.serve.environment:app",
            "--host",
            "127.0.0.1",
            "--port",
            "0",
        ]
        env = {
            "PATH": os.defpath,
            "HOME": "{folder}",
            "TMPDIR": "{folder}",
            "IPYTHONDIR": "{folder}/ipython",
            "APPWORLD_ROOT": "{folder}",
            "APPWORLD_CACHE": "{folder}/cache",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            # It would look for .env files in every folder above its own.
            "PYTHON_DOTENV_DISABLED": "1",
            "LC_ALL": "C.UTF-8",
        }
        server = ServerProcess([python, *serve, "--no-access-log"], env=env, name="appworld")
        self._server = server
        (server.folder / "data").symlink_to(self._root / "data", target_is_directory=True)
        server.start()
        self._port = int(server.wait_for(r"running on http://127\.0\.0\.1:(\d+)").group(1))

    def open(self, task: str) -> AgentSession:
        """Begin an attempt at a task.

        Raises:
            EnvironmentFaultError: The world cannot be opened.
        """
        asked = {"task_id": task, "experiment_name": "combee", "timeout_seconds": self._seconds}
        try:
            opened = self.call("initialize", **asked)
        except _RefusedError as refusal:
            raise EnvironmentFaultError(
                "protocol", f"the world of task {task} cannot be opened: {refusal}"
            ) from refusal
        if not isinstance(opened, dict) or opened.get("task_id") != task:
            raise EnvironmentFaultError("protocol", f"asked for the world of {task}, got {str(opened)[:200]}")
        return AppWorldSession(self, task)

    def healthy(self) -> bool:
        """Whether the server runs."""
        return self._server is not None and self._server.alive

    def kill(self) -> None:
        """End the server with all it started, and remove its folder."""
        if self._server is not None:
            self._server.kill()

    def call(self, method: str, **body: Any) -> Any:
        """Call the server.

        Raises:
            EnvironmentFaultError: It is gone, or its answer cannot be read.
            _RefusedError: It answered with an error.
        """
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=_LONGEST)
        try:
            text = json.dumps(body).encode("utf-8", "surrogatepass")
            connection.request("POST", f"/{method}", text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            status, answer = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            reason = f"the server is gone ({type(error).__name__} in {method})"
            raise EnvironmentFaultError("lost", reason) from error
        finally:
            connection.close()
        if status != http.client.OK:
            raise _RefusedError(f"HTTP {status}: {answer[:300].decode('utf-8', 'replace')}; {self._last_words()}")
        try:
            return json.loads(answer)["output"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise EnvironmentFaultError("protocol", f"{method} answered {answer[:200]!r}") from error

    def _last_words(self) -> str:
        lines = self._server.log.strip().splitlines() if self._server else []
        return lines[-1][:300] if lines else "it printed nothing"


class AppWorldSession(AgentSession):
    """One attempt at one AppWorld task. Made by :meth:`AppWorldEnvironment.open`."""

    def __init__(self, environment: AppWorldEnvironment, task: str) -> None:
        self._environment = environment
        self._task = task

    def exec(self, code: str) -> str:
        """Carry out Python code in the world, and return what it printed or how it failed.

        Raises:
            EnvironmentFaultError: The server is gone.
        """
        try:
            return str(self._environment.call("execute", task_id=self._task, code=code))
        except _RefusedError:
            # The code's own doing, such as printing what is no text: a server at fault fails
            # evaluate too.
            return _REFUSED

    def evaluate(self) -> Evaluation:
        """Check the task's requirements.

        Raises:
            EnvironmentFaultError: The server is gone, or cannot judge.
        """
        try:
            told = self._environment.call("evaluate", task_id=self._task, suppress_errors=True)
        except _RefusedError as refusal:
            raise EnvironmentFaultError("protocol", f"task {self._task} cannot be judged: {refusal}") from refusal
        return read_evaluation(told)

    def close(self) -> None:
        """Close the world.

        Raises:
            EnvironmentFaultError: The server is gone, or cannot close it.
        """
        try:
            self._environment.call("close", task_id=self._task)
        except _RefusedError as refusal:
            raise EnvironmentFaultError("protocol", f"the world cannot be closed: {refusal}") from refusal


def read_evaluation(told: Any) -> Evaluation:
    """Read what AppWorld's evaluator returned.

    Raises:
        EnvironmentFaultError: It is not of the known form.
    """
    try:
        success = told["success"]
        passed = tuple(str(one["requirement"]) for one in told["passes"])
        failed = {str(one["requirement"]): _found(str(one["trace"])) for one in told["failures"]}
        total = int(told["num_tests"])
        details = {
            "requirements": total,
            "requirements_met": len(passed),
            "difficulty": told.get("difficulty"),
        }
    except (KeyError, TypeError, ValueError) as error:
        raise EnvironmentFaultError("protocol", f"the evaluation cannot be read: {str(told)[:200]}") from error
    if not isinstance(success, bool):
        raise EnvironmentFaultError("protocol", f"the evaluation names no success: {str(told)[:200]}")
    return Evaluation(float(success), _feedback(success, passed, failed, total), passed, failed, details)


def _found(trace: str) -> str:
    """Return what a failed check found: its assertion, else the check itself."""
    check, _, assertion = trace.rpartition("----------")
    said = assertion.strip().removeprefix("AssertionError:").strip()
    if said:
        return said[:_TRACE_SHOWN]
    lines = [line for line in check.strip().splitlines() if not line.startswith("```")]
    return ("it could not be checked, by\n" + "\n".join(lines))[:_TRACE_SHOWN]


def _feedback(success: bool, passed: tuple[str, ...], failed: dict[str, str], total: int) -> str:
    if success:
        return f"The task is complete: all {total} requirements are met."
    lines = [
        f"The task is not complete: {len(passed)} of {total} requirements are met.",
        "",
        "Not met:",
    ]
    for requirement, found in failed.items():
        lines.append(f"- {requirement}")
        lines.extend(f"    {line}" for line in found.splitlines() if line.strip())
    if passed:
        lines += ["", "Met:", *(f"- {requirement}" for requirement in passed)]
    return "\n".join(lines)
