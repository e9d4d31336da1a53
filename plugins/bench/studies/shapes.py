"""One search, or several that share its slots and its budget: ``python -m studies.shapes``.

What a switch of shape within a run could bring, simulated: the same service, rows and rollouts,
searched by one text, and by two and four at once, of which validation chooses the best. A line of
JSON for each run.
"""

from __future__ import annotations

import json
import time
from typing import Any

import dspy
import typer

from combee_bench.endpoints import Endpoint, simulated_endpoint
from combee_bench.scoring import scores_of
from combee_bench.surroundings import load_rows, quietly
from combee_dspy import Budget, Combee, Task, Validation, compile_many
from combee_dspy.benchmarks import LoadedBenchmark
from combee_simulator import SimulatedConfig, benchmark_task

_SLOTS = 64


def shapes(rollouts: int = 480, seeds: int = 3, scale: float = 1.0) -> None:
    """Search by one text, by two and by four on the same slots, and write a line for each."""
    params = {"task": "compute"}
    rows = load_rows("formula-mini", params, train=168, validation=48, heldout=200)
    for seed in range(seeds):
        config = SimulatedConfig(seed=seed, slots=_SLOTS, time_scale=scale)
        with simulated_endpoint(config, benchmark_task(rows, seed, params=params)) as endpoint:
            for searches in (1, 2, 4):
                row = _row(rows, endpoint, searches, rollouts, seed)
                print(json.dumps(row), flush=True)  # noqa: T201


def _row(
    rows: LoadedBenchmark, endpoint: Endpoint, searches: int, rollouts: int, seed: int
) -> dict[str, Any]:
    combee = Combee(
        rows.metric,
        budget=Budget(rollouts=rollouts // searches),
        reflection_lm=endpoint.reflection_lm,
        num_threads=_SLOTS,
        validation=Validation(probe=False),
        tracker=(),
    )
    train, validation = list(rows.train.examples), list(rows.validation.examples)
    tasks = [
        Task(f"search {number}", rows.program(), train, validation, seed=10 * seed + number)
        for number in range(searches)
    ]
    with dspy.context(**endpoint.settings()), quietly(), endpoint.counting() as counted:
        begun = time.monotonic()
        results = compile_many(tasks, combee=combee)
        seconds = (time.monotonic() - begun) / endpoint.time_scale
    reports = [result.report for result in results if result.report is not None]
    best = max(results, key=lambda result: result.report.best_score if result.report else -1.0)
    if best.program is None:
        raise RuntimeError(str(best.error))
    heldout = scores_of(best.program, rows, endpoint, _SLOTS)
    return {
        "searches": searches,
        "seed": seed,
        "rollouts": sum(report.rollouts for report in reports),
        "validation": round(max(report.best_score for report in reports), 3),
        "heldout": round(sum(heldout) / len(heldout), 3),
        "tokens": counted.tokens,
        "seconds": round(seconds, 1),
        "slots_busy": round((counted.busy_seconds or 0.0) / (seconds * _SLOTS), 3),
    }


if __name__ == "__main__":
    typer.run(shapes)
