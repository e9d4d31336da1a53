"""Runs what has not been run, each cell in a process of its own, and reads it again.

The processes are forks of one that has everything imported, so a cell begins at once. What a cell
came to is a line of ``cells.jsonl``, which this process alone writes.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import sys
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import cycle
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

from pydantic import TypeAdapter

from combee_bench.surroundings import quietly
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.files import write_plain
from studies.real.cells import Finished, StudyOptions, measure
from studies.real.plan import PARTS, Cell, planned
from studies.real.tables import read_cells, tables

__all__ = ["Outcome", "line", "run", "table"]

_RECORDS = TypeAdapter(Finished)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a cell ended: with what it came to, or with a problem, and then it is run again."""

    cell: Cell
    seconds: float
    finished: Finished | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Running:
    cell: Cell
    process: ForkProcess
    began: float


def run(options: StudyOptions) -> Iterator[Outcome]:
    """Run the cells that the folder lacks, in the order of the plan.

    Raises:
        ArgumentValueError: A part is none of the study's, or ``labels`` lacks its rows.
    """
    for part in options.parts:
        if part not in PARTS:
            remedy = f"Name some of {', '.join(PARTS)}."
            raise ArgumentValueError("parts", part, "is no part of the study", remedy)
    if {"labels", "labels-mended"} & set(options.parts) and options.labels is None:
        remedy = "Name the folder of FiNER's rows, or leave the part out."
        raise ArgumentValueError("labels", None, "is where rows are read from", remedy)
    options.folder.mkdir(parents=True, exist_ok=True)
    file = options.folder / "cells.jsonl"
    finished = read_cells(file)
    ended = {done.cell for done in finished}
    cells = (cell for part in options.parts for cell in planned(part))
    waiting = deque(
        cell
        for cell in cells
        if cell not in ended and (not options.only or cell.method in options.only)
    )
    for outcome in _ended(waiting, options):
        if outcome.finished is not None:
            finished.append(outcome.finished)
            write_plain(file, "".join(f"{json.dumps(asdict(done))}\n" for done in finished))
        yield outcome


def _ended(waiting: deque[Cell], options: StudyOptions) -> Iterator[Outcome]:
    end = time.monotonic() + options.seconds
    running: dict[Connection, _Running] = {}
    # The processes are killed, and none is left behind that nobody waits for.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    services = cycle((options.api_base or "").split(","))
    try:
        while waiting or running:
            now = time.monotonic()
            while waiting and len(running) < options.cells and now < end:
                chosen = replace(options, api_base=next(services) or None)
                connection, started = _start(waiting.popleft(), chosen)
                running[connection] = started
            ready = wait(list(running), timeout=1.0)
            now = time.monotonic()
            for connection, began in list(running.items()):
                seconds = now - began.began
                late = seconds > options.limit or now > end
                if connection not in ready and not late:
                    continue
                del running[connection]
                if connection in ready:
                    yield _received(connection, began.cell, seconds)
                else:
                    began.process.kill()
                    yield Outcome(began.cell, seconds, problem="took too long")
                began.process.join()
            if now > end:
                waiting.clear()
    finally:
        for began in running.values():
            began.process.kill()


def _start(cell: Cell, options: StudyOptions) -> tuple[Connection, _Running]:
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_measured, args=(writer, cell, options), daemon=True)
    process.start()
    writer.close()
    return reader, _Running(cell, process, time.monotonic())


def _measured(writer: Connection, cell: Cell, options: StudyOptions) -> None:
    try:
        with quietly():
            text = json.dumps(asdict(measure(cell, options)))
    except Exception:  # noqa: BLE001 - whatever it was, the other cells go on
        text = json.dumps({"problem": traceback.format_exc()})
    writer.send_bytes(text.encode())


def _received(connection: Connection, cell: Cell, seconds: float) -> Outcome:
    try:
        text = connection.recv_bytes()
    except EOFError:
        return Outcome(cell, seconds, problem="ended without a word")
    finally:
        connection.close()
    if problem := json.loads(text).get("problem"):
        return Outcome(cell, seconds, problem=problem)
    return Outcome(cell, seconds, _RECORDS.validate_json(text))


def line(options: StudyOptions, row: Outcome) -> str:
    """Say how one cell ended."""
    start = f"{row.cell.name}, {row.seconds:.0f} s"
    if row.finished is None:
        return f"{start}: {row.problem}"
    if (retained := row.finished.retained) is not None:
        return f"{start}: {retained.retained} of {row.cell.size}"
    learned = row.finished.learned
    if learned is None:
        return start
    share = sum(learned.scores) / len(learned.scores)
    return f"{start}: {share:.3f}, {learned.kept} rules, {sum(learned.tokens.values()):,} tokens"


def table(options: StudyOptions, rows: Sequence[Outcome]) -> str:
    """Return the tables of all that the folder holds."""
    return tables(read_cells(options.folder / "cells.jsonl"))
