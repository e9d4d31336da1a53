"""One run of one method on one task, and what it left behind."""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from typing import Any, Literal

import dspy

from combee_dspy import Combee, Search
from combee_dspy.reflections import estimate_tokens
from combee_dspy.weighers import Posterior
from studies.weighing.fates import count_fates
from studies.weighing.leaving import leaving_out
from studies.weighing.parts import without
from studies.weighing.scoring import Metric
from studies.weighing.service import Service
from studies.weighing.tasks import Task, make_task

THREADS = 8


@dataclass(frozen=True, slots=True)
class Method:
    """An optimizer with its arguments; a budget, the LMs, the seed and threads are added.

    ``without``: parts that are switched off (see ``parts.py``). ``leaves_out``: the probability
    with which a training rollout leaves out a line in doubt (see ``leaving.py``).
    """

    optimizer: Literal["gepa", "combee"]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    without: Sequence[str] = ()
    leaves_out: float = 0.0


_PAPER = {"aggregator": "parallel-scan", "operators": ["rewrite"], "search": Search(keep="pareto")}
_BOOK = {"aggregator": "reference-scan", "search": Search(keep="trunk")}

METHODS: dict[str, Method] = {
    "gepa3": Method("gepa", {"reflection_minibatch_size": 3}),
    "gepa20": Method("gepa", {"reflection_minibatch_size": 20}),
    "default": Method("combee", {"aggregator": "union", "search": Search(keep="pareto")}),  # 0.2's
    "trunk": Method("combee", {"aggregator": "union", "search": Search(keep="trunk")}),
    "book": Method("combee", _BOOK),
    "scan-rewrite": Method("combee", _PAPER),
}
"""Methods by name; add one here to have it run."""

PARTS: dict[str, Method] = {
    "trusting": Method("combee", {**_BOOK, "search": Search(keep="trunk", weigher="trusting")}),
    "untested": Method("combee", _BOOK, without=("tests",)),
    "newest": Method("combee", _BOOK, without=("never worse",)),
    "leaving": Method("combee", _BOOK, leaves_out=0.1),
    "leaving-often": Method("combee", _BOOK, leaves_out=0.25),
    "sole": Method("combee", {**_BOOK, "search": Search(keep="trunk", weigher=Posterior(sole=8))}),
}
"""The book without a part of it, or with one more, which run only where they are named."""


def run_once(
    kind: str, seed: int, method: str, budget: int, service: str = "usual"
) -> dict[str, Any]:
    """Run a method on a task and return the row of results, JSON values only."""
    task, metric = make_task(kind, seed, service), Metric()
    optimizer = (METHODS | PARTS)[method]
    worker, reader = Service(task.laws, seed), Service(task.laws, seed)
    started = time.perf_counter()
    with dspy.context(lm=worker), tempfile.TemporaryDirectory() as folder:
        student = task.program()
        leaving = leaving_out(optimizer.leaves_out) if optimizer.leaves_out else nullcontext()
        with without(optimizer.without), leaving:
            best = _compile(task, optimizer, metric, reader, budget, folder)
        missing = task.missing_exceptions(best.signature.instructions)
        fates = count_fates(task, folder, missing) if optimizer.optimizer == "combee" else {}
        seconds, used = time.perf_counter() - started, metric.calls
        task_calls, task_tokens = worker.calls["task"], worker.tokens["task"]
        untouched, heldout = (_score(program, task) for program in (student, best))
    text = best.signature.instructions
    return {
        "task": kind,
        "seed": seed,
        "method": method,
        "budget": budget,
        "service": service,
        "untouched": untouched,
        "heldout": heldout,
        "below": heldout < untouched,
        "below_by_2": heldout < untouched - 2,
        "rollouts": used,
        "calls": {"task": task_calls, **reader.calls},
        "tokens": {"task": task_tokens, **reader.tokens},
        "prompt_words": len(text.split()),
        "prompt_tokens": estimate_tokens(text),
        **task.count_lines(text),
        **fates,
        "seconds": round(seconds, 2),
        "reason": best.combee_report.reason if optimizer.optimizer == "combee" else "",
        "prompt": text,
    }


def _compile(
    task: Task, method: Method, metric: Metric, reader: Service, budget: int, folder: str
) -> Any:
    common = {
        "reflection_lm": reader,
        "max_metric_calls": budget,
        "num_threads": THREADS,
        "seed": task.seed,
        **method.arguments,
    }
    optimizer = (
        dspy.GEPA(metric, **common)
        if method.optimizer == "gepa"
        else Combee(metric, tracker=(), log_dir=folder, **common)
    )
    logging.disable(logging.WARNING)  # thousands of lines a run, and the row says what came out
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            return optimizer.compile(
                task.program(),
                trainset=[row.example() for row in task.train],
                valset=[row.example() for row in task.validation],
            )
    finally:
        logging.disable(logging.NOTSET)


def _score(program: Any, task: Task) -> float:
    """Return how many of 100 held-out rows a program has right."""
    answers = (str(program(case=row.case.text(row.slip)).code) for row in task.heldout)
    right = sum(answer == row.code for answer, row in zip(answers, task.heldout, strict=True))
    return 100 * right / len(task.heldout)
