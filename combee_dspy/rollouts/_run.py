"""One rollout: a program on an example, scored, whatever happens."""

from __future__ import annotations

import asyncio
import inspect
import math
import time
import weakref
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import dspy
from dspy.teleprompt.bootstrap_trace import FailedPrediction
from dspy.utils.exceptions import (
    AdapterParseError,
    LMAuthError,
    LMBillingError,
    LMConfigurationError,
    LMError,
    LMUnexpectedError,
    is_retryable_lm_error,
)

from combee_dspy.costs import ROLLOUT_SETTING, RolloutMeter, role_scope
from combee_dspy.records import Rollout

__all__ = ["InfrastructureFaultError", "Metric", "arun_rollout", "read_score", "run_rollout"]

Metric = Callable[..., Any]
"""GEPA's metric: ``(gold, pred, trace, pred_name, pred_trace)`` to a score, or a
``dspy.Prediction`` with ``score``, ``feedback`` and ``objective_scores``."""

_FATAL = (LMAuthError, LMBillingError, LMConfigurationError)


class InfrastructureFaultError(Exception):
    """An LM call, or what a program runs in, failed for a reason that says nothing about the program.

    A program or a metric may raise it itself; the rollout is then tried again where that may help, and never scored.

    Attributes:
        retryable: Whether trying again may help.
        rollout: The failed rollout, scored, for when trying again did not help;
            ``None`` where the service is known to be at fault, so that no score is fair.
    """

    def __init__(self, reason: str, *, retryable: bool, rollout: Rollout | None = None) -> None:
        super().__init__(reason)
        self.retryable = retryable
        self.rollout = rollout


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


def run_rollout(
    program: dspy.Module,
    example: dspy.Example,
    example_id: str,
    metric: Metric,
    failure_score: float,
    meter: RolloutMeter | None = None,
) -> Rollout:
    """Run a program on an example and score what comes out.

    The program's and the metric's own errors end in the failure score, with the
    error kept for feedback. Runs in a worker thread; the program may be shared.

    Args:
        program: The program; not changed.
        example: Inputs and labels.
        example_id: The example's row hash.
        metric: GEPA's metric.
        failure_score: The score of a rollout that failed.
        meter: Counts the LM calls of program and metric. Who gives it puts what it
            counted on the rollout (:meth:`~combee_dspy.costs.RolloutMeter.stamp`) after the last attempt.

    Returns:
        The scored rollout, its usage still unknown.

    Raises:
        InfrastructureFaultError: An LM call or an environment failed for a reason outside the program.
    """
    steps = _steps(program, example, example_id, metric, failure_score)
    # One context for both: entering one costs about as much as the rest of the bookkeeping.
    with dspy.context(**_setting(meter)):
        try:
            step = next(steps)
            while True:
                try:
                    outcome = _DONE_HERE[step[0]](*step[1:])
                except BaseException as raised:  # noqa: BLE001 - handed on: what asked for the step decides
                    step = steps.throw(raised)
                else:
                    step = steps.send(outcome)
        except StopIteration as ended:
            rollout: Rollout = ended.value
            return rollout


async def arun_rollout(
    program: dspy.Module,
    example: dspy.Example,
    example_id: str,
    metric: Metric,
    failure_score: float,
    meter: RolloutMeter | None = None,
) -> Rollout:
    """Do what :func:`run_rollout` does on an event loop, through the program's ``acall``.

    A metric that is a coroutine function is awaited; any other runs in a thread
    of the loop's executor, since it may take its time or ask an LM. A
    cancelled rollout cancels its calls, and is no result.

    Args:
        program: As for :func:`run_rollout`.
        example: As for :func:`run_rollout`.
        example_id: As for :func:`run_rollout`.
        metric: As for :func:`run_rollout`.
        failure_score: As for :func:`run_rollout`.
        meter: As for :func:`run_rollout`.

    Returns:
        The scored rollout, its usage still unknown.

    Raises:
        InfrastructureFaultError: An LM call or an environment failed for a reason outside the program.
    """
    steps = _steps(program, example, example_id, metric, failure_score)
    with dspy.context(**_setting(meter)):
        try:
            step = next(steps)
            while True:
                try:
                    outcome = await _DONE_ON_LOOP[step[0]](*step[1:])
                except BaseException as raised:  # noqa: BLE001 - handed on: what asked for the step decides
                    step = steps.throw(raised)
                else:
                    step = steps.send(outcome)
        except StopIteration as ended:
            rollout: Rollout = ended.value
            return rollout


def _setting(meter: RolloutMeter | None) -> dict[str, Any]:
    return {"trace": []} if meter is None else {"trace": [], ROLLOUT_SETTING: meter}


async def _acall(program: dspy.Module, inputs: Mapping[str, Any]) -> Any:
    return await program.acall(**inputs)


async def _ascore(metric: Metric, *given: Any) -> Any:
    if inspect.iscoroutinefunction(metric) or inspect.iscoroutinefunction(getattr(metric, "__call__", None)):  # noqa: B004 - not whether, but how
        return await metric(*given)
    return await asyncio.to_thread(metric, *given)


# What a rollout asks for, and who does it: in this thread, or on the event loop.
_DONE_HERE: Mapping[str, Callable[..., Any]] = {
    "program": lambda program, inputs: program(**inputs),
    "metric": lambda metric, *given: metric(*given),
}
_DONE_ON_LOOP: Mapping[str, Callable[..., Awaitable[Any]]] = {"program": _acall, "metric": _ascore}

_Steps = Generator[tuple[Any, ...], Any, Rollout]


def _steps(
    program: dspy.Module, example: dspy.Example, example_id: str, metric: Metric, failure_score: float
) -> _Steps:
    """Carry out a rollout, and ask for what may have to be awaited: the program, then the metric."""
    started = time.monotonic()
    prediction: Any = None
    failure: Exception | None = None
    try:
        with role_scope("task"):
            prediction = yield "program", program, example.inputs()
    except AdapterParseError as unparsed:
        prediction = _record_unparsed(program, example, unparsed, failure_score)
    except Exception as raised:  # noqa: BLE001 - a program may fail in any way: it is scored, and said
        failure = raised
    trace = tuple(dspy.settings.trace or ())
    unscored = Rollout(
        example_id,
        example,
        prediction,
        trace,
        failure_score,
        metric_output=failure_score,
        seconds=time.monotonic() - started,
        callers=_callers(program, trace),
    )
    if failure is not None:
        _raise_fault(failure, unscored)
        return replace(unscored, error=describe(failure), failed_in="program")
    if isinstance(prediction, FailedPrediction):
        return unscored
    return (yield from _scored(unscored, metric, started))


# DSPy's own search for a program's predictors looks through its history too, which grows with every call.
_NAMES: WeakKeyDictionary[dspy.Module, dict[int, tuple[weakref.ref[Any], str]]] = WeakKeyDictionary()


def _callers(program: dspy.Module, trace: Sequence[tuple[Any, Any, Any]]) -> tuple[str, ...]:
    """Return the path of each caller: by identity, since two predictors may have equal signatures."""
    if not trace:
        return ()
    known = _NAMES.get(program, {}) if _hashable(program) else {}
    if any(_name(known, caller) is None for caller, _, _ in trace):
        known = {id(one): (weakref.ref(one), name) for name, one in program.named_predictors()}
        if _hashable(program):
            _NAMES[program] = known
    return tuple(_name(known, caller) or "" for caller, _, _ in trace)


def _hashable(program: dspy.Module) -> bool:
    # By identity: a class that compares programs by what they hold is looked through each time.
    return getattr(type(program), "__hash__", None) is object.__hash__


def _name(known: Mapping[int, tuple[weakref.ref[Any], str]], caller: object) -> str | None:
    # The reference, because the identity of a predictor that is gone may be another object's by now.
    found = known.get(id(caller))
    return found[1] if found is not None and found[0]() is caller else None


def _scored(unscored: Rollout, metric: Metric, started: float) -> _Steps:
    try:
        with role_scope("evaluator"):
            output = yield "metric", metric, unscored.example, unscored.prediction, None, None, None
        score, feedback, objectives = read_score(output)
    except Exception as failure:  # noqa: BLE001 - a metric may fail in any way: it is scored, and said
        _raise_fault(failure, unscored)
        return replace(unscored, error=describe(failure), failed_in="metric", seconds=time.monotonic() - started)
    return replace(
        unscored,
        score=score,
        feedback=feedback,
        objective_scores=objectives,
        metric_output=output,
        seconds=time.monotonic() - started,
    )


def _record_unparsed(
    program: dspy.Module, example: dspy.Example, unparsed: AdapterParseError, failure_score: float
) -> FailedPrediction:
    """Put an answer that did not parse into the trace, so that reflection can see it."""
    failed = FailedPrediction(completion_text=unparsed.lm_response, format_reward=failure_score)
    owner = next((p for p in program.predictors() if p.signature == unparsed.signature), None)
    if owner is not None:
        dspy.settings.trace.append((owner, dict(example.inputs()), failed))
    return failed


def _raise_fault(failure: Exception, unscored: Rollout) -> None:
    """Raise where an LM call or an environment failed for a reason that says nothing about program or metric."""
    if isinstance(failure, InfrastructureFaultError):
        raise failure
    if not isinstance(failure, LMError):
        return
    reason = describe(failure)
    if is_retryable_lm_error(failure):
        raise InfrastructureFaultError(reason, retryable=True) from failure
    if isinstance(failure, _FATAL):
        raise InfrastructureFaultError(reason, retryable=False) from failure
    if isinstance(failure, LMUnexpectedError):
        # Nobody can tell whether the service or this one request is to blame: it is tried
        # again, and one example that keeps failing must not end the run.
        scored = replace(unscored, error=reason, failed_in="service", feedback=reason)
        raise InfrastructureFaultError(reason, retryable=True, rollout=scored) from failure


def describe(error: BaseException) -> str:
    """Return ``"ClassName: message"``."""
    return f"{type(error).__name__}: {error}"
