"""Runs one rollout: a program on an example, and the metric on what it returned."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import dspy
from dspy.utils.exceptions import (
    AdapterParseError,
    LMAuthError,
    LMBillingError,
    LMConfigurationError,
    LMError,
    LMRateLimitError,
    LMUnexpectedError,
)

from combee_dspy.costs import Meter
from combee_dspy.exceptions import LocalModelError
from combee_dspy.lms.redact import scrub, secrets_of
from combee_dspy.records import Metric, PredictorCall, Rollout, described
from combee_dspy.rollouts._attempt import ATTEMPT, attempt_setting, is_own_cancellation
from combee_dspy.rollouts._jobs import InfrastructureFaultError, RolloutJob
from combee_dspy.rollouts._patient import may_pass
from combee_dspy.rollouts._traces import predictors_of

BARE = "prediction"
"""The field of a rollout for an output that is no ``dspy.Prediction``."""

_FATAL = (LMAuthError, LMBillingError, LMConfigurationError, LocalModelError)
_MOST_CAUSES = 16
_QUOTED = 60
_EXPECTED = "return a number, or dspy.Prediction(score=…, feedback=…)"


def run_rollout(job: RolloutJob) -> Rollout:
    """Run a program on an example and score its output. Runs in a worker thread; the program may be
    shared.

    The program's and the metric's own errors, ``sys.exit`` too, and an answer that does not parse
    end in the failure score, with the error on the rollout. Only an interrupt of the main thread
    is the user's.

    Raises:
        InfrastructureFaultError: An LM call or an environment failed for a reason outside the
            program.
    """
    running = _Running(job)
    with running.context():
        try:
            score = running.metric(job.program(**job.example.inputs()))
            return running.scored(await_here(score()))
        except BaseException as error:
            if is_interrupt(error):
                raise
            return running.failed(error)


async def arun_rollout(job: RolloutJob) -> Rollout:
    """Do what :func:`run_rollout` does on an event loop, through the program's ``acall``.

    A metric that is a coroutine function is awaited; any other runs in a thread, since it may take
    its time. A cancellation of the task that runs here is raised; a ``CancelledError`` of the
    program is its error.
    """
    running = _Running(job)
    with running.context():
        try:
            score = running.metric(await job.program.acall(**job.example.inputs()))
            if _is_coroutine_function(job.metric):
                return running.scored(await score())
            output, error = await asyncio.to_thread(_outcome, score)
            if error is not None:
                raise error
            return running.scored(output)
        except BaseException as error:
            if is_own_cancellation(error):
                raise
            return running.failed(error)


def _outcome(score: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Return what a metric returns or raises: a future cannot raise every error."""
    try:
        return await_here(score()), None
    except BaseException as error:  # noqa: BLE001 - raised by the caller
        return None, error


def await_here(output: Any) -> Any:
    """Return what a metric returned; a coroutine runs on a loop of its own. Runs in a worker
    thread.
    """
    return asyncio.run(output) if inspect.iscoroutine(output) else output


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error is the user's Ctrl-C, which reaches the main thread alone."""
    return (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
    )


def _is_coroutine_function(metric: Metric) -> bool:
    return inspect.iscoroutinefunction(metric) or inspect.iscoroutinefunction(
        getattr(metric, "__call__", None)  # noqa: B004 - not whether, but how
    )


def takes_trace(metric: Metric) -> bool:
    """Return whether a metric names a parameter ``program_trace``, which DSPy gives to metrics of
    ``dspy.Flex`` programs.
    """
    try:
        return "program_trace" in inspect.signature(metric).parameters
    except (TypeError, ValueError):
        return False


def output_of(rollout: Rollout) -> Any:
    """Return what the program of a rollout returned, as its metric saw it; ``None`` where it
    failed.
    """
    if rollout.prediction is None:
        return None
    return rollout.prediction[BARE] if rollout.bare else dspy.Prediction(**rollout.prediction)


class _Running:
    """One attempt at a rollout while it runs; ends in a rollout or a fault."""

    def __init__(self, job: RolloutJob) -> None:
        self.job = job
        self.meter = Meter(job.tariff, job.role)
        self.trace: list[tuple[Any, Mapping[str, Any], Any]] = []
        self.failed_in = "program"
        self.prediction: Any = None
        self.started = time.monotonic()
        if (attempt := ATTEMPT.get()) is not None:
            attempt.failed = attempt.failed or self.late
            attempt.add(self.meter)

    def context(self) -> AbstractContextManager[None]:
        """Return the DSPy context of program and metric: one for both, since entering costs CPU."""
        context: AbstractContextManager[None] = dspy.context(
            trace=self.trace, **attempt_setting(), **self.meter.settings()
        )
        return context

    def metric(self, prediction: Any) -> Callable[[], Any]:
        """Return the call that scores a prediction. From now on LM calls are the evaluator's."""
        self.prediction, self.failed_in, self.meter.role = prediction, "metric", "evaluator"
        more = {"program_trace": list(self.trace)} if self.job.sees_trace else {}
        return partial(self.job.metric, self.job.example, prediction, None, None, None, **more)

    def scored(self, output: object) -> Rollout:
        score, feedback, objectives = read_score(output)
        return self._rollout(
            score, feedback, objectives, prediction=_fields(self.prediction), bare=self._is_bare()
        )

    def failed(self, error: BaseException) -> Rollout:
        """Return the failed rollout, or raise where neither program nor metric is to blame."""
        if self.failed_in == "program" and isinstance(error, AdapterParseError):
            return self._unparsed(error)
        raise_fault(error, self.meter, lambda: self._failed(error, "service"))
        return self.late(error)

    def late(self, error: BaseException) -> Rollout:
        """Return the rollout as failed by now, while the program may go on. From any thread."""
        if self.prediction is None:
            return self._failed(error, self.failed_in)
        fields = _fields(self.prediction)
        return self._failed(error, self.failed_in, prediction=fields, bare=self._is_bare())

    def _failed(self, error: BaseException, failed_in: str, **output: Any) -> Rollout:
        reason = described_safely(error, self.meter)
        return self._rollout(self.job.failure_score, error=reason, failed_in=failed_in, **output)

    def _unparsed(self, error: AdapterParseError) -> Rollout:
        # As in DSPy's own traces, the inputs are the program's.
        predictors = predictors_of(self.job.program)
        inputs, completion = dict(self.job.example.inputs()), str(error.lm_response or "")
        failed = predictors.unparsed(error.signature, inputs, completion)
        missing = ", ".join(error.signature.output_fields)
        reason = (
            f"AdapterParseError: {error.adapter_name} could not read the fields {missing} in the"
            f" answer, which {_beginning(completion)}"
        )
        return self._rollout(
            self.job.failure_score, error=reason, failed_in="answer", unparsed=(failed,)
        )

    def _is_bare(self) -> bool:
        return not isinstance(self.prediction, dspy.Prediction)

    def _rollout(
        self,
        score: float,
        feedback: str = "",
        objectives: Mapping[str, float] | None = None,
        *,
        unparsed: tuple[PredictorCall, ...] = (),
        **outcome: Any,
    ) -> Rollout:
        return Rollout(
            self.job.example_id,
            score,
            feedback,
            objectives or {},
            calls=(*predictors_of(self.job.program).calls(self.trace), *unparsed),
            usage=self.meter.usage(),
            seconds=time.monotonic() - self.started,
            prompt_hash=self.meter.prompt_hash,
            **outcome,
        )


def _fields(output: Any) -> dict[str, Any]:
    return dict(output.items()) if isinstance(output, dspy.Prediction) else {BARE: output}


def read_score(output: object) -> tuple[float, str, Mapping[str, float]]:
    """Return score, feedback (empty for none) and score by objective of a metric's output.

    Args:
        output: A number (numpy's included), or a ``dspy.Prediction`` with ``score`` and perhaps
            ``feedback`` and ``objective_scores``.

    Raises:
        TypeError: It is neither, or has no score.
        ValueError: A score is not finite.
    """
    if not isinstance(output, dspy.Prediction):
        return _number(output), "", {}
    if output.get("score") is None:
        raise TypeError(f"the metric returned a Prediction without a score: {_EXPECTED}")
    objectives = dict(output.get("objective_scores") or {})
    scores = {str(name): _number(float(score)) for name, score in objectives.items()}
    return _number(output.get("score")), str(output.get("feedback") or ""), scores


def _number(value: Any) -> float:
    # numpy's scalars are no int or float, but convert; a text converts too, and is no score.
    if isinstance(value, (str, dspy.Prediction)) or not hasattr(value, "__float__"):
        raise TypeError(f"the metric returned {value!r}: {_EXPECTED}")
    score = float(value)
    if not math.isfinite(score):
        raise ValueError(f"the metric returned {value!r}, which cannot be compared")
    return score


def _beginning(completion: str) -> str:
    words = " ".join(completion.split())
    return f"begins with {words[:_QUOTED]!r}" if words else "is empty"


def described_safely(error: BaseException, meter: Meter) -> str:
    """Return ``"ClassName: message"`` without the keys of any LM that was called."""
    return scrub(described(error), [key for lm in meter.lms.values() for key in secrets_of(lm)])


def raise_fault(
    error: BaseException, meter: Meter, failed: Callable[[], Rollout] | None = None
) -> None:
    """Raise where an LM call or an environment failed for a reason outside program and metric.

    A program may wrap the error of its LM, or lose it, as ``dspy.Parallel`` does: then its last LM
    call to fail may be the reason. Where that is not certain, the fault carries the failed rollout,
    made by ``failed``, so that one example that keeps failing does not end the run.

    Raises:
        InfrastructureFaultError: That is so.
    """
    causes = tuple(_causes(error))
    sources = (cause for cause in causes if isinstance(cause, (LMError, InfrastructureFaultError)))
    source = next(sources, None)
    if isinstance(source, InfrastructureFaultError):
        source.usage = meter.usage()
        raise source
    failure = meter.failure if source is None and failed is not None else source
    if failure is None:
        return
    fatal = any(isinstance(cause, _FATAL) for cause in causes)
    outage = source is not None and may_pass(failure)
    uncertain = isinstance(failure, LMUnexpectedError) or may_pass(failure)
    if not (fatal or outage or uncertain):
        return
    raise InfrastructureFaultError(
        described_safely(failure, meter),
        retryable=not fatal,
        rejected=outage and isinstance(failure, LMRateLimitError),
        outage=outage,
        retry_after=failure.retry_after,
        usage=meter.usage(),
        rollout=None if failed is None or fatal or outage else failed(),
    ) from error


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, the errors in its group, and those that it was raised from."""
    waiting = deque([error])
    for _ in range(_MOST_CAUSES):
        if not waiting:
            return
        error = waiting.popleft()
        yield error
        waiting.extend(error.exceptions if isinstance(error, BaseExceptionGroup) else ())
        waiting.extend([] if error.__cause__ is None else [error.__cause__])
