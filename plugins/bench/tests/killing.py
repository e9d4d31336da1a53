"""Processes to be killed: each is a fork of one that has loaded what they need.

To load takes seconds, and what is killed runs for less than one. Three with hash seeds of their
own take turns, so that a run goes on in a process of another hash seed, as it does elsewhere.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from combee_dspy.exceptions import CombeeError
from combee_dspy.journal import Reader, journal_file

_SEEDS = ("1", "2", "3")
EVERY = 0.002
"""Seconds between two looks at what a process has done."""


class Child:
    """A process that works, as a ``subprocess.Popen`` to who waits for it or kills it."""

    def __init__(self, parent: subprocess.Popen[str], arguments: Mapping[str, Any]) -> None:
        self._parent, self._code = parent, None
        assert parent.stdin is not None
        parent.stdin.write(f"{json.dumps(arguments)}\n")
        parent.stdin.flush()
        self.pid = self._read()

    def _read(self) -> int:
        assert self._parent.stdout is not None
        return int(self._parent.stdout.readline())

    def poll(self) -> int | None:
        """Return how it ended; ``None`` while it works."""
        if self._code is None and select.select([self._parent.stdout], [], [], 0)[0]:
            self._code = self._read()
        return self._code

    def wait(self) -> int:
        """Wait until it ends, and return how."""
        if self._code is None:
            self._code = self._read()
        return self._code

    def kill(self) -> bool:
        """Kill it, and return whether that ended it."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # ended meanwhile
                os.kill(self.pid, signal.SIGKILL)
        return self.wait() == -signal.SIGKILL


class Processes:
    """Starts processes that do one thing.

    Args:
        work: What each does with its arguments. Of a module, which is loaded once.
    """

    def __init__(self, work: Callable[[dict[str, Any]], None]) -> None:
        module = f"plugins.bench.tests.{work.__module__.rpartition('.')[2]}"
        command = [sys.executable, __file__, module, work.__name__]
        self._parents = []
        for seed in _SEEDS:
            environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            self._parents.append(
                subprocess.Popen(  # noqa: S603 - this file
                    command,
                    env=environ | {"PYTHONHASHSEED": seed},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )

    def start(self, arguments: dict[str, Any]) -> Child:
        """Start a process, in the folder that its ``folder`` lies in."""
        # The next has another hash seed.
        self._parents.append(self._parents.pop(0))
        return Child(self._parents[-1], arguments)

    def kill_at(self, arguments: dict[str, Any], effects: int | None) -> bool:
        """Start a process, kill it once its journal has so many effects, and return whether that
        ended it; ``None`` for one that dies by itself.
        """
        child, journal = self.start(arguments), None
        while child.poll() is None:
            if effects is not None:
                journal = journal or _opened(Path(arguments["folder"]))
                if journal is not None and _count(journal) >= effects:
                    break
            time.sleep(EVERY)
        if journal is not None:
            journal.close()
        return child.kill()

    def close(self) -> None:
        """End those that others are forked from."""
        for parent in self._parents:
            parent.communicate()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _opened(folder: Path) -> Reader | None:
    # To open it takes a thousand times as long as to count.
    with suppress(CombeeError, sqlite3.Error):  # not made yet
        return Reader(journal_file(folder))
    return None


def _count(journal: Reader) -> int:
    with suppress(CombeeError, sqlite3.Error):
        return int(journal.rows("SELECT count(*) FROM effect")[0][0])
    return 0


def _serve(module: str, name: str) -> None:
    """Fork for each line, and write the child's number and how it ended. The child returns."""
    work = getattr(importlib.import_module(module), name)
    pipe = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is written is no answer
    for line in sys.stdin:
        if not (pid := os.fork()):
            pipe.close()
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            arguments = json.loads(line)
            os.chdir(Path(arguments["folder"]).parent)
            work(arguments)
            return
        pipe.write(f"{pid}\n")
        pipe.flush()
        pipe.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        pipe.flush()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
