"""Held-out scores of what a method chose, outside of what it is timed and billed for."""

from __future__ import annotations

from typing import Any

import dspy

from combee_bench.endpoints import Endpoint
from combee_bench.surroundings import quietly
from combee_dspy.benchmarks import LoadedBenchmark

__all__ = ["scores_of"]


def scores_of(
    program: dspy.Module, rows: LoadedBenchmark, endpoint: Endpoint, threads: int
) -> tuple[float, ...]:
    """Return the score of each held-out example, in order."""

    def metric(gold: dspy.Example, pred: Any) -> float:
        answer = rows.metric(gold, pred)
        return float(getattr(answer, "score", answer))

    with dspy.context(**endpoint.settings(endpoint.reading_lm)), quietly():
        evaluate = dspy.Evaluate(
            devset=list(rows.heldout.examples), metric=metric, num_threads=threads
        )
        return tuple(float(score) for _, _, score in evaluate(program).results)
