"""Runs methods for one epoch each, side by side.

From plugins/bench: ``python -m studies.luck.run --help``.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import dspy
import orjson
import typer

from combee_bench.speed.methods import METHODS, OneEpoch, Terms
from combee_bench.surroundings import quietly
from combee_simulator import Kind, SimulatedService
from studies.luck.clock import Clock
from studies.luck.service import (
    EXAMPLES,
    SLOTS,
    Engine,
    LuckyModel,
    Questions,
    SureModel,
    load_questions,
    make_config,
    make_lm,
)


@dataclass(frozen=True, slots=True)
class Run:
    """One epoch of one method; seconds are simulated, at full scale."""

    method: str
    seed: int
    seconds: float
    heldout: float
    most: float
    lessons: int
    task_calls: int
    task_tokens: int
    reflection_calls: int
    reflection_tokens: int


def main(
    path: Annotated[Path, typer.Option(help="Formula's records.")],
    methods: Annotated[str, typer.Option(help="Names, separated by commas.")] = "combee",
    seeds: Annotated[int, typer.Option(help="Seeds, from 0 on.")] = 3,
    time_scale: Annotated[
        float, typer.Option(help="Wall seconds for a simulated one; 0: a clock of its own.")
    ] = 0.0,
    plain: Annotated[
        bool, typer.Option(help="No luck: the service of combee bench speed.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="File to add results to, one a line.")] = None,
) -> None:
    """Run every method on every seed, and print a line a run and the medians."""
    runs: list[Run] = []
    for seed in range(seeds):
        for method in methods.split(","):
            run = run_once(method, path, seed, time_scale, SureModel if plain else LuckyModel)
            runs.append(run)
            typer.echo(str(run))
            if out is not None:
                with out.open("ab") as file:
                    file.write(orjson.dumps({**asdict(run), "time_scale": time_scale}) + b"\n")
    for method in methods.split(","):
        own = [run for run in runs if run.method == method]
        seconds = statistics.median(run.seconds for run in own)
        heldout = statistics.median(run.heldout for run in own)
        typer.echo(f"{method}: {seconds:.1f} s, held-out {heldout:.1f}")


def run_once(
    method: str, path: Path, seed: int, time_scale: float, model: type[LuckyModel] = LuckyModel
) -> Run:
    """Run one method for one epoch."""
    questions = load_questions(path, seed, model)
    config = make_config(seed, time_scale, model)
    if time_scale:
        with SimulatedService(config, questions.task, model) as service:
            begun = time.monotonic()
            program = _compile(method, questions, service.lm(), seed)
            seconds = (time.monotonic() - begun) / time_scale
            tallies = service.stats().by_kind
    else:
        with Clock(SLOTS) as clock:
            engine = Engine(questions, config, clock, model)
            program = _compile(method, questions, make_lm(engine), seed)
            seconds, tallies = clock.now, engine.tallies
    task, reflect = tallies[Kind.TASK], tallies[Kind.REFLECT]
    return Run(
        method,
        seed,
        round(seconds, 1),
        round(questions.heldout(program), 1),
        round(questions.most, 1),
        questions.lessons(program),
        task.calls,
        task.prompt_tokens + task.completion_tokens,
        reflect.calls,
        reflect.prompt_tokens + reflect.completion_tokens,
    )


def _compile(method: str, questions: Questions, lm: dspy.LM, seed: int) -> dspy.Module:
    rows = questions.rows
    terms = Terms(rows.metric, EXAMPLES, SLOTS, seed, lm, OneEpoch(EXAMPLES))
    with dspy.context(lm=lm), quietly():
        return (
            METHODS[method]
            .make(terms)
            .compile(
                rows.program(),
                trainset=list(rows.train.examples),
                valset=list(rows.validation.examples),
            )
        )


if __name__ == "__main__":
    typer.run(main)
