"""Methods at equal rollouts: 400 of ``rules``, 32 at a time, 0.6 s each; writing takes 4 s.

From plugins/bench: ``python -m studies.luck.equal --help``.
"""

from __future__ import annotations

import logging
import statistics
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from typing import Annotated, Any

import dspy
import typer

from combee_dspy import Combee, Search
from studies.luck.clock import Clock
from studies.weighing.scoring import Metric
from studies.weighing.service import Service
from studies.weighing.tasks import make_task

_ROLLOUTS, _SLOTS = 400, 32
_TASK_SECONDS, _WRITING_SECONDS = 0.6, 4.0

METHODS: dict[str, dict[str, Any]] = {
    "gepa": {},
    "default": {"aggregator": "union", "search": Search(keep="pareto")},  # 0.2's
    "pair": {"aggregator": "reference-scan", "search": Search(keep="trunk")},
}


def main(
    methods: Annotated[str, typer.Option(help="Names, separated by commas.")] = ",".join(METHODS),
    seeds: Annotated[int, typer.Option(help="Seeds, from 0 on.")] = 3,
) -> None:
    """Run every method on every seed, and print a line a run and the medians."""
    seconds: dict[str, list[float]] = {}
    for seed in range(seeds):
        for method in methods.split(","):
            took, used, heldout = _run(method, seed)
            seconds.setdefault(method, []).append(took)
            typer.echo(f"{method}, seed {seed}: {took:.1f} s, {used} rollouts, held-out {heldout}")
    for method, all_seconds in seconds.items():
        typer.echo(f"{method}: {statistics.median(all_seconds):.1f} s")


def _run(method: str, seed: int) -> tuple[float, int, float]:
    task, metric = make_task("rules", seed), Metric()
    logging.disable(logging.WARNING)
    try:
        with Clock(_SLOTS) as clock, redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            worker = Service(task.laws, seed, partial(clock.serve, _TASK_SECONDS))
            reader = Service(task.laws, seed, partial(clock.serve, _WRITING_SECONDS))
            optimizer = (dspy.GEPA if method == "gepa" else Combee)(
                metric,
                max_metric_calls=_ROLLOUTS,
                num_threads=_SLOTS,
                reflection_lm=reader,
                seed=seed,
                **METHODS[method],
            )
            with dspy.context(lm=worker):
                program = optimizer.compile(
                    task.program(),
                    trainset=[row.example() for row in task.train],
                    valset=[row.example() for row in task.validation],
                )
            seconds = clock.now
    finally:
        logging.disable(logging.NOTSET)
    used = metric.calls
    with dspy.context(lm=Service(task.laws, seed)):
        answers = [str(program(case=row.case.text(row.slip)).code) for row in task.heldout]
    right = sum(answer == row.code for answer, row in zip(answers, task.heldout, strict=True))
    return seconds, used, 100 * right / len(task.heldout)


if __name__ == "__main__":
    typer.run(main)
