"""2,000 logged records, given to an aggregator alone: what its lessons are worth on 100 clean rows.

From plugins/bench: ``python -m studies.weighing.records --help``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any, cast

import dspy
import typer

from combee_dspy.aggregators import Aggregator
from combee_dspy.events import Event, WarningRaised
from combee_dspy.lessons import Book, Taught
from combee_dspy.records import Lessons, Reflection, Role
from combee_dspy.registry import resolve
from combee_dspy.strategies import StrategyContext
from combee_dspy.streams import derive
from combee_dspy.weighers import Posterior
from studies.weighing.prompts import FEEDBACK_WRONG
from studies.weighing.service import Service
from studies.weighing.tasks import HEADER, UNKNOWN, Laws, Row, Task, make_rows, make_truth

RECORDS, RULES, ROWS = 2_000, 60, 100


@dataclass(frozen=True, slots=True)
class ReducedRecords:
    """What an aggregator's lessons are worth, and what they cost."""

    right: int
    calls: int
    words: int
    lines: int
    wrong: int


def make_records(seed: int, wrong: float, count: int = RECORDS) -> Task:
    """Make the records as rows of a task; this share of their labels is wrong."""
    stream = derive(seed, "records")
    truth = make_truth(RULES, stream)
    train = make_rows(truth, count, stream, wrong)
    return Task("records", seed, truth, HEADER, train, (), make_rows(truth, ROWS, stream), Laws())


async def reduce_records(aggregator: Aggregator, task: Task, reader: dspy.BaseLM) -> Lessons:
    """Return an aggregator's lessons from a task's training rows, all answered wrongly."""

    async def ask(
        signature: type[dspy.Signature],
        inputs: Mapping[str, Any],
        place: tuple[str | int, ...],
        role: Role,
    ) -> dspy.Prediction:
        with dspy.context(lm=reader, adapter=dspy.JSONAdapter()):
            return await dspy.Predict(signature).acall(**inputs)

    def emit(event: Event) -> None:
        if isinstance(event, WarningRaised):
            typer.echo(f"{aggregator.name}: {event.text}", err=True)

    async def ready(number: int, row: Row) -> Reflection:
        return Reflection(number, _record(row))

    context = StrategyContext("predict", task.instruction, ask, emit, seed=task.seed)
    reflections = [
        asyncio.ensure_future(ready(number, row)) for number, row in enumerate(task.train)
    ]
    return await aggregator.aggregate(reflections, context)


def measure(name: str, task: Task) -> ReducedRecords:
    """Give a task's records to an aggregator, serve its lines, and count."""
    reader, worker = Service(task.laws, task.seed), Service(task.laws, task.seed)
    aggregator = cast("Aggregator", resolve("aggregator", name))
    lessons = asyncio.run(reduce_records(aggregator, task, reader))
    taught = (Taught(lesson.text, tuple(map(str, lesson.sources))) for lesson in lessons.lessons)
    book = Posterior().applied(Book().add(taught, born=0).edit(lessons.edits).book)
    text = "\n".join([task.instruction, *(f"- {lesson.text}" for lesson in book.served)])
    program = dspy.Predict(task.program().signature.with_instructions(text))
    with dspy.context(lm=worker):
        right = sum(program(case=row.case.text(row.slip)).code == row.code for row in task.heldout)
    lines = task.count_lines(text)
    return ReducedRecords(
        right, reader.calls.total(), len(text.split()), lines["lines"], lines["wrong"]
    )


def main(
    aggregators: Annotated[
        str, typer.Argument(help="Names, separated by commas.")
    ] = "union,parallel-scan",
    seeds: Annotated[int, typer.Option(help="Seeds, from 0 on.")] = 5,
) -> None:
    """Print the right of 100, the calls and the words of each aggregator, as means over seeds."""
    typer.echo("| aggregator | wrong labels | right of 100 | calls | words | lines | wrong lines |")
    typer.echo("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name in aggregators.split(","):
        for wrong in (0.0, 0.2):
            outcomes = [measure(name, make_records(seed, wrong)) for seed in range(seeds)]
            figures = (
                fmean(outcome.right for outcome in outcomes),
                fmean(outcome.calls for outcome in outcomes),
                fmean(outcome.words for outcome in outcomes),
                fmean(outcome.lines for outcome in outcomes),
                fmean(outcome.wrong for outcome in outcomes),
            )
            cells = " | ".join(f"{figure:,.1f}" for figure in figures)
            typer.echo(f"| {name} | {wrong:.0%} | {cells} |")


def _record(row: Row) -> dict[str, Any]:
    return {
        "Inputs": {"case": row.case.text(row.slip)},
        "Generated Outputs": {"code": UNKNOWN},
        "Feedback": FEEDBACK_WRONG.format(code=row.label),
    }


if __name__ == "__main__":
    typer.run(main)
