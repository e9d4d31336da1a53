"""Runs one rollout: returns what came of it, or raises where the service is to blame."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
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
from combee_dspy.records import PredictorCall, Rollout, described
from combee_dspy.rollouts._in_time import is_ours
from combee_dspy.rollouts._jobs import (
    InfrastructureFaultError,
    Metric,
    RolloutJob,
)
from combee_dspy.rollouts._outputs import BARE
from combee_dspy.rollouts._patient import SURROUNDINGS, carried, is_passing
from combee_dspy.rollouts._traces import predictors_of

RunFn = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Carries out synchronous work in a worker thread."""

_FATAL = (LMAuthError, LMBillingError, LMConfigurationError)
_MOST_CAUSES = 16


def run_rollout(job: RolloutJob) -> Rollout:
    """Run a program on an example and score what comes out. Runs in a worker thread; the program
    may be shared.

    The program's and the metric's own errors, and an answer that does not
    parse, end in the failure score, with the error kept. So does what would end a process
    elsewhere, such as ``sys.exit``: only an interrupt of the main thread is the user's own.

    Raises:
        InfrastructureFaultError: An LM call or an environment failed for a reason outside the
            program.
    """
    attempt = _Attempt(job)
    with attempt.context():
        try:
            score = attempt.metric(job.program(**job.example.inputs()))
            return attempt.scored(await_here(score()))
        except BaseException as error:
            if (
                isinstance(error, KeyboardInterrupt)
                and threading.current_thread() is threading.main_thread()
            ):
                raise
            return attempt.failed(error)


async def arun_rollout(job: RolloutJob, run: RunFn = asyncio.to_thread) -> Rollout:
    """Do what :func:`run_rollout` does on an event loop, through the program's ``acall``.

    A metric that is a coroutine function is awaited; any other is carried out
    by ``run``, since it may take its time, or ask an LM. A cancellation of the task that runs here
    is passed on; one that the program raises itself is an error of the program.
    """
    attempt = _Attempt(job)
    with attempt.context():
        try:
            score = attempt.metric(await job.program.acall(**job.example.inputs()))
            if _awaits(job.metric):
                return attempt.scored(await score())
            output, error = await run(partial(_ended, score))
            if error is not None:
                raise error
            return attempt.scored(output)
        except BaseException as error:
            if is_ours(error):
                raise
            return attempt.failed(error)


def _ended(score: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    """Return what a metric returns, or raises: not everything can be raised through a future."""
    try:
        return await_here(score()), None
    except BaseException as error:  # noqa: BLE001 - raised by who awaits it
        return None, error


def await_here(output: Any) -> Any:
    """Return what a metric returned; a coroutine is awaited on a loop of its own. Runs in a worker
    thread.
    """
    return asyncio.run(output) if inspect.iscoroutine(output) else output


def _awaits(metric: Metric) -> bool:
    return inspect.iscoroutinefunction(metric) or inspect.iscoroutinefunction(
        getattr(metric, "__call__", None)  # noqa: B004 - not whether, but how
    )


def takes_trace(metric: Metric) -> bool:
    """Whether a metric names a parameter ``program_trace``, which DSPy gives to metrics of
    ``dspy.Flex`` programs.
    """
    try:
        return "program_trace" in inspect.signature(metric).parameters
    except (TypeError, ValueError):
        return False


class _Attempt:
    """What one attempt at a rollout knows; ends in a rollout or a fault."""

    def __init__(self, job: RolloutJob) -> None:
        self.job = job
        self.meter = Meter(job.tariff, job.role)
        self.trace: list[tuple[Any, Mapping[str, Any], Any]] = []
        self.failed_in = "program"
        self.prediction: Any = None
        self.started = time.monotonic()
        if (here := SURROUNDINGS.get()) is not None:
            here.failed = here.failed or self.late
            here.add(self.meter)

    def context(self) -> Any:
        """Return the DSPy context for program and metric; one for both, since entering one is not
        cheap.
        """
        return dspy.context(trace=self.trace, **carried(), **self.meter.settings())

    def metric(self, prediction: Any) -> Callable[[], Any]:
        """Return the scoring of a prediction, ready to be called. From now on calls are the
        evaluator's.
        """
        self.prediction, self.failed_in, self.meter.role = prediction, "metric", "evaluator"
        more = {"program_trace": list(self.trace)} if self.job.sees_trace else {}
        return partial(self.job.metric, self.job.example, prediction, None, None, None, **more)

    def scored(self, output: object) -> Rollout:
        score, feedback, objectives = read_score(output)
        return self._rollout(score, feedback, objectives, prediction=_fields(self.prediction))

    def failed(self, error: BaseException) -> Rollout:
        """Return the failed rollout, or raise where neither program nor metric is to blame."""
        if self.failed_in == "program" and isinstance(error, AdapterParseError):
            return self._unparsed(error)
        raise_fault(error, self.meter, lambda: self._failed(error, "service", None))
        return self.late(error)

    def late(self, error: BaseException) -> Rollout:
        """Return the rollout as it failed by now, while what it hangs in goes on. From any
        thread.
        """
        prediction = None if self.prediction is None else _fields(self.prediction)
        return self._failed(error, self.failed_in, prediction)

    def _failed(
        self, error: BaseException, failed_in: str, prediction: Mapping[str, Any] | None
    ) -> Rollout:
        reason = described_safely(error, self.meter)
        return self._rollout(
            self.job.failure_score, error=reason, failed_in=failed_in, prediction=prediction
        )

    def _unparsed(self, error: AdapterParseError) -> Rollout:
        # As in DSPy's own traces, the inputs are the program's.
        predictors = predictors_of(self.job.program)
        inputs, completion = dict(self.job.example.inputs()), str(error.lm_response or "")
        failed = predictors.unparsed(error.signature, inputs, completion)
        missing = ", ".join(error.signature.output_fields)
        reason = (
            f"AdapterParseError: {error.adapter_name} could not read the fields {missing} in the"
            " answer"
        )
        return self._rollout(
            self.job.failure_score, error=reason, failed_in="answer", extra=(failed,)
        )

    def _rollout(
        self,
        score: float,
        feedback: str = "",
        objectives: Mapping[str, float] | None = None,
        *,
        extra: tuple[PredictorCall, ...] = (),
        **outcome: Any,
    ) -> Rollout:
        bare = outcome.get("prediction") is not None and not isinstance(
            self.prediction, dspy.Prediction
        )
        return Rollout(
            self.job.example_id,
            score,
            feedback,
            objectives or {},
            calls=(*predictors_of(self.job.program).calls(self.trace), *extra),
            usage=self.meter.usage(),
            seconds=time.monotonic() - self.started,
            prompt_hash=self.meter.prompt_hash,
            bare=bare,
            **outcome,
        )


def _fields(output: Any) -> dict[str, Any]:
    """Return what a program returned as fields; what is no prediction stands alone in one."""
    return dict(output.items()) if isinstance(output, dspy.Prediction) else {BARE: output}


def read_score(output: object) -> tuple[float, str, Mapping[str, float]]:
    """Return score, feedback (empty where there is none) and score per objective of what a metric
    returned.

    Args:
        output: A number (numpy's included), or a ``dspy.Prediction`` with ``score``
            and, where given, ``feedback`` and ``objective_scores``.

    Raises:
        TypeError: It is neither.
        ValueError: A score is not finite.
    """
    if not isinstance(output, dspy.Prediction):
        return _number(output), "", {}
    objectives = dict(output.get("objective_scores") or {})
    scores = {str(name): _number(float(score)) for name, score in objectives.items()}
    return _number(output.get("score")), str(output.get("feedback") or ""), scores


def _number(value: Any) -> float:
    # numpy's scalars are no int or float, but convert; a string converts too, and is no score.
    if isinstance(value, (str, dspy.Prediction)) or not hasattr(value, "__float__"):
        raise TypeError(f"the metric returned {value!r} where a number is needed")
    score = float(value)
    if not math.isfinite(score):
        raise ValueError(f"the metric returned {value!r}, which cannot be compared")
    return score


def described_safely(error: BaseException, meter: Meter) -> str:
    """Return ``"ClassName: message"`` without the keys of any LM that was asked."""
    return scrub(described(error), [key for lm in meter.lms.values() for key in secrets_of(lm)])


def raise_fault(
    error: BaseException, meter: Meter, scored: Callable[[], Rollout] | None = None
) -> None:
    """Raise where an LM call or an environment failed for a reason that says nothing about program
    or metric.

    A failure that nobody can assign carries the failed rollout, made by ``scored``: it is
    tried again, and one example that keeps failing must not end the run. Such is also that of a
    program that names no cause, as ``dspy.Parallel`` names none, after the service has failed one
    of its calls.
    """
    causes = tuple(_causes(error))
    named = next(
        (cause for cause in causes if isinstance(cause, (LMError, InfrastructureFaultError))), None
    )
    if isinstance(named, InfrastructureFaultError):
        named.usage = meter.usage()
        raise named
    failure = meter.failure if named is None and scored is not None else named
    if failure is None:
        return
    fatal = isinstance(named, _FATAL) or any(isinstance(cause, LocalModelError) for cause in causes)
    outage = is_passing(failure) and named is not None
    unknown = not (fatal or outage) and (
        is_passing(failure) or isinstance(failure, LMUnexpectedError)
    )
    if fatal or outage or unknown:
        raise InfrastructureFaultError(
            described_safely(failure, meter),
            retryable=not fatal,
            rejected=outage and isinstance(failure, LMRateLimitError),
            outage=outage,
            retry_after=failure.retry_after,
            usage=meter.usage(),
            rollout=scored() if unknown and scored is not None else None,
        ) from error


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, what it holds and what it was raised from: a program may wrap what its LM
    failed with.
    """
    waiting = deque([error])
    for _ in range(_MOST_CAUSES):
        if not waiting:
            return
        error = waiting.popleft()
        yield error
        waiting.extend(error.exceptions if isinstance(error, BaseExceptionGroup) else ())
        waiting.extend([] if error.__cause__ is None else [error.__cause__])
