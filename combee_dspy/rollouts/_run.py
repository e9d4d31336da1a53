"""One rollout, whatever happens: a program on an example, scored."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal
from weakref import WeakKeyDictionary

import dspy
from dspy.utils.exceptions import AdapterParseError

from combee_dspy.costs import Meter
from combee_dspy.records import PredictorCall, Rollout
from combee_dspy.rollouts._faults import described, raise_fault
from combee_dspy.rollouts._jobs import Metric, RolloutJob

RunFn = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Carries out synchronous work in a worker thread."""


def run_rollout(job: RolloutJob) -> Rollout:
    """Run a program on an example and score what comes out. Runs in a worker thread; the program may be shared.

    The program's and the metric's own errors, and an answer that does not
    parse, end in the failure score, with the error kept.

    Raises:
        InfrastructureFaultError: An LM call or an environment failed for a reason outside the program.
    """
    attempt = _Attempt(job)
    with attempt.context():
        try:
            prediction = job.program(**job.example.inputs())
        except Exception as error:  # noqa: BLE001 - a program may fail in any way: it is scored, and said
            return attempt.failed(error, "program")
        try:
            output = attempt.metric(prediction)()
        except Exception as error:  # noqa: BLE001 - a metric may fail in any way: it is scored, and said
            return attempt.failed(error, "metric", prediction)
        return attempt.scored(prediction, output)


async def arun_rollout(job: RolloutJob, run: RunFn = asyncio.to_thread) -> Rollout:
    """Do what :func:`run_rollout` does on an event loop, through the program's ``acall``.

    Args:
        job: What to do. A metric that is a coroutine function is awaited.
        run: Carries out a metric that is none: it may take its time, or ask an LM.

    Raises:
        InfrastructureFaultError: An LM call or an environment failed for a reason outside the program.
    """
    attempt = _Attempt(job)
    with attempt.context():
        try:
            prediction = await job.program.acall(**job.example.inputs())
        except Exception as error:  # noqa: BLE001 - as above
            return attempt.failed(error, "program")
        try:
            score = attempt.metric(prediction)
            output = await (score() if _awaits(job.metric) else run(score))
        except Exception as error:  # noqa: BLE001 - as above
            return attempt.failed(error, "metric", prediction)
        return attempt.scored(prediction, output)


def _awaits(metric: Metric) -> bool:
    return inspect.iscoroutinefunction(metric) or inspect.iscoroutinefunction(getattr(metric, "__call__", None))  # noqa: B004 - not whether, but how


def takes_trace(metric: Metric) -> bool:
    """Whether a metric names a parameter ``program_trace``, which DSPy gives to metrics of ``dspy.Flex`` programs."""
    try:
        return "program_trace" in inspect.signature(metric).parameters
    except (TypeError, ValueError):
        return False


class _Attempt:
    """What one attempt at a rollout knows; ends in a rollout or a fault."""

    __slots__ = ("job", "meter", "started", "trace")

    def __init__(self, job: RolloutJob) -> None:
        self.job = job
        self.meter = Meter(job.tariff)
        self.trace: list[tuple[Any, Mapping[str, Any], Any]] = []
        self.started = time.monotonic()

    def context(self) -> AbstractContextManager[Any]:
        """Return the DSPy context for program and metric; one for both, since entering one is not cheap."""
        scope: AbstractContextManager[Any] = dspy.context(trace=self.trace, **self.meter.settings())
        return scope

    def metric(self, prediction: Any) -> Callable[[], Any]:
        """Return the scoring of a prediction, ready to be called. From now on calls are the evaluator's."""
        self.meter.role = "evaluator"
        job = self.job
        if job.sees_trace:
            return partial(job.metric, job.example, prediction, None, None, None, program_trace=list(self.trace))
        return partial(job.metric, job.example, prediction, None, None, None)

    def scored(self, prediction: Any, output: object) -> Rollout:
        """Return the rollout by what the metric returned."""
        try:
            score, feedback, objectives = read_score(output)
        except (TypeError, ValueError) as error:
            return self.failed(error, "metric", prediction)
        return self._rollout(score, feedback, objectives, prediction=_fields(prediction))

    def failed(self, error: Exception, where: Literal["program", "metric"], prediction: Any = None) -> Rollout:
        """Return the failed rollout.

        Raises:
            InfrastructureFaultError: Neither program nor metric is to blame.
        """
        if where == "program" and isinstance(error, AdapterParseError):
            return self._unparsed(error)
        reason = described(error, self.meter)
        raise_fault(error, self.meter, lambda: self._rollout(self.job.failure_score, error=reason, failed_in="service"))
        fields = _fields(prediction) if prediction is not None else None
        return self._rollout(self.job.failure_score, error=reason, failed_in=where, prediction=fields)

    def _unparsed(self, error: AdapterParseError) -> Rollout:
        # As in DSPy's own traces, the predictor is known by its signature and its inputs are the program's.
        named = self.job.program.named_predictors()
        owner = next((name for name, one in named if one.signature == error.signature), "")
        failed = PredictorCall(owner, dict(self.job.example.inputs()), None, str(error.lm_response or ""))
        missing = ", ".join(error.signature.output_fields)
        reason = f"AdapterParseError: {error.adapter_name} could not read the fields {missing} in the answer"
        return self._rollout(self.job.failure_score, error=reason, failed_in="answer", extra=(failed,))

    def _rollout(
        self,
        score: float,
        feedback: str = "",
        objectives: Mapping[str, float] | None = None,
        *,
        extra: tuple[PredictorCall, ...] = (),
        **outcome: Any,
    ) -> Rollout:
        meter, job = self.meter, self.job
        return Rollout(
            job.example_id,
            score,
            feedback,
            objectives or {},
            calls=(*_calls(job.program, self.trace), *extra),
            usage=meter.usage(),
            seconds=time.monotonic() - self.started,
            prompt_hash=meter.prompt_hash,
            **outcome,
        )


def _fields(prediction: Any) -> dict[str, Any]:
    return dict(prediction.items()) if hasattr(prediction, "items") else {"prediction": prediction}


# DSPy's own search for a program's predictors looks through its history too, which grows with every call.
_PATHS: WeakKeyDictionary[dspy.Module, dict[int, str]] = WeakKeyDictionary()


def _calls(program: dspy.Module, trace: Sequence[tuple[Any, Mapping[str, Any], Any]]) -> list[PredictorCall]:
    """Return the predictor calls of a trace. Callers are known by identity: two may have equal signatures."""
    if not trace:
        return []
    try:
        paths = _PATHS.get(program)
        if paths is None:
            paths = _PATHS[program] = {id(one): name for name, one in program.named_predictors()}
    except TypeError:  # a class that compares programs by what they hold
        paths = {id(one): name for name, one in program.named_predictors()}
    return [PredictorCall(paths.get(id(caller), ""), inputs, dict(made.items())) for caller, inputs, made in trace]


def read_score(output: object) -> tuple[float, str, Mapping[str, float]]:
    """Read a metric's return value.

    Args:
        output: A number (numpy's included), or a ``dspy.Prediction`` with ``score``
            and, where given, ``feedback`` and ``objective_scores``.

    Returns:
        Score, feedback (empty where there is none) and score per objective.

    Raises:
        TypeError: It is neither.
        ValueError: The score is not finite.
    """
    feedback = ""
    objectives: Mapping[str, float] = {}
    value: object = output
    if isinstance(output, dspy.Prediction):
        value = output.get("score")
        feedback = str(output.get("feedback") or "")
        objectives = {str(name): float(score) for name, score in dict(output.get("objective_scores") or {}).items()}
    # numpy's scalars are no int or float, but convert; a string converts too, and is no score.
    if isinstance(value, (str, dspy.Prediction)) or not hasattr(value, "__float__"):
        raise TypeError(f"the metric returned {value!r} where a number is needed")
    score = float(value)
    if not math.isfinite(score):
        raise ValueError(f"the metric returned {value!r}, which cannot be compared")
    return score, feedback, objectives
