"""A user's own program, data and models, from a file of ``combee run``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dspy

from combee_bench.baselines import ALL_LIMITS
from combee_bench.endpoints import Endpoint, as_proposer
from combee_dspy.benchmarks import LoadedBenchmark, Split
from combee_dspy.cli.run import planned
from combee_dspy.costs import Costs, Price
from combee_dspy.evaluation import Heldout
from combee_dspy.exceptions import ArgumentValueError, SplitOverlapError
from combee_dspy.hashing import row_hash
from combee_dspy.stopping import Limits

if TYPE_CHECKING:
    from combee_dspy.cli._plan import Plan

__all__ = ["Own", "read_own"]


class Own:
    """Program, metric, data, adapter and models of a file of ``combee run``.

    Attributes:
        rows: Its program, metric and splits.
        compared: Where journals of comparisons are kept; ``None`` where it has no log_dir.
    """

    def __init__(self, plan: Plan, rows: LoadedBenchmark) -> None:
        self._plan = plan
        self.rows = rows
        log_dir = plan.config.arguments().get("log_dir")
        self.compared = None if log_dir is None else plan.folder / f"{log_dir}-compare"

    def limits(self) -> Limits | None:
        """Return what its budget allows; ``None`` where it names no budget.

        Raises:
            ArgumentValueError: Its budget is in nothing that ends every kind of method, or in
                dollars, and the price of a model is not known.
        """
        budget, costs = self._plan.config.budget, self._plan.config.arguments().get("costs")
        if budget is None:
            return None
        limits = Limits(**{name: getattr(budget.limits(), name) for name in ALL_LIMITS})
        if limits == Limits():
            problem = f"names none of {', '.join(ALL_LIMITS)}, by which methods are compared"
            raise ArgumentValueError("budget", repr(budget), problem, "Give --budget.")
        models = {"task": self._plan.tasks[0].lm.model, "proposer": self._plan.proposer.model}
        unknown = (costs or Costs()).unpriced(models) if limits.dollars else {}
        if unknown:
            remedy = "Give costs.prices in the file, or another limit."
            problem = f"needs the price of {', '.join(unknown.values())}"
            raise ArgumentValueError("budget.dollars", limits.dollars, problem, remedy)
        return limits

    @contextmanager
    def endpoint(self, price: Price | None) -> Iterator[Endpoint]:
        """Give the file's models without DSPy's cache, which would flatter whoever runs later."""
        task = self._plan.tasks[0]
        with self._plan.lms() as lm_of:
            lm, writing = (
                lm_of(task.lm).copy(cache=False),
                lm_of(self._plan.proposer).copy(cache=False),
            )
            adapter = task.settings().get("adapter")
            costs = self._plan.config.arguments().get("costs") if price is None else None
            yield Endpoint(lm, as_proposer(writing), lm, adapter=adapter, price=price, costs=costs)


def read_own(path: Path) -> Own:
    """Read a file of ``combee run`` with one task. Nothing is bought.

    Raises:
        ArgumentError: The file cannot be used, holds several tasks, or lacks validation or held-out
            rows.
        SplitOverlapError: Held-out rows are in another split too.
        DataSourceError: Its data cannot be read.
    """
    plan = planned(path)
    if len(plan.tasks) > 1:
        names = sorted(planned_task.task.name for planned_task in plan.tasks)
        raise ArgumentValueError("config", names, "holds several tasks", "Give a file with one.")
    task = plan.tasks[0].task
    terms = task.heldout
    heldout = terms.rows if isinstance(terms, Heldout) else terms
    splits_by_name = {"train": task.trainset, "validation": task.valset, "heldout": heldout}
    splits = []
    for name, examples in splits_by_name.items():
        if not examples:
            raise ArgumentValueError(
                f"data.{name}", str(path), "is missing", "A comparison needs all three splits."
            )
        splits.append(Split(name, tuple(examples), tuple(map(row_hash, examples))))
    for split in splits[:2]:
        if shared := len({*split.row_hashes} & {*splits[2].row_hashes}):
            raise SplitOverlapError("heldout", f"data.{split.name}", shared)
    rows = LoadedBenchmark(
        name=path.stem,
        task=path.stem,
        source=str(path),
        licence="",
        citation="",
        train=splits[0],
        validation=splits[1],
        heldout=splits[2],
        signature=task.student.predictors()[0].signature,
        program=task.student.deepcopy,
        metric=_in_full(task.metric),
    )
    return Own(plan, rows)


def _in_full(metric: Any) -> Callable[..., dspy.Prediction]:
    """Return a metric that answers with score and feedback: some methods read both."""

    def full(
        gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
    ) -> dspy.Prediction:
        answer = metric(gold, pred, trace, pred_name, pred_trace)
        score = float(getattr(answer, "score", answer))
        return dspy.Prediction(
            score=score, feedback=getattr(answer, "feedback", None) or f"The score is {score:g}."
        )

    return full
