"""Ctrl-C in a process of its own, while a service hangs: said at once, over at once, and gone on with later."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import dspy
import pytest

from combee_dspy import load_candidate
from tests.search.hanging import UP
from tests.worlds import rows

BOUND = 30
"""Seconds after which a process is said to hang; it takes no more than two."""


def interrupted(*arguments: str | Path, times: int = 1) -> tuple[int, str, str]:
    """Run a program until its service hangs, interrupt it, and return how it ended and what it said."""
    process = subprocess.Popen(  # noqa: S603 - ours
        [sys.executable, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        # A shell that starts pytest in the background has interrupts ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        said = ""
        while "hanging" not in said:
            line = process.stdout.readline()  # type: ignore[union-attr]  # it is a pipe
            assert line, process.stderr.read()  # type: ignore[union-attr]  # as above
            said += line
        for _ in range(times):
            os.kill(process.pid, signal.SIGINT)
        more, told = process.communicate(timeout=BOUND)
    finally:
        process.kill()
    return process.returncode, said + more, told


@pytest.mark.parametrize("way", ["one", "many", "asyncio"])
def test_an_interrupt_waits_for_no_service_that_hangs_and_leaves_the_best_so_far(way: str, tmp_path: Path) -> None:
    code, said, told = interrupted("-m", "tests.search.hanging", way, tmp_path)
    assert code == 0
    assert f"Interrupted. What was paid for is kept in {tmp_path}: compile again with this log_dir to go on" in told
    if way != "asyncio":  # nobody can ask a loop that a program holds up
        assert "interrupted with Predict" in said
        assert rows(tmp_path, "SELECT state FROM run")[0]["state"] == "failed"
        assert rows(tmp_path, "SELECT count(*) AS n FROM effect WHERE kind = 'rollout'") == [{"n": UP}]
        assert load_candidate(dspy.Predict("question -> answer"), tmp_path, "best")
