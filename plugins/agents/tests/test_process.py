"""Real processes: whatever is started ends with whoever started it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from combee_agents import EnvironmentFaultError, ServerProcess

ENV = {"PATH": os.environ["PATH"], "WHERE": "{folder}"}
linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="descendants are listed on Linux alone"
)
# A child, a grandchild, and one that leaves the process group.
FAMILY = """
sleep 300 & echo child $!
(sleep 300 & echo grandchild $!)
setsid sh -c 'echo runaway $$; exec sleep 300' &
sleep 0.3; echo ready $$; wait
"""


def gone(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    try:
        os.kill(pid, 0)
    except OSError:
        return True
    return False


def wait_until(what, seconds: float = 20.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if what():
            return True
        time.sleep(0.02)
    return bool(what())


def pids_in(text: str) -> list[int]:
    return [int(word) for line in text.splitlines() for word in line.split()[1:2] if word.isdigit()]


@linux
def test_kill_ends_every_descendant_and_removes_the_folder():
    server = ServerProcess(["sh", "-c", FAMILY], env=ENV)
    server.start()
    server.wait_for(r"ready \d+")
    pids = pids_in(server.log)
    assert len(pids) == 4
    assert server.alive
    assert not any(gone(pid) for pid in pids)
    server.kill()
    assert all(gone(pid) for pid in pids)
    assert not server.alive
    assert not server.folder.exists()
    server.kill()


@linux
def test_a_killed_owner_leaves_nothing_behind(tmp_path):
    owner = textwrap.dedent(f"""
        import os, signal, sys
        from combee_agents import ServerProcess
        server = ServerProcess(["sh", "-c", {FAMILY!r}], env=dict(PATH=os.environ["PATH"]))
        server.start()
        server.wait_for("ready")
        print(server.log, flush=True)
        print("folder", server.folder, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """)
    done = subprocess.run(  # noqa: S603 - this interpreter
        [sys.executable, "-c", owner], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = pids_in(done.stdout)
    folder = Path(done.stdout.split("folder ", 1)[1].strip())
    assert len(pids) == 4
    assert wait_until(lambda: all(gone(pid) for pid in pids) and not folder.exists())


@linux
def test_a_killed_guardian_is_noticed_and_its_group_ended():
    server = ServerProcess(["sh", "-c", "echo ready $$; exec sleep 300"], env=ENV)
    server.start()
    server.wait_for("ready")
    (pid,) = pids_in(server.log)
    os.kill(server.pid, signal.SIGKILL)
    assert wait_until(lambda: not server.alive)
    server.kill()
    assert wait_until(lambda: gone(pid))
    assert not server.folder.exists()


def test_the_folder_is_private_and_named_to_the_command():
    server = ServerProcess(
        ["sh", "-c", 'echo "$WHERE" {folder} "$PWD"; echo ready; sleep 300'], env=ENV
    )
    try:
        assert server.folder.stat().st_mode & 0o077 == 0
        server.start()
        server.wait_for("ready")
        assert server.log.splitlines()[0].split() == [str(server.folder)] * 3
    finally:
        server.kill()


def test_the_environment_is_the_given_one_and_holds_no_key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    server = ServerProcess(["sh", "-c", "env; echo ready; sleep 300"], env=ENV)
    server.start()
    try:
        assert "sk-secret" not in server.wait_for(r"(?s).*ready").group()
    finally:
        server.kill()


def test_a_command_that_ends_early_says_what_it_printed():
    server = ServerProcess(["sh", "-c", "echo no such port >&2; exit 3"], env=ENV)
    server.start()
    with pytest.raises(EnvironmentFaultError, match="no such port") as caught:
        server.wait_for("ready")
    assert caught.value.kind == "start"
    server.kill()


def test_a_command_that_is_not_there_says_so():
    server = ServerProcess(["/nowhere/at-all"], env=ENV)
    server.start()
    with pytest.raises(EnvironmentFaultError, match="/nowhere/at-all"):
        server.wait_for("ready")
    server.kill()


def test_killing_ends_a_wait_and_prevents_a_later_start():
    server = ServerProcess(["sleep", "300"], env=ENV)
    server.start()
    threading.Timer(0.2, server.kill).start()
    with pytest.raises(EnvironmentFaultError):
        server.wait_for("ready")
    server.kill()
    with pytest.raises(EnvironmentFaultError, match="killed before"):
        server.start()
