"""Hears the rollouts of an optimizer that runs programs and metric itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback
from dspy.utils.exceptions import LMError

from combee_dspy.baselines._books import Books
from combee_dspy.baselines._remembered import Remembered
from combee_dspy.baselines._texts import same_shape, texts_of
from combee_dspy.costs import RolloutMeter, current_meter, role_scope, rollout_scope
from combee_dspy.engine.candidates import candidate_id
from combee_dspy.hashing import canonical_json, row_hash
from combee_dspy.records import Rollout
from combee_dspy.rollouts import read_score

__all__ = ["Meter"]


@dataclass(slots=True)
class _Run:
    """A program that runs, or has run and waits for its score. Touched by one thread only."""

    program: Any
    inputs: Mapping[str, Any]
    meter: RolloutMeter
    started: float
    scopes: ExitStack = field(default_factory=ExitStack)
    output: Any = None
    known: Rollout | None = None


class Meter(BaseCallback):
    """Admits, times and counts each rollout, whoever makes it. Thread-safe.

    A rollout is an outermost call of a module of the student's shape, and the
    call of the metric on what it returned that follows in the same thread;
    DSPy's ``Evaluate``, its bootstrapping and GEPA's adapter all work so. Calls
    of the metric for feedback (with ``pred_name``) are not rollouts. A program
    that raises is a rollout that failed.

    Args:
        student: The program that candidates are made from.
        metric: The task's metric.
        rows: All rows that the method was given.
        books: Where rollouts are entered.
        failure_score: Score of a rollout that failed.
        clock: Monotonic seconds.
        remembered: Answers from a cache; ``None`` for none. The student is one of its programs then.
    """

    def __init__(
        self,
        student: dspy.Module,
        metric: Callable[..., Any],
        rows: Sequence[dspy.Example],
        books: Books,
        failure_score: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        remembered: Remembered | None = None,
    ) -> None:
        self._remembered = remembered
        self._student = student
        self._metric = metric
        self._books = books
        self._failure_score = failure_score
        self._clock = clock
        self._by_inputs = {_inputs_key(row.inputs()): row for row in rows}
        self._local = threading.local()

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Open a rollout where the student, or a candidate made from it, begins.

        Raises:
            BudgetSpentError: The budget is spent.
        """
        open_: dict[str, _Run] = self._calls()
        if open_ or current_meter() is not None or not same_shape(instance, self._student):
            return
        self._books.begin()
        given = dict(inputs.get("kwargs") or inputs)
        run = _Run(instance, given, RolloutMeter(), self._clock())
        run.scopes.enter_context(role_scope("task"))
        run.scopes.enter_context(rollout_scope(run.meter))
        open_[call_id] = run

    def on_module_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Close it; a failure is entered at once, since no metric follows."""
        run = self._calls().pop(call_id, None)
        if run is None:
            return
        run.scopes.close()
        self._forget()
        run.known = self._remembered.take() if self._remembered is not None else None
        if exception is None:
            # GEPA's adapter lets a program return its trace beside the prediction.
            run.output = outputs
            self._local.waiting = run
        elif isinstance(exception, Exception):
            # An optimizer scores an outage like a wrong answer; here it can at least be told from one.
            where = "service" if isinstance(exception, LMError) else "program"
            self._enter(run, self._failed(run, exception, where=where))
        else:
            self._books.drop()

    def metric(self, gold: Any, pred: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None) -> Any:
        """Score as the task's metric does, and enter the rollout.

        What the metric raises is entered as a failure and raised.
        """
        run: _Run | None = getattr(self._local, "waiting", None)
        if pred_name is not None or run is None or not _is_output(pred, run.output):
            with role_scope("evaluator"):
                return self._metric(gold, pred, trace, pred_name, pred_trace)
        self._local.waiting = None
        if run.known is not None:
            self._enter(run, run.known)
            return run.known.metric_output
        meter: AbstractContextManager[Any] = rollout_scope(run.meter)
        try:
            with role_scope("evaluator"), meter:
                output = self._metric(gold, pred, trace, pred_name, pred_trace)
            score, feedback, objectives = read_score(output)
        except Exception as error:
            self._enter(run, self._failed(run, error, gold, "metric"))
            raise
        rollout = Rollout(
            row_hash(gold),
            gold,
            pred,
            tuple(trace) if isinstance(trace, (list, tuple)) else (),
            score,
            feedback,
            objectives,
            metric_output=output,
            seconds=self._clock() - run.started,
        )
        self._enter(run, rollout)
        return output

    def number(self, gold: Any, pred: Any, trace: Any = None, *rest: Any) -> float:
        """Score as :meth:`metric` does, as a plain number: what DSPy's own optimizers reckon with."""
        return read_score(self.metric(gold, pred, trace, *rest))[0]

    def _failed(self, run: _Run, error: Exception, gold: Any = None, where: Any = "program") -> Rollout:
        row = gold if gold is not None else self._by_inputs.get(_inputs_key(run.inputs))
        return Rollout(
            row_hash(row) if row is not None else "",
            row,
            None,
            (),
            self._failure_score,
            error=f"{type(error).__name__}: {error}",
            failed_in=where,
            metric_output=self._failure_score,
            seconds=self._clock() - run.started,
        )

    def _enter(self, run: _Run, rollout: Rollout) -> None:
        texts = texts_of(run.program, self._student)
        identity = candidate_id(texts)
        # The optimizer may edit the program that it ran: what was scored is kept as it was.
        program = self._copy(run.program) if self._books.wants_program(identity) else None
        known = run.known is not None
        if self._remembered is not None and not known and rollout.failed_in is None:
            self._remembered.keep(run.program, rollout)
        self._books.finish(rollout if known else run.meter.stamp(rollout), texts, identity, program, cached=known)

    def _copy(self, program: dspy.Module) -> dspy.Module:
        copied = self._student.deepcopy()
        for (_, target), (_, source) in zip(copied.named_predictors(), program.named_predictors(), strict=True):
            target.signature = source.signature
            target.demos = list(source.demos)
        return copied

    def _calls(self) -> dict[str, _Run]:
        if not hasattr(self._local, "calls"):
            self._local.calls = {}
        calls: dict[str, _Run] = self._local.calls
        return calls

    def _forget(self) -> None:
        """Drop a run that was never scored: it was bought, and told nobody anything."""
        if getattr(self._local, "waiting", None) is not None:
            self._local.waiting = None
            self._books.drop()


def _is_output(pred: Any, output: Any) -> bool:
    if pred is output:
        return True
    return isinstance(output, tuple) and bool(output) and output[0] is pred


def _inputs_key(inputs: Any) -> str:
    return canonical_json(dict(inputs.items()))
