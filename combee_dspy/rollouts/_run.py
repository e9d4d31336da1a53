"""One rollout: a program on an example, scored, whatever happens."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

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

from combee_dspy.costs import role_scope
from combee_dspy.records import Rollout

__all__ = ["InfrastructureFaultError", "Metric", "read_score", "run_rollout"]

Metric = Callable[..., Any]
"""GEPA's metric: ``(gold, pred, trace, pred_name, pred_trace)`` to a score, or a
``dspy.Prediction`` with ``score``, ``feedback`` and ``objective_scores``."""

_FATAL = (LMAuthError, LMBillingError, LMConfigurationError)


class InfrastructureFaultError(Exception):
    """An LM call failed for a reason that says nothing about the program.

    Attributes:
        retryable: Whether trying again may help.
    """

    def __init__(self, reason: str, *, retryable: bool) -> None:
        super().__init__(reason)
        self.retryable = retryable


def read_score(output: object) -> tuple[float, str, Mapping[str, float]]:
    """Read a metric's return value.

    Args:
        output: A number, or a ``dspy.Prediction`` with ``score`` and, where given,
            ``feedback`` and ``objective_scores``.

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
    if not isinstance(value, (int, float)):
        raise TypeError(f"the metric returned {value!r} where a number is needed")
    if not math.isfinite(value):
        raise ValueError(f"the metric returned {value!r}, which cannot be compared")
    return float(value), feedback, objectives


def run_rollout(
    program: dspy.Module, example: dspy.Example, example_id: str, metric: Metric, failure_score: float
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

    Returns:
        The scored rollout.

    Raises:
        InfrastructureFaultError: An LM call failed for a reason outside the program.
    """
    started = time.monotonic()
    prediction: Any = None
    error: str | None = None
    with dspy.context(trace=[]):
        try:
            with role_scope("task"):
                prediction = program(**example.inputs())
        except AdapterParseError as unparsed:
            prediction = _record_unparsed(program, example, unparsed, failure_score)
        except LMError as failure:
            fault = _as_fault(failure)
            if fault is not None:
                raise fault from failure
            error = describe(failure)
        except Exception as failure:  # noqa: BLE001 - a program may fail in any way: it is scored, and said
            error = describe(failure)
        trace = tuple(dspy.settings.trace or ())
    if error is not None or isinstance(prediction, FailedPrediction):
        return Rollout(
            example_id,
            example,
            prediction,
            trace,
            failure_score,
            error=error,
            failed_in="program" if error else None,
            metric_output=failure_score,
            seconds=time.monotonic() - started,
        )
    return _scored(Rollout(example_id, example, prediction, trace, failure_score), metric, started)


def _scored(unscored: Rollout, metric: Metric, started: float) -> Rollout:
    score, feedback, error, output = unscored.score, "", None, None
    objectives: Mapping[str, float] = {}
    try:
        with role_scope("evaluator"):
            output = metric(unscored.example, unscored.prediction, None, None, None)
        score, feedback, objectives = read_score(output)
    except LMError as failure:
        fault = _as_fault(failure)
        if fault is not None:
            raise fault from failure
        error = describe(failure)
    except Exception as failure:  # noqa: BLE001 - a metric may fail in any way: it is scored, and said
        error = describe(failure)
    return Rollout(
        unscored.example_id,
        unscored.example,
        unscored.prediction,
        unscored.trace,
        score,
        feedback=feedback,
        objective_scores=objectives,
        error=error,
        failed_in="metric" if error else None,
        metric_output=score if output is None else output,
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


def _as_fault(failure: LMError) -> InfrastructureFaultError | None:
    if is_retryable_lm_error(failure):
        return InfrastructureFaultError(describe(failure), retryable=True)
    if isinstance(failure, (*_FATAL, LMUnexpectedError)):
        return InfrastructureFaultError(describe(failure), retryable=False)
    return None


def describe(error: BaseException) -> str:
    """Return ``"ClassName: message"``."""
    return f"{type(error).__name__}: {error}"
