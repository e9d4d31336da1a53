"""Ctrl-C in a process of its own, while a service hangs: said at once, over at once, and gone on
with later.
"""

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
from tests.slow import slow_but
from tests.worlds import rows

BOUND = 30
"""Seconds after which a process is said to hang; it takes no more than two."""


def interrupted(
    *arguments: str | Path, again: str = "", folder: Path | None = None
) -> tuple[int, str, str]:
    """Run a program until its service hangs, interrupt it, and return how it ended and what it
    said.

    Interrupt it once more when it has said ``again`` on stderr, if that is given. It runs in
    ``folder``, or where the tests do.
    """
    process = subprocess.Popen(  # noqa: S603 - ours
        [sys.executable, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        # A shell that starts pytest in the background has interrupts ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        said = ""
        while "hanging" not in said:
            line = process.stdout.readline()  # type: ignore[union-attr]  # it is a pipe
            assert line, process.stderr.read()  # type: ignore[union-attr]  # as above
            said += line
        os.kill(process.pid, signal.SIGINT)
        heard = ""
        while again not in heard:
            line = process.stderr.readline()  # type: ignore[union-attr]  # it is a pipe
            assert line, heard
            heard += line
        if again:
            os.kill(process.pid, signal.SIGINT)
        more, told = process.communicate(timeout=BOUND)
    finally:
        process.kill()
    return process.returncode, said + more, heard + told


@pytest.mark.parametrize("way", slow_but(("one",), ["one", "many", "asyncio"]))
def test_an_interrupt_waits_for_no_service_that_hangs_and_leaves_the_best_so_far(
    way: str, tmp_path: Path
) -> None:
    code, said, told = interrupted("-m", "tests.search.hanging", way, tmp_path)
    assert code == 0
    assert (
        f"Interrupted. What was paid for is kept in {tmp_path}: compile again with this log_dir to"
        " go on" in told
    )
    assert f"interrupted with {'Program' if way == 'asyncio' else 'Predict'}" in said
    assert rows(tmp_path, "SELECT state FROM run")[0]["state"] == "interrupted"
    (count,) = rows(tmp_path, "SELECT count(*) AS n FROM effect WHERE kind = 'rollout'")
    # A program that holds up the loop holds up what three others have answered in the same turn.
    assert UP - (3 if way == "asyncio" else 0) <= count["n"] <= UP
    if way != "asyncio":
        assert load_candidate(dspy.Predict("question -> answer"), tmp_path, "best")


# Without an end of its own the first interrupt would wait for ever for what hangs.
ENDLESS = (
    "from combee_dspy.search import _compile, _own_loop; _own_loop._GONE = _compile._LET_GO = 1e9;"
    " from tests.search import hanging; hanging.main"
)


@pytest.mark.slow
def test_the_second_interrupt_of_a_compile_ends_it_whatever_the_first_waits_for(
    tmp_path: Path,
) -> None:
    code, said, told = interrupted(
        "-c", f"{ENDLESS}('asyncio', {str(tmp_path)!r})", again="Interrupt again"
    )
    assert code == 0
    assert "interrupted with" in said
    assert "Interrupt again to end at once" in told


PROGRAM = """
import threading
import dspy

class Program(dspy.Module):
    def __init__(self):
        super().__init__()
        self.ask = dspy.Predict("question -> answer")

    def forward(self, question):
        print("hanging", flush=True)
        thread = threading.Thread(target=threading.Event().wait)  # no daemon: Python waits for it
        thread.start()
        thread.join()

def metric(gold, pred, trace=None, pred_name=None, pred_trace=None):
    return 0.0
"""
CONFIG = """
program: hanging_program:Program
metric: hanging_program:metric
data: {train: rows.jsonl, validation: others.jsonl, inputs: [question]}
lms: {task: {model: openai/none, api_base: "http://127.0.0.1:9/v1", num_retries: 0}}
validation: {probe: false}
budget: {rollouts: 50}
log_dir: log
"""


# The second interrupt comes when the first has been told, and the process is about to end.
TWICE = """
import os, signal, sys
from combee_dspy.cli import _group, main

class Stdout:
    def write(self, text):
        pass

    def flush(self):
        os.kill(os.getpid(), signal.SIGINT)

def say(*args, **kwargs):
    sys.stdout = Stdout()
    return real(*args, **kwargs)

real, _group.say = _group.say, say
main()
"""


@pytest.mark.parametrize(
    "command",
    [pytest.param(("-m", "combee_dspy"), marks=pytest.mark.slow), ("-c", TWICE)],
    ids=["once", "twice"],
)
def test_the_command_ends_at_once_whatever_hangs(tmp_path: Path, command: tuple[str, str]) -> None:
    (tmp_path / "hanging_program.py").write_text(PROGRAM)
    (tmp_path / "config.yaml").write_text(CONFIG)
    for name, of in (("rows", "a"), ("others", "b")):
        lines = [f'{{"question": "{of}{number}", "answer": "1"}}' for number in range(8)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    code, _, told = interrupted(*command, "run", tmp_path / "config.yaml", folder=tmp_path)
    assert code == 130
    assert f"What was paid for is kept in {tmp_path / 'log'}" in told
    assert "Traceback" not in told
