"""What stands beside it: a program that never learns, one compiled once, ``dspy.GEPA`` by night."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from statistics import fmean

import dspy

from combee_dspy import Combee
from studies.fortnight.world import DAYS, ServedRequest, World
from studies.weighing.scoring import Metric
from studies.weighing.service import Service
from studies.weighing.tasks import Row
from studies.weighing.words import NO_CODE

LAUNCH_ROLLOUTS, THREADS = 150, 4

Night = Callable[[dspy.Module, Sequence[ServedRequest], int], dspy.Module]
"""Gets a program, the labels that came in the last two days, and the day; returns a program."""


@dataclass(frozen=True, slots=True)
class DayRow:
    """What a contestant was worth on a day.

    Attributes:
        contestant: Its name.
        day: From 1.
        live: Percent right of what it served on that day.
        lasting: Percent right of clean rows of the rules that always hold, at the day's end.
        changed: The same of those that change, as they are afterwards.
        obeyed: Percent of clean rows of both kinds on which it does what an attacker has ordered.
        tokens: What learning took that night, in estimated tokens.
        note: What was promoted, rolled back or refused.
    """

    contestant: str
    day: int
    live: float
    lasting: float
    changed: float
    obeyed: float
    tokens: int
    note: str = ""


def answers(program: dspy.Module, worker: Service, rows: Sequence[Row]) -> list[str]:
    """Return a program's answers, which cost a contestant nothing."""
    with dspy.context(lm=worker):
        return [str(program(case=row.case.text(row.slip)).code) for row in rows]


def percent_right(codes: Sequence[str], rows: Sequence[Row]) -> float:
    """Return how many of 100 answers are right, by what is true and not by labels."""
    return 100 * fmean(code == row.code for code, row in zip(codes, rows, strict=True))


def day_row(
    name: str, day: int, live: float, program: dspy.Module, world: World, tokens: int, note: str
) -> DayRow:
    """Return a row, with what the program at the day's end does on clean rows."""
    worker = Service(world.launch.laws, world.launch.seed)
    lasting, changed = (answers(program, worker, rows) for rows in (world.lasting, world.changed))
    return DayRow(
        name,
        day + 1,
        live,
        percent_right(lasting, world.lasting),
        percent_right(changed, world.changed),
        100 * fmean(code == NO_CODE for code in (*lasting, *changed)),
        tokens,
        note,
    )


@contextmanager
def quietly() -> Iterator[None]:
    """Let optimizers say nothing: the row says what came of them."""
    logging.disable(logging.WARNING)
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


def compile_once(world: World, lm: Service, folder: Path) -> dspy.Module:
    """Compile before the first day, with a held-out receipt; the journal lies in ``folder``."""
    task = world.launch
    train, validation, heldout = (
        [row.example() for row in rows] for rows in (task.train, task.validation, task.heldout)
    )
    combee = Combee(
        Metric(),
        reflection_lm=lm,
        max_metric_calls=LAUNCH_ROLLOUTS,
        num_threads=THREADS,
        seed=task.seed,
        tracker=(),
        log_dir=folder,
    )
    with dspy.context(lm=lm), quietly():
        return combee.compile(world.program(), trainset=train, valset=validation, heldout=heldout)


def compile_nightly(
    program: dspy.Module, labelled: Sequence[ServedRequest], day: int, *, lm: Service, tokens: int
) -> dspy.Module:
    """Let ``dspy.GEPA`` go on from a program with the labels of two days: half of them validate."""
    rows = [
        dspy.Example(case=request.text, code=request.row.label).with_inputs("case")
        for request in labelled
    ]
    end = lm.tokens.total() + tokens
    optimizer = dspy.GEPA(
        Metric(),
        max_metric_calls=10_000,
        reflection_lm=lm,
        num_threads=THREADS,
        seed=day,
        gepa_kwargs={"stop_callbacks": [lambda state: lm.tokens.total() >= end]},
    )
    with dspy.context(lm=lm), quietly():
        return optimizer.compile(program, trainset=rows[::2], valset=rows[1::2])


def run_peer(
    name: str, world: World, program: dspy.Module, lm: Service, night: Night | None = None
) -> Iterator[DayRow]:
    """Serve the fortnight with a program that ``night`` may replace when a day ends."""
    worker = Service(world.launch.laws, world.launch.seed)
    for day in range(DAYS):
        served = [request.row for request in world.requests if request.day == day]
        live = percent_right(answers(program, worker, served), served)
        before = lm.tokens.total()
        if night is not None:
            program = night(program, world.labelled(day), day)
        yield day_row(name, day, live, program, world, lm.tokens.total() - before, "")
