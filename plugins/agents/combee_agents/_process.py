"""A server process in a group of its own that ends with whoever started it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from combee_agents._base import EnvironmentFaultError

__all__ = ["ServerProcess"]

_GUARDIAN = Path(__file__).with_name("_guardian.py")
_POLL = 0.05
_LOG_SHOWN = 2_000
_LOG_READ = 1_000_000


class ServerProcess:
    """One command, with a folder of its own, and nothing left of either at the end.

    The command and all it starts are killed, and the folder removed, by
    :meth:`kill`, or when this process ends in whatever way, SIGKILL included:
    a small guardian process between the two sees to it. On Linux that covers
    descendants that left the process group.

    :meth:`kill` may be called from any thread; the other methods from one at a time.

    Args:
        command: What to run. ``{folder}`` in an argument stands for the folder.
        env: The whole environment of the command; ``{folder}`` as above.
        name: Part of the folder's name.

    Attributes:
        folder: A directory, readable by its owner alone; there from the start.
    """

    def __init__(
        self, command: Sequence[str], *, env: Mapping[str, str], name: str = "server"
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"combee-{name}-"))
        self._command = [part.replace("{folder}", str(self.folder)) for part in command]
        self._env = {key: value.replace("{folder}", str(self.folder)) for key, value in env.items()}
        self._process: subprocess.Popen[bytes] | None = None
        # Not in the folder, which goes with the command: what it printed last is what explains its
        # end.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by kill()
        self._killed = False
        self._lock = threading.Lock()

    @property
    def pid(self) -> int | None:
        """The guardian's process id, which is the process group's too; ``None`` before the
        start.
        """
        return self._process.pid if self._process else None

    @property
    def alive(self) -> bool:
        """Whether the command runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """The end of what the command printed (of its first million bytes); empty after
        :meth:`kill`.
        """
        return self._printed()[-_LOG_SHOWN:]

    def _printed(self) -> str:
        try:
            return os.pread(self._log.fileno(), _LOG_READ, 0).decode("utf-8", "replace")
        except (OSError, ValueError):
            return ""

    def start(self) -> None:
        """Start the command; it need not be ready yet.

        Raises:
            EnvironmentFaultError: It cannot be started, or was killed before.
        """
        guarded = [sys.executable, "-I", "-S", str(_GUARDIAN), str(self.folder), *self._command]
        with self._lock:
            if self._killed:
                raise EnvironmentFaultError("lost", "the environment was killed before it started")
            try:
                self._process = subprocess.Popen(  # noqa: S603 - the caller's command, no shell
                    guarded,
                    stdin=subprocess.PIPE,
                    stdout=self._log,
                    stderr=subprocess.STDOUT,
                    env=self._env,
                    cwd=self.folder,
                    start_new_session=True,
                )
            except OSError as error:
                raise EnvironmentFaultError("start", f"{type(error).__name__}: {error}") from error

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Wait until the command has printed what matches.

        Without a limit of its own: a pool's limit ends it, through :meth:`kill`.

        Args:
            pattern: A regular expression, searched for in the first million bytes that were
                printed.

        Raises:
            EnvironmentFaultError: The command ended before.
        """
        compiled = re.compile(pattern)
        while True:
            ended = not self.alive
            printed = self._printed()
            found = compiled.search(printed)
            if found:
                return found
            if ended:
                said = printed[-_LOG_SHOWN:].strip() or "nothing"
                raise EnvironmentFaultError(
                    "start", f"the server ended before it was ready; it printed: {said}"
                )
            time.sleep(_POLL)

    def kill(self) -> None:
        """Kill the command with all it started, and remove the folder. May be called twice."""
        with self._lock:
            self._killed = True
            process = self._process
            if process is not None:
                self._end(process)
            self._log.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        else:
            # The guardian may have been killed from outside, and its group be orphaned.
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
