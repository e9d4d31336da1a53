"""What serving adds to a caller's wait: the program alone, a canary, ``Live`` that learns.

The LM answers at once. Every request goes to all three, in an order that turns, so that other work
on the machine meets all of them. A process of its own learns all the while, when it is to.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Annotated

import dspy
import numpy as np
from pydantic import Field

from combee_dspy.strategies import parameters
from combee_strategist.canary import CanaryProgram, Serving
from combee_strategist.live import Learning
from studies.fortnight.live import NAME, FastClock, open_live, store
from studies.fortnight.peers import quietly
from studies.fortnight.world import LAWS, make_world
from studies.weighing.service import Service

WAYS = ("program alone", "canary", "live")


@parameters
class OverheadOptions:
    """Measure what a caller waits for, with learning on and off, in pairs.

    Args:
        requests: Requests, each to the program alone, to a canary and to Live.
        seed: Seed of the requests.
    """

    requests: Annotated[int, Field(ge=10)] = 2_000
    seed: int = 0


@dataclass(frozen=True, slots=True)
class OverheadRow:
    """Milliseconds of one way: what a request takes, and what it takes more than the program."""

    learner: str
    way: str
    median: float
    p99: float
    more_median: float
    more_p99: float


def run(options: OverheadOptions) -> Iterator[OverheadRow]:
    """Measure without a learner and beside one."""
    for learns in (False, True):
        with tempfile.TemporaryDirectory() as text:
            folder, began = Path(text), time.time()
            with _learner(folder, began, options.seed, learns):
                seconds = _serve(folder, began, options)
        for way in WAYS:
            more = [own - alone for own, alone in zip(seconds[way], seconds[WAYS[0]], strict=True)]
            figures = (*_quantiles(seconds[way]), *_quantiles(more))
            yield OverheadRow("on" if learns else "off", way, *figures)


def table(options: OverheadOptions, rows: Sequence[OverheadRow]) -> str:
    """Return the table of docs/results/live.md."""
    lines = [
        "| learner | way | median, ms | p99, ms | more than alone: median | p99 |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        figures = (row.median, row.p99, row.more_median, row.more_p99)
        cells = " | ".join(f"{figure:.2f}" for figure in figures)
        lines.append(f"| {row.learner} | {row.way} | {cells} |")
    return "\n".join(lines)


def _quantiles(seconds: Sequence[float]) -> tuple[float, float]:
    median, p99 = np.quantile(seconds, (0.5, 0.99)) * 1000
    return float(median), float(p99)


def _serve(folder: Path, began: float, options: OverheadOptions) -> dict[str, list[float]]:
    world, lm = make_world(options.seed, max(options.requests, 280)), Service(LAWS, options.seed)
    program = world.program()
    live = open_live(program, lm, folder, FastClock(began), learning=Learning(), serving=Serving())
    qa = live.serve()
    canary = CanaryProgram(NAME, program, log_dir=folder / "canary", uri=store(folder))
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    with dspy.context(lm=lm):
        for number, request in enumerate(world.requests[: options.requests]):
            for place in range(3):
                way = WAYS[(number + place) % 3]
                started = time.perf_counter()
                if way == "live":
                    qa(case=request.text, request_id=request.id)
                elif way == "canary":
                    canary(case=request.text, request_id=request.id)
                else:
                    program(case=request.text)
                seconds[way].append(time.perf_counter() - started)
            if request.label_at is not None:
                qa.feedback(request.id, code=request.row.label, trusted=request.trusted)
    qa.close()
    canary.close()
    return seconds


@contextmanager
def _learner(folder: Path, began: float, seed: int, learns: bool) -> Iterator[None]:
    """Let a process learn while something is served, if it is to."""
    if not learns:
        yield
        return
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    process = context.Process(target=_learn, args=(folder, began, seed, ready, stop))
    process.start()
    try:
        ready.wait(120)
        yield
    finally:
        stop.set()
        process.join()


def _learn(folder: Path, began: float, seed: int, ready: Event, stop: Event) -> None:
    os.nice(5)  # as one would run it beside servers
    world, lm = make_world(seed, 280), Service(LAWS, seed)
    live = open_live(world.program(), lm, folder, FastClock(began), learning=Learning())
    with dspy.context(lm=lm), quietly():
        live.tick()
        ready.set()
        while not stop.wait(0.2):
            live.tick()
    live.close()
