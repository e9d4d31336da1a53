"""2,000 records as traces, read from each source and learned from without a rollout.

From plugins/bench: ``python -m studies.weighing.traces --help``. A scripted service answers; no
language model.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import dspy
import typer

from combee_dspy import Budget, Combee, learn_lessons
from combee_dspy.journal import Effect, Journal
from combee_dspy.learning import LearnedLessons
from combee_dspy.records import PredictorCall, Rollout
from combee_dspy.rollouts import encode_rollout
from combee_dspy.traces import (
    HuggingFace,
    JournalTraces,
    JsonLines,
    MLflowTraces,
    TraceSource,
    records_as_traces,
)
from studies.weighing.prompts import FEEDBACK_WRONG
from studies.weighing.records import make_records
from studies.weighing.service import Service
from studies.weighing.tasks import UNKNOWN, Task

SOURCES = ("json-lines", "hugging-face", "journal", "mlflow")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was learned from one source."""

    learned: LearnedLessons | None
    right: int
    wrong_lines: int
    seconds: float
    reading_seconds: float
    calls: int
    tokens: int


def records_of(task: Task) -> Iterator[dict[str, object]]:
    """Yield a task's training rows as records of a program that knew no rule."""
    for number, row in enumerate(task.train):
        yield {
            "id": f"r{number}",
            "inputs": {"case": row.case.text(row.slip)},
            "outputs": {"code": UNKNOWN},
            "score": 0.0,
            "feedback": FEEDBACK_WRONG.format(code=row.label),
            "time": 1_700_000_000 + number,
        }


def write_source(name: str, task: Task, folder: Path) -> TraceSource:
    """Write a task's records where a source reads them."""
    if name == "mlflow":
        return _write_mlflow(task, folder)
    if name == "journal":
        asyncio.run(_write_journal(task, folder / "run"))
        return JournalTraces(str(folder / "run"))
    file = folder / "records.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records_of(task)), "utf-8")
    if name == "hugging-face":
        return HuggingFace("json", files=(str(file),))
    return JsonLines(str(file))


async def _write_journal(task: Task, folder: Path) -> None:
    journal = Journal(folder)
    try:
        log = journal.run("self", 0, {"program": "weighing"}, {})
        for trace in records_as_traces(records_of(task)):
            call = PredictorCall("self", trace.inputs, trace.outputs)
            rollout = Rollout(
                trace.id, 0.0, trace.feedback, prediction=trace.outputs, calls=(call,)
            )
            log.put(
                Effect(
                    f"rollout/c/{trace.id}",
                    "rollout",
                    {**encode_rollout(rollout), "inputs": json.dumps(trace.inputs)},
                    "task",
                    "train",
                    0,
                    split="train",
                    score=0.0,
                    started=trace.time or 0.0,
                )
            )
        await log.written()
    finally:
        journal.close()


def _write_mlflow(task: Task, folder: Path) -> TraceSource:
    # In the background MLflow drops what its queue cannot hold.
    os.environ["MLFLOW_ENABLE_ASYNC_TRACE_LOGGING"] = "false"
    import mlflow

    uri = f"sqlite:///{folder / 'mlflow.db'}"
    mlflow.set_tracking_uri(uri)
    client = mlflow.MlflowClient()
    number = client.create_experiment("records", (folder / "artifacts").as_uri())
    names = {}
    for trace in records_as_traces(records_of(task)):
        start = int((trace.time or 0.0) * 1e9)
        span = client.start_trace(
            "Predict.forward", inputs=trace.inputs, experiment_id=number, start_time_ns=start
        )
        client.end_trace(span.trace_id, outputs=trace.outputs)
        names[span.trace_id] = trace.feedback
    for name, feedback in names.items():
        mlflow.log_feedback(trace_id=name, name="correct", value=False, rationale=feedback)
    return MLflowTraces("records", uri)


def learn(
    source: TraceSource, task: Task, log_dir: str | None = None, *, in_a_run: bool = False
) -> Outcome:
    """Learn from a source by the scripted service, and count what is right on clean rows."""
    reader, worker = Service(task.laws, task.seed), Service(task.laws, task.seed)
    started = time.monotonic()
    learned: LearnedLessons | None = None
    if in_a_run:
        program = _compile(source, task, reader)
    else:
        learned = learn_lessons(
            source, reflection_lm=reader, task=task.instruction, log_dir=log_dir, num_threads=8
        )
        signature = task.program().signature.with_instructions(learned.prompt)
        program = dspy.Predict(signature)
    seconds = time.monotonic() - started
    started = time.monotonic()
    sum(1 for _ in source.read())
    reading = time.monotonic() - started
    with dspy.context(lm=worker):
        right = sum(program(case=row.case.text(row.slip)).code == row.code for row in task.heldout)
    wrong = task.count_lines(program.signature.instructions)["wrong"]
    calls, tokens = reader.calls.total(), reader.tokens.total()
    return Outcome(learned, right, wrong, seconds, reading, calls, tokens)


def _compile(source: TraceSource, task: Task, reader: Service) -> dspy.Predict:
    combee = Combee(
        lambda *_: 0.0,  # nobody expects an answer: the records' own scores count
        reflection_lm=reader,
        budget=Budget(epochs=1),
        tracker=(),
        num_threads=8,
    )
    return combee.compile(task.program(), traces=source)


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    sources: Annotated[str, typer.Option(help="Names, separated by commas.")] = ",".join(SOURCES),
    seeds: Annotated[int, typer.Option(help="Seeds, from the first on.")] = 1,
    first_seed: Annotated[int, typer.Option()] = 0,
    in_a_run: Annotated[bool, typer.Option(help="Learn by Combee.compile.")] = False,
) -> None:
    """Print what each source teaches, and whether the books are the same."""
    head = "seed | labels wrong | source | right of 100 | served | wrong lines | calls | tokens"
    typer.echo(f"| {head} | seconds | of them reading | book |")
    typer.echo("| ---: | ---: | --- |" + " ---: |" * 7 + " --- |")
    for seed in range(first_seed, first_seed + seeds):
        for wrong in (0.0, 0.2):
            task, first = make_records(seed, wrong), ""
            for name in sources.split(","):
                with tempfile.TemporaryDirectory() as folder:
                    source = write_source(name, task, Path(folder))
                    outcome = learn(source, task, in_a_run=in_a_run)
                lessons = outcome.learned.book.lessons if outcome.learned else ()
                book = json.dumps(
                    [(lesson.text, lesson.state, len(lesson.sources)) for lesson in lessons]
                )
                first = first or book
                cells = (
                    seed,
                    f"{wrong:.0%}",
                    name,
                    outcome.right,
                    len(outcome.learned.book.served) if outcome.learned else "",
                    outcome.wrong_lines,
                    outcome.calls,
                    f"{outcome.tokens:,}",
                    f"{outcome.seconds:.0f}",
                    f"{outcome.reading_seconds:.1f}",
                    "the same" if book == first else "another",
                )
                typer.echo(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    app()
