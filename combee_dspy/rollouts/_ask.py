"""One LM call of a strategy."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from combee_dspy.costs import Meter
from combee_dspy.records import FailedCall
from combee_dspy.rollouts._faults import described, raise_fault
from combee_dspy.rollouts._jobs import Answer, CallJob


def run_call(job: CallJob) -> Answer:
    """Ask an LM. An answer that does not parse is asked for once more, as another draw.

    Raises:
        InfrastructureFaultError: The service is to blame, or nobody can tell.
    """
    call = _Call(job)
    with call.context():
        try:
            try:
                return call.answered(call.predictor(**job.inputs))
            except AdapterParseError:
                return call.answered(call.predictor(**job.inputs, config=call.another_draw()))
        except Exception as error:  # noqa: BLE001 - whatever a call fails with is returned, with its reason
            return call.failed(error)


async def arun_call(job: CallJob) -> Answer:
    """Do what :func:`run_call` does on an event loop.

    Raises:
        InfrastructureFaultError: The service is to blame, or nobody can tell.
    """
    call = _Call(job)
    with call.context():
        try:
            try:
                return call.answered(await call.predictor.acall(**job.inputs))
            except AdapterParseError:
                return call.answered(await call.predictor.acall(**job.inputs, config=call.another_draw()))
        except Exception as error:  # noqa: BLE001 - as above
            return call.failed(error)


class _Call:
    __slots__ = ("job", "meter", "predictor", "started")

    def __init__(self, job: CallJob) -> None:
        self.job = job
        self.meter = Meter(job.tariff, job.role)
        config = {} if job.temperature is None else {"temperature": job.temperature}
        self.predictor: Any = dspy.Predict(job.signature, **config)
        self.started = time.monotonic()

    def context(self) -> AbstractContextManager[Any]:
        given = {"lm": self.job.lm, "adapter": self.job.adapter}
        settings = {name: one for name, one in given.items() if one is not None}
        # No trace: these calls are no part of the program that may surround them.
        scope: AbstractContextManager[Any] = dspy.context(trace=None, **settings, **self.meter.settings())
        return scope

    def another_draw(self) -> Mapping[str, Any]:
        """Return what makes DSPy's cache, and an LM at temperature 0, give another answer."""
        kwargs = {**(getattr(self.job.lm or dspy.settings.lm, "kwargs", None) or {}), **self.predictor.config}
        own = kwargs.get("rollout_id")
        config = {"rollout_id": (own if isinstance(own, int) else 0) + 1}
        return {**config, "temperature": 1.0} if kwargs.get("temperature") == 0 else config

    def answered(self, prediction: dspy.Prediction) -> Answer:
        return Answer(prediction, self.meter.usage(), time.monotonic() - self.started)

    def failed(self, error: Exception) -> Answer:
        raise_fault(error, self.meter)
        failed = FailedCall(described(error, self.meter))
        return Answer(failed, self.meter.usage(), time.monotonic() - self.started)
