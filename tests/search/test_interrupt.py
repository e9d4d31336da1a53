"""Ctrl-C in a process of its own, while a service hangs: it ends at once, and goes on later."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO

import dspy
import pytest

from combee_dspy import load_candidate
from combee_dspy.rollouts import _threads
from combee_dspy.search import in_own_loop
from tests.search.hanging import UP
from tests.slow import slow_but
from tests.worlds import rows

BOUND = 30
"""Seconds after which a process hangs; it takes no more than two."""


def run_interrupted(
    *arguments: str | Path, again: str = "", folder: Path | None = None
) -> tuple[int, str, str]:
    """Run a program until its service hangs, interrupt it, and return its exit status, stdout and
    stderr.

    Interrupt it once more when ``again`` is on stderr, if that is given. It runs in ``folder``, or
    where the tests do.
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
        output = _read_until(process.stdout, "hanging")
        os.kill(process.pid, signal.SIGINT)
        errors = _read_until(process.stderr, again)
        if again:
            os.kill(process.pid, signal.SIGINT)
        more_output, more_errors = process.communicate(timeout=BOUND)
    finally:
        process.kill()
    return process.returncode, output + more_output, errors + more_errors


def _read_until(stream: IO[str] | None, text: str) -> str:
    lines = ""
    while text not in lines:
        line = stream.readline() if stream else ""
        assert line, lines
        lines += line
    return lines


@pytest.mark.parametrize("way", slow_but(("one",), ["one", "many", "asyncio"]))
def test_an_interrupt_waits_for_no_service_that_hangs_and_leaves_the_best_so_far(
    way: str, tmp_path: Path
) -> None:
    code, output, errors = run_interrupted("-m", "tests.search.hanging", way, tmp_path)
    assert code == 0
    assert (
        f"Interrupted. What was paid for is kept in {tmp_path}: compile again with this log_dir to"
        " go on" in errors
    )
    assert f"interrupted with {'Program' if way == 'asyncio' else 'Predict'}" in output
    assert rows(tmp_path, "SELECT state FROM run")[0]["state"] == "interrupted"
    (count,) = rows(tmp_path, "SELECT count(*) AS n FROM effect WHERE kind = 'rollout'")
    # A program that holds up the loop holds up what three others have answered in the same turn.
    assert UP - (3 if way == "asyncio" else 0) <= count["n"] <= UP
    if way != "asyncio":
        assert load_candidate(dspy.Predict("question -> answer"), tmp_path, "best")


# Without an end of its own the first interrupt would wait for ever for what hangs.
ENDLESS = (
    "from combee_dspy.search import _compile, _compile; _compile._GONE = _compile._LET_GO = 1e9;"
    " from tests.search import hanging; hanging.main"
)


@pytest.mark.slow
def test_the_second_interrupt_of_a_compile_ends_it_whatever_the_first_waits_for(
    tmp_path: Path,
) -> None:
    code, output, errors = run_interrupted(
        "-c", f"{ENDLESS}('asyncio', {str(tmp_path)!r})", again="Interrupt again"
    )
    assert code == 0
    assert "interrupted with" in output
    assert "Interrupt again to end at once" in errors


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


@pytest.mark.slow
def test_the_command_ends_at_once_whatever_hangs(tmp_path: Path) -> None:
    (tmp_path / "hanging_program.py").write_text(PROGRAM)
    (tmp_path / "config.yaml").write_text(CONFIG)
    for name, of in (("rows", "a"), ("others", "b")):
        lines = [f'{{"question": "{of}{number}", "answer": "1"}}' for number in range(8)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    command = ("-m", "combee_dspy", "run", tmp_path / "config.yaml")
    code, _, errors = run_interrupted(*command, folder=tmp_path)
    assert code == 130
    assert f"What was paid for is kept in {tmp_path / 'log'}" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("advice", ["", "The same call goes on with runs/a."])
def test_what_an_interrupt_leaves_is_said_by_whoever_knows_it(
    advice: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupt(*_: object) -> None:
        monkeypatch.undo()
        raise KeyboardInterrupt

    async def hang() -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(_threads, "_wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        in_own_loop(hang, advice)
    words = ("Interrupted.", advice, "Interrupt again to end at once.")
    assert caplog.messages == [" ".join(filter(None, words))]
