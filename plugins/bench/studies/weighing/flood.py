"""100,000 traces streamed and killed five times; and what selection brings against chance.

From plugins/bench: ``python -m studies.weighing.flood --help``. A scripted service answers; no
language model.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import dspy
import typer

from combee_dspy import learn_lessons
from combee_dspy.streams import derive
from combee_dspy.traces import JsonLines, Selection, Trace, records_as_traces
from studies.weighing.prompts import FEEDBACK_WRONG
from studies.weighing.records import RULES, make_records
from studies.weighing.service import Service
from studies.weighing.tasks import HEADER, UNKNOWN, Laws, Task, make_rows, make_truth

_FAILING, _MACHINE, _REPEATED = 0.2, 0.3, 0.2

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


def make_flood(seed: int, count: int) -> Iterator[dict[str, object]]:
    """Yield records of a service: most are right, some are machine traffic, some repeat.

    The categories are not equally frequent: the nth of 60 comes with weight 1 / n.
    """
    stream = derive(seed, "records")
    truth = make_truth(RULES, stream)
    rows = make_rows(truth, count, stream)
    weights = {name: 1 / place for place, name in enumerate(truth.rules, start=1)}
    draws = derive(seed, "flood")
    last: dict[str, object] | None = None
    for number, row in enumerate(rows):
        if draws.random() > weights[row.case.category] * 3:
            continue
        right = draws.random() > _FAILING
        record: dict[str, object] = {
            "id": f"r{number}",
            "inputs": {"case": row.case.text(row.slip)},
            "outputs": {"code": row.code if right else UNKNOWN},
            "expected": {"code": row.code},
            "score": float(right),
            "feedback": "" if right else FEEDBACK_WRONG.format(code=row.code),
            "tags": {"caller": "cron-4" if draws.random() < _MACHINE else "web"},
        }
        yield record
        if last is not None and draws.random() < _REPEATED:
            yield {**last, "id": f"r{number}-again"}
        last = record


def _held_out(seed: int) -> Task:
    stream = derive(seed, "records")
    truth = make_truth(RULES, stream)
    rows = make_rows(truth, 400, derive(seed, "held-out"))
    return Task("flood", seed, truth, HEADER, (), (), rows, Laws())


def _score(task: Task, prompt: str) -> float:
    program = dspy.Predict(task.program().signature.with_instructions(prompt))
    with dspy.context(lm=Service(task.laws, task.seed)):
        right = sum(program(case=row.case.text(row.slip)).code == row.code for row in task.heldout)
    return 100 * right / len(task.heldout)


@app.command()
def curve(
    seeds: Annotated[int, typer.Option(help="Seeds, from 0 on.")] = 3,
    count: Annotated[int, typer.Option(help="Rows that the flood is drawn from.")] = 40_000,
) -> None:
    """Print lessons and held-out by tokens read: selected, and drawn at random."""
    typer.echo("| tokens | chosen | traces | failures among them | lessons | held-out, of 100 |")
    typer.echo("| ---: | --- | ---: | ---: | ---: | ---: |")
    for tokens in (2_000, 5_000, 10_000, 20_000, 40_000):
        for how in ("selected", "at random"):
            rows = [_point(seed, count, tokens, how) for seed in range(seeds)]
            means = [sum(column) / seeds for column in zip(*rows, strict=True)]
            cells = " | ".join(f"{mean:.1f}" for mean in means)
            typer.echo(f"| {tokens:,} | {how} | {cells} |")


def _point(seed: int, count: int, tokens: int, how: str) -> tuple[float, float, float, float]:
    task = _held_out(seed)
    traces: list[Trace] = list(records_as_traces(make_flood(seed, count)))
    selection = Selection(tokens=tokens, seed=seed)
    if how == "at random":
        shuffled = random.Random(seed).sample(traces, len(traces))  # noqa: S311 - a study
        everything = Selection(tokens=10**9, seed=seed).choose(traces)
        sizes = everything.tokens / len(everything.traces)
        traces = shuffled[: int(tokens / sizes)]
        selection = Selection(tokens=10**9, seed=seed)
    else:
        selection = Selection(tokens=tokens, seed=seed, drop={"caller": "cron*"})
    learned = learn_lessons(
        traces,
        reflection_lm=Service(task.laws, seed),
        task=task.instruction,
        selection=selection,
        num_threads=4,
    )
    chosen = learned.selected.traces
    failures = sum(trace.score == 0 for trace in chosen)
    return len(chosen), failures, len(learned.book.served), _score(task, learned.prompt)


@app.command()
def write(path: Path, count: int = 100_000, seed: int = 0) -> None:
    """Write a flood of about so many records as JSON lines."""
    with path.open("w", encoding="utf-8") as file:
        for number, record in enumerate(make_flood(seed, 5 * count)):
            if number == count:
                break
            file.write(json.dumps(record) + "\n")


@app.command()
def read(path: Path, log_dir: Path, tokens: int = 40_000, seconds: float = 0.05) -> None:
    """Learn from a file with a journal; each answer takes some time. Print calls and memory."""
    task = make_records(0, 0.0)

    def wait() -> None:
        with (log_dir.parent / "asked").open("a", encoding="utf-8") as asked:
            asked.write("x")  # one byte a call, also of a process that is killed
        time.sleep(seconds)

    started, before = time.monotonic(), _most_memory()
    learned = learn_lessons(
        JsonLines(str(path)),
        reflection_lm=Service(task.laws, 0, wait),
        task=task.instruction,
        selection=Selection(tokens=tokens, drop={"caller": "cron*"}),
        num_threads=1,
        log_dir=log_dir,
    )
    typer.echo(f"{learned.selected}")
    memory = f"{_most_memory():.0f} MB at most, {before:.0f} MB before"
    typer.echo(f"{time.monotonic() - started:.0f} s, {time.process_time():.0f} s of CPU, {memory}")
    typer.echo(
        f"{len(learned.book.served)} lessons, {sum(row.calls for row in learned.usage)} calls"
    )


def _most_memory() -> float:
    """Return the most memory so far, in MB; ``ru_maxrss`` would count that of who started us."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) / 1_024


@app.command()
def kill(count: int = 100_000, tokens: int = 40_000, times: int = 5) -> None:
    """Stream a flood, kill the reader some times, and count what was asked."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        write(home / "flood.jsonl", count)
        command = [sys.executable, "-m", "studies.weighing.flood", "read"]
        arguments = [str(home / "flood.jsonl"), str(home / "log"), "--tokens", str(tokens)]
        for number in range(1, times + 1):
            process = subprocess.Popen([*command, *arguments])  # noqa: S603 - ourselves
            while process.poll() is None and _size(home / "asked") < 12 * number:
                time.sleep(0.02)
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            typer.echo(f"killed after {_size(home / 'asked')} calls in all")
        subprocess.run([*command, *arguments], check=True)  # noqa: S603 - ourselves
        typer.echo(f"{_size(home / 'asked')} calls were asked in all")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


if __name__ == "__main__":
    app()
