"""Arguments of :class:`~combee_dspy.Combee` that belong together, as plain functions to read, copy
and override.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import dspy

from combee_dspy.aggregators import ParallelScan
from combee_dspy.controllers import PowerLaw
from combee_dspy.costs import Costs
from combee_dspy.diversity import Diversity, Temperature
from combee_dspy.evaluation import (
    Calibration,
    Judge,
    check_smaller,
    cost_of_judging,
    evaluator_lms,
)
from combee_dspy.exceptions import ArgumentValueError
from combee_dspy.options import Search, Validation
from combee_dspy.rollouts import Batching, Threads
from combee_dspy.stopping import Budget, Patience, Target

__all__ = ["brief", "paper", "within_ceiling"]


def brief(
    judge: Callable[..., Any],
    reference: Callable[..., Any],
    *,
    proposer: dspy.BaseLM,
    serial_rollouts: int,
    serial_score: float,
    serial_workers: int = 1,
    embedder: Any = "char-ngrams",
) -> dict[str, Any]:
    """Return arguments of ``Combee`` for a search much wider than the serial one that it is to
    beat.

    ``Combee(**brief(...))``; override with ``{**brief(...), "num_threads": 64}``.

    - Eight times the workers; what waits goes when the service can take it all at once, after 200
      ms, or when the latest scores are alike.
    - ``insert``, which takes in what the scan taught, beside four operators that edit what is
      there: ``rephrase``, ``reorder``, ``few-shot-swap``, ``instruction-channel``. One child each
      update, by the operator whose turn it is in an order that the seed draws.
    - Refused are near copies, above what 0.92 is in the embedder's own scale, its measured
      threshold; the temperature follows a schedule.
    - A judge of its own, refused where it is known to be no smaller than the proposer, and held to
      the reference on 5 % of the rollouts (more in a short run): the lower end of Spearman's
      interval must be 0.7.
    - Four times the rollouts; stops early after three updates without improvement, or at one point
      more than the serial score.

    Args:
        judge: The metric: a judge smaller than the model that proposes.
        reference: What the judge is held to: code, or a judge with a strong LM, be it the one that
            proposes.
        proposer: The LM that proposes.
        serial_rollouts: Rollouts that the serial search bought.
        serial_score: Mean validation score that it reached, on a scale where a point is 0.01.
        serial_workers: Rollouts that it had in flight.
        embedder: As in :class:`~combee_dspy.diversity.Diversity`; its threshold must be known.

    Raises:
        RefusedError: The judge is as large as the proposer or larger, by their names or prices.
    """
    check_smaller(evaluator_lms(judge), proposer)
    return {
        "metric": judge,
        "reflection_lm": proposer,
        "num_threads": 8 * serial_workers,
        "executor": Threads(Batching(queue="target", seconds=0.2, variance=0.01)),
        "operators": ("insert", "rephrase", "reorder", "few-shot-swap", "instruction-channel"),
        "search": Search(keep="pareto", children=1),
        "diversity": Diversity(embedder=embedder, temperature=Temperature()),
        "validation": Validation(calibration=Calibration(reference, share=0.05, threshold=0.7)),
        "budget": (
            Budget(rollouts=4 * serial_rollouts)
            | Patience(updates=3)
            | Target(score=serial_score + 0.01)
        ),
    }


def paper() -> dict[str, Any]:
    """Return arguments of ``Combee`` for the paper's algorithm (arXiv 2604.04247) in the place of
    the defaults.

    ``Combee(metric, **paper(), reflection_lm=strong, budget=…)``: reflections are copied twice and
    dealt as the paper deals them, a tree of calls merges texts, one call writes the new prompt of
    all of it, sizes of minibatches are profiled and fitted to a power law, and each update waits
    for the one before, in GEPA's search.
    """
    return {
        "aggregator": ParallelScan(placement="plain"),
        "operators": ("rewrite",),
        "controller": PowerLaw(profile=3),
        "search": Search(keep="pareto", staleness=0),
    }


def within_ceiling(
    judge: Judge,
    smaller: Judge,
    rows: Sequence[dspy.Example],
    *,
    dollars: float,
    share: float = 0.05,
    costs: Costs | None = None,
) -> dict[str, Any]:
    """Return arguments of ``Combee`` for a run whose evaluations cost at most so much each.

    ``Combee(**within_ceiling(...), reflection_lm=…, budget=…)``. Where the judge would cost more
    than the ceiling, a smaller one takes its place and is held to it on a share of the training
    rollouts. That is decided before the run: a judge that changes within it would give two kinds
    of scores, which no rule could compare.

    Args:
        judge: The judge that is trusted.
        smaller: Takes over above the ceiling.
        rows: Rows that will be judged; the mean of them counts.
        dollars: The ceiling of one evaluation.
        share: Share of the training rollouts that both judge then.
        costs: Prices of your own.

    Raises:
        ArgumentValueError: The price of the judge is not known, ``rows`` is empty, or the smaller
            judge costs more than the ceiling too.
    """
    if cost_of_judging(judge, rows, costs or Costs()) <= dollars:
        return {"metric": judge}
    if (least := cost_of_judging(smaller, rows, costs or Costs())) > dollars:
        problem = f"is below the ${least:.6f} that the smaller judge costs"
        raise ArgumentValueError("dollars", dollars, problem, "Raise it, or give another judge.")
    return {
        "metric": smaller,
        "validation": Validation(calibration=Calibration(judge, share=share)),
    }
